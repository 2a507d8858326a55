package attempt

import (
	"context"
	"errors"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// A Forwarder sends a judged request: to a server, as [upstream.Session] does, or from a server to the client.
type Forwarder interface {
	Forward(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error)
}

// ErrClient means that a server's request got no answer because of the client. Compare with errors.Is.
var ErrClient = errors.New("the client gave no answer to the server's request")

// Call is one request that was parsed and is to be decided.
type Call struct {
	// Principal is the authenticated caller; never nil. Its session and run are set.
	Principal *identityv1.Principal
	// Stale reports that the gateway does not know at present whether the principal may call: the source of token
	// revocations is unavailable, or policy did not answer what the principal may see. The call is refused.
	Stale bool
	// Revoked reports whether the token is revoked, or its state is unknown, at the time when the function is called.
	// Calls that have waited check it.
	Revoked func() bool
	// Server is the called server, Transport is `http` or `stdio`, and Version is the protocol revision of the
	// session.
	Server, Transport, Version string
	// Client is the name that the client declares. It is not verified.
	Client string
	// Message is the request as it was judged.
	Message *jsonrpc.Message
	// Received is when the last byte of the request arrived.
	Received time.Time
	// Timeout limits the server's work unless policy sets another limit. Deadline measures the timeout and can be
	// paused; nil for a timeout that is never paused.
	Timeout  time.Duration
	Deadline *upstream.PausableDeadline
	// MaxTimeout limits the server's total work if it reports progress, unless policy sets a limit. If it is not
	// above Timeout, progress changes nothing.
	MaxTimeout time.Duration
	// FromServer reports that the request is the server's own and goes to the client.
	FromServer bool
	// DeclaredCapabilities replaces, for the server, the client capabilities in the message. It is a raw JSON object;
	// nil keeps those in the message. ParamHeaders are the HTTP headers that repeat
	// arguments (MCP 2026-07-28, Transports).
	DeclaredCapabilities []byte
	ParamHeaders         []upstream.Header
	// Upstream sends the request, and Memory is the memory that its answer takes.
	Upstream Forwarder
	Memory   *limits.Memory
	// Reply sends messages to the client before the answer; nil if that is not possible.
	Reply Reply
	// Hold limits how long the call is held open for approvers; nil uses the configured time.
	Hold *time.Duration
	// ApprovalID is the id of the approval for which the call waited in an earlier request; empty for none.
	ApprovalID string
	// Confirm asks the user of the agent to confirm the call; nil if the client cannot show forms.
	Confirm Confirm
	// Identity identifies the server behind the name. Approvals are bound to it.
	Identity string
	// Tools reads the server's list for the caller. If it is nil, no approval can be requested for the call.
	Tools Tools
	// HidesTools is true if policy hides tools of the server from the caller. Then the called tool must be in the list
	// that the caller may see.
	HidesTools bool
}

// Reply sends messages to a client before its answer. It is safe for concurrent use.
type Reply interface {
	// Event receives what the server sends before its answer.
	Event(message []byte)
	// Hold is called when the call begins to wait for an approver. Progress is called repeatedly while the call waits,
	// with the number of the repetition.
	Hold()
	Progress(n int)
}

// Tools reads the list of a server for a caller in its session.
type Tools interface {
	// Listed reports whether the caller's list has the called tool. It returns [ErrUnlisted], or an error if policy
	// cannot be asked.
	Listed(ctx context.Context) (Listing, error)
	// Known returns the digest of the called tool's definition as it was last listed in the session or, if it was not,
	// as the gateway has listed it; nil if neither has. Known does not ask the server.
	Known(ctx context.Context) []byte
	// Definition returns the known digest. If none is known, or now is set, it returns the digest of the definition
	// that the server lists to the session now; nil if the server lists no such tool.
	Definition(ctx context.Context, now bool) ([]byte, error)
}

// Confirmation is the answer of the user at the agent. The zero value means that there is no answer.
type Confirmation int

const (
	// Unanswered means that the user has not answered.
	Unanswered Confirmation = iota
	// Confirmed means that the call may run.
	Confirmed
	// Declined means that the call must not run.
	Declined
)

// Confirm shows a text to the user at the agent and returns the answer. It returns when ctx is cancelled.
type Confirm func(ctx context.Context, text string) Confirmation

// Listing is the result of looking for a tool in a caller's list of a server. The zero value means that the list does
// not have the tool.
type Listing struct {
	// Listed reports that the list has the tool.
	Listed bool
	// Revision is the policy revision that judged the list.
	Revision string
}

// ErrUnlisted means that the server's list is not known.
var ErrUnlisted = errors.New("the server's list could not be read")
