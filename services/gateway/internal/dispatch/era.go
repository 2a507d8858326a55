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

// Era implements the parts of handling a request to one server that depend on whether the MCP revision uses sessions.
type Era interface {
	// IsOwnTask reports whether the message is about a task that the gateway itself has created.
	IsOwnTask() bool
	// Prepare completes a call before it enters the pipeline, or returns a refusal of the call. policyKnown is false if
	// the policy service could not determine which tools the caller may see.
	Prepare(ctx context.Context, call *attempt.Call, tracked *session.Call, tools Tools, policyKnown bool) *refusal.Refusal
	// TranslatesRevisions reports whether the gateway translates between client and server because they have no
	// revision in common.
	TranslatesRevisions() bool
	// Pending returns the response to a call that waits for an approval, for example a task. If Pending returns false, the
	// client receives the refusal in result instead.
	Pending(ctx context.Context, result pipeline.Result) (Response, bool)
	// Answer returns the client's response for a request that the server has answered.
	Answer(ctx context.Context, result pipeline.Result) Response
	// OwnList converts the gateway's own list into a server's answer in the session's revision.
	OwnList(found *discovery.Result) (*jsonrpc.Answer, error)
}

// Terms contains values that depend on a message's revision, session and client. They are set before the message is
// routed.
type Terms struct {
	// Version is the revision's name in records and spans. SessionDigest is the digest of the client's session id. It
	// is empty until the session exists.
	Version, SessionDigest string
	// ResultType is the resultType of the gateway's own results. It is empty if the revision does not define resultType.
	ResultType string
	// ClientName is the name that the client declares. It is not verified.
	ClientName string
	// ClientCapabilities is the client's capabilities object, as raw JSON.
	ClientCapabilities []byte
	// AsksOnStreams is true if servers may send requests to the client on event streams. AsksInAnswers is true if the
	// server's answer to this message may contain requests to the client.
	AsksOnStreams, AsksInAnswers bool
	// Offer describes the requests that the server may send to the client.
	Offer question.Offer
	// DeclaredToServer is the raw JSON object with the client capabilities that the request declares to the server. It
	// is nil if the request declares no capabilities.
	DeclaredToServer []byte
	// AsClient describes the client in requests that the gateway itself sends. It is nil in sessions, because
	// initialize has already described the client.
	AsClient *upstream.Client
	// Discovery contains the server's lists in the revision in which the gateway sends the message to the server.
	Discovery *discovery.Server
	// Resumable is the session in which the client can resume the stream of its answer, or nil if the stream cannot be
	// resumed.
	Resumable *session.Session
}
