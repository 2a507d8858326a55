package edge

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// protocol is what the two families of MCP revisions do differently with one message: those with sessions ([v2025]),
// and 2026-07-28 ([v2026]). What is a mere value for the rest of the gateway is in [terms].
type protocol interface {
	// route carries a message to where its method belongs.
	route(ctx context.Context) dispatch.Response
	// isOwnTask reports whether the message is about a task of the gateway's own.
	isOwnTask() bool
	// enters sets the terms of a message that has got into its session.
	enters(sess *session.Session)
	// prepare completes a call before the pipeline gets it. judged reports whether policy could say what the caller sees.
	prepare(ctx context.Context, call attempt.Call, under *session.Call, of tools, judged bool) (attempt.Call, *refusal.Refusal)
	// crosses reports whether client and server have no family of revisions in common, as far as is known.
	crosses() bool
	// pending answers a call that waits for people otherwise than by a refusal; false if it does not.
	pending(ctx context.Context, result pipeline.Result) (dispatch.Response, bool)
	// answer passes on the answer to a request that the pipeline has carried out.
	answer(ctx context.Context, result pipeline.Result) dispatch.Response
	// ownListAnswer is the gateway's own list as a server of this revision would answer with it.
	ownListAnswer(found *discovery.Found) (*gate.Answer, error)

	// The rest is for one URL that stands for many servers.

	// answersItself is how the gateway answers the message itself; nil if a server answers it.
	answersItself() func(context.Context) dispatch.Response
	// viewOf is the gateway's own view of a server in the revision in which the message is sent to it.
	viewOf(Target) *discovery.Server
	// forMember is the protocol of the message to one of the servers.
	forMember(*exchange) protocol
	// restore makes of the message what its server is to read.
	restore(ctx context.Context) *refusal.Refusal
	// meet finds out how the message is sent to its server, and returns the name of the session for that.
	meet(ctx context.Context, said reach.Standing) (member string, refused *refusal.Refusal)
	// openMember sets how a new session for that is opened with the server.
	openMember(sess *session.Session, said reach.Standing)
}

// terms are what the revision of a message, its session and its client decide. The protocol sets them before the message
// is routed.
type terms struct {
	// version is the revision as records and spans name it, and session the digest of the client's session; empty before
	// there is one.
	version, session string
	// resultType is that of results of the gateway's own; empty if the revision has none.
	resultType string
	// clientName is what the client calls itself; a claim.
	clientName string
	// declared is what the client says that it can do, as a raw object.
	declared []byte
	// asksOnStreams reports whether servers ask the client on streams, and asksInAnswers whether they may do so in the
	// answer to this message.
	asksOnStreams, asksInAnswers bool
	// offer is what the server may ask the client.
	offer question.Offer
	// told are the client's capabilities as the request says them to the server, as a raw object; nil for nothing.
	told []byte
	// speaksFor is the client in requests of the gateway's own; nil in sessions, which have told of it before.
	speaksFor *upstream.Client
	// ownList is the gateway's own view of the server, in the revision in which the message is sent to it.
	ownList *discovery.Server
	// resumable is the session whose client can continue the stream of its answer; nil if it can't.
	resumable *session.Session
}
