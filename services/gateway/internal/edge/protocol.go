package edge

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// protocol is what the two families of MCP revisions do differently with one message: those with sessions ([v2025]),
// and 2026-07-28 ([v2026]). Differences that are only values for the rest of the gateway are in [terms].
type protocol interface {
	// route handles a message by its method.
	route(ctx context.Context) dispatch.Response
	era

	// enters sets the terms of a message that was put into its session.
	enters(sess *session.Session)
	// The rest is for the URL of many servers.

	// answersItself returns the function with which the gateway answers the message itself; nil if a server answers it.
	answersItself() func(context.Context) dispatch.Response
	// viewOf returns the gateway's own discovery of a server in the revision in which the message is sent to it.
	viewOf(*servers.Server) *discovery.Server
	// forMember returns the protocol of the message to one of the servers.
	forMember(*exchange) protocol
	// restore replaces what the gateway gave the client, such as the id of a task, by what the server reads.
	restore(ctx context.Context) *refusal.Refusal
	// meet finds out how the message is sent to its server, and returns the key of the member session for that.
	meet(ctx context.Context, access visibility.Access) (member string, refused *refusal.Refusal)
	// openMember sets how a new member session is opened with the server.
	openMember(sess *session.Session, access visibility.Access)
}

// era is what the two families of MCP revisions do differently with a request to one server.
type era interface {
	// isOwnTask reports whether the message is about a task of the gateway's own.
	isOwnTask() bool
	// prepare completes a call before the pipeline gets it. judged reports whether policy could say what the caller sees.
	prepare(ctx context.Context, call attempt.Call, under *session.Call, of tools, judged bool) (attempt.Call, *refusal.Refusal)
	// crosses reports whether client and server have no family of revisions in common, as far as is known.
	crosses() bool
	// pending answers a call that waits for an approval with something other than a refusal. It returns false if it does
	// not.
	pending(ctx context.Context, result pipeline.Result) (dispatch.Response, bool)
	// answer returns the response for the server's answer to a request that the pipeline has carried out.
	answer(ctx context.Context, result pipeline.Result) dispatch.Response
	// ownListAnswer returns the gateway's own list as a server of this revision would answer with it.
	ownListAnswer(found *discovery.Found) (*gate.Answer, error)
}

// terms are the values that depend on the revision of a message, its session and its client. The protocol sets them
// before the message is routed.
type terms struct {
	// version is the revision as records and spans name it, and session the digest of the client's session; empty before
	// there is one.
	version, session string
	// resultType is the resultType of the gateway's own results; empty if the revision has none.
	resultType string
	// clientName is the client's name as the client declares it, unverified.
	clientName string
	// declared is the client's capabilities, as a raw object.
	declared []byte
	// asksOnStreams reports whether servers send requests to the client on streams, and asksInAnswers whether they may do
	// so in the answer to this message.
	asksOnStreams, asksInAnswers bool
	// offer is what the server may request from the client.
	offer question.Offer
	// told is the client's capabilities as the request declares them to the server, as a raw object; nil if it declares
	// none.
	told []byte
	// speaksFor is the client that the gateway's own requests declare; nil in sessions, which have declared it in
	// initialize.
	speaksFor *upstream.Client
	// ownList is the gateway's own discovery of the server, in the revision in which the message is sent to it.
	ownList *discovery.Server
	// resumable is the session in which the client can continue the stream of its answer; nil if it can't.
	resumable *session.Session
}
