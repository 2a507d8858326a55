package dispatch

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Era is what the two families of MCP revisions do differently with a request to one server.
type Era interface {
	// IsOwnTask reports whether the message is about a task of the gateway's own.
	IsOwnTask() bool
	// Prepare completes a call before the pipeline gets it, or refuses the call. policyKnown reports whether the policy
	// service could say which tools the caller sees.
	Prepare(ctx context.Context, call attempt.Call, tracked *session.Call, tools Tools, policyKnown bool) (attempt.Call, *refusal.Refusal)
	// TranslatesRevisions reports whether client and server have no family of revisions in common, as far as is known.
	TranslatesRevisions() bool
	// Pending returns the response to a call that waits for an approval, such as a task. It returns false if the
	// response is the refusal in result.
	Pending(ctx context.Context, result pipeline.Result) (Response, bool)
	// Answer returns the response for the server's answer to a request that the pipeline has carried out.
	Answer(ctx context.Context, result pipeline.Result) Response
	// OwnList returns the gateway's own list as a server of this revision would answer with it.
	OwnList(found *discovery.Result) (*jsonrpc.Answer, error)
}

// Terms are the values that depend on the revision of a message, its session and its client. The protocol sets them
// before the message is routed.
type Terms struct {
	// Version is the revision as records and spans name it. SessionDigest is the digest of the id of the client's
	// session; empty before there is one.
	Version, SessionDigest string
	// ResultType is the resultType of the gateway's own results; empty if the revision has none.
	ResultType string
	// ClientName is the client's name as the client declares it, unverified.
	ClientName string
	// ClientCapabilities is the client's capabilities, as a raw object.
	ClientCapabilities []byte
	// AsksOnStreams reports whether servers send requests to the client on streams, and AsksInAnswers whether they may
	// do so in the answer to this message.
	AsksOnStreams, AsksInAnswers bool
	// Offer is what the server may request from the client.
	Offer question.Offer
	// DeclaredToServer is the capabilities of the client that the request declares to the server, as a raw JSON object;
	// nil if the request declares none.
	DeclaredToServer []byte
	// AsClient is the client that the gateway's own requests declare; nil in sessions, which have declared it in
	// initialize.
	AsClient *upstream.Client
	// Discovery is the gateway's own discovery of the server, in the revision in which the message is sent to it.
	Discovery *discovery.Server
	// Resumable is the session in which the client can continue the stream of its answer; nil if the client cannot.
	Resumable *session.Session
}
