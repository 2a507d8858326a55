package attempt

import (
	"context"
	"errors"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// A Forwarder sends an allowed request to its destination. [upstream.Session] sends a client's request to a server.
// Other implementations send a server's request to the client.
type Forwarder interface {
	Forward(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error)
}

// ErrClient means that the client did not answer a request from a server. Compare it with errors.Is.
var ErrClient = errors.New("the client gave no answer to the server's request")

// Call is a parsed request that the policy service must evaluate.
type Call struct {
	// Principal is the authenticated caller. It is never nil, and its session id and run id are set.
	Principal *identityv1.Principal
	// Stale is true if the gateway currently does not know whether the principal may make calls, because it cannot
	// reach the policy service or the source of token revocations. A stale call is refused.
	Stale bool
	// Credential is the credential of the caller. The gateway checks it again after the call has waited, and when the
	// call is about to start. If it is nil, the call is refused.
	Credential authn.Credential
	// Server is the name of the called server. Transport is "http", "stdio", "grpc" or "host". Version is the protocol
	// revision of the session.
	Server, Transport, Version string
	// Client is the name that the client declares. It is not verified.
	Client string
	// Message is the request that the policy service evaluates.
	Message *jsonrpc.Message
	// Received is the time when the last byte of the request arrived.
	Received time.Time
	// Timeout limits how long the server may take to answer, unless the policy sets another timeout. Deadline measures
	// this time and can be paused. Deadline is nil if the timeout is never paused.
	Timeout  time.Duration
	Deadline *upstream.PausableDeadline
	// MaxTimeout limits how long the server may take in total if it reports progress, unless the policy sets a timeout.
	// If MaxTimeout does not exceed Timeout, progress does not extend the timeout.
	MaxTimeout time.Duration
	// RecordArguments is true if the server's configuration requires a copy of the call's arguments to be stored. A
	// policy rule can also require this.
	RecordArguments bool
	// FromServer is true if the server has sent the request to the client.
	FromServer bool
	// AnsweredLater is true if the client answers the server's request in a later request of its own (MCP 2026-07-28,
	// Multi Round-Trip Requests), so that the pipeline does not receive the answer.
	AnsweredLater bool
	// DeclaredCapabilities is a raw JSON object that replaces the client's capabilities in the message to the server.
	// If it is nil, the capabilities stay unchanged. ParamHeaders are the HTTP headers that repeat arguments (MCP
	// 2026-07-28, Transports).
	DeclaredCapabilities []byte
	ParamHeaders         []upstream.Header
	// Upstream sends the request. Memory is charged for the memory that the answer needs.
	Upstream Forwarder
	Memory   *limits.Memory
	// Reply sends messages to the client before the answer. It is nil if the client does not accept such messages.
	Reply Reply
	// Hold limits how long the call may be held for approvers. If it is nil, the configured time applies.
	Hold *time.Duration
	// ApprovalID is the id of the approval for which the call already waited in an earlier request, or "" if there is
	// none.
	ApprovalID string
	// Confirm asks the person who uses the agent to confirm the call. It is nil if the client cannot show forms.
	Confirm Confirm
	// Identity identifies the actual server, for example by its URL. Approvals are bound to this identity.
	Identity string
	// Tools looks up the called tool in the server's list. If it is nil, no approval can be requested for the call.
	Tools Tools
	// HidesTools is true if the policy hides some of the server's tools from the caller. In that case, the gateway
	// checks that the called tool is in the list that the caller may see.
	HidesTools bool
}

// Reply sends messages to a client before the answer to its request. It is safe for concurrent use.
type Reply interface {
	// Event is called with each message that the server sends before its answer.
	Event(message []byte)
	// Hold is called when the call starts to wait for an approver. While it waits, Progress is called at intervals,
	// with n = 1, 2, 3 and so on.
	Hold()
	Progress(n int)
}

// Tools looks up the called tool in a server's list, on behalf of a caller and its session.
type Tools interface {
	// Listed reports whether the caller's list contains the called tool. It returns [ErrUnlisted] if the list cannot be
	// read, or another error if the policy service is unavailable.
	Listed(ctx context.Context) (Listing, error)
	// Known returns the digest of the called tool's definition, without sending a request to the server. It uses the
	// last list that the session has received. If the session has not listed the tool, Known uses the gateway's own
	// list. If that list does not contain the tool either, Known returns nil.
	Known(ctx context.Context) []byte
	// Definition returns the digest that Known returns. If that digest is nil, or if the caller asks for a fresh one,
	// Definition requests the server's list in the session and returns the digest from that list. It returns nil if the
	// server does not list the tool.
	Definition(ctx context.Context, fresh bool) ([]byte, error)
	// EnsureListed makes sure that the gateway itself has read the server's list in the session's protocol revision. If
	// necessary, it requests the list. The check is needed because a definition is accepted at its first use only if
	// such a list contains it. listed is true if EnsureListed has just read the list. refused contains the reason if
	// the list can't be read or the policy service does not accept it. Otherwise it is nil.
	EnsureListed(ctx context.Context) (listed bool, refused *refusal.Refusal)
}

// Confirmation is the answer of the person who uses the agent. The zero value means that the person has not answered.
type Confirmation int

const (
	// Unanswered means that the user has not answered.
	Unanswered Confirmation = iota
	// Confirmed means that the user allows the call to run.
	Confirmed
	// Declined means that the user does not allow the call to run.
	Declined
	// Silent means that the client has not answered in time, so the gateway must stop holding the call.
	Silent
)

// Confirm shows a message to the person who uses the agent and returns the answer. If ctx is cancelled, it returns
// Unanswered. If the client does not answer in time, it returns Silent.
type Confirm func(ctx context.Context, text string) Confirmation

// Listing is the result of looking up a tool in the list that a caller may see. The zero value means that the list does
// not contain the tool.
type Listing struct {
	// Listed reports whether the list contains the tool.
	Listed bool
	// Revision is the policy revision that determines which of the listed tools the caller may see.
	Revision string
}

// ErrUnlisted means that the gateway could not read the server's list.
var ErrUnlisted = errors.New("the server's list could not be read")
