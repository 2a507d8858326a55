package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// Dispatcher carries out requests of callers to servers. [New] creates it. It is safe for concurrent use.
type Dispatcher struct{ Deps Deps }

// New returns a dispatcher, or an error if a dependency is missing.
func New(deps Deps) (*Dispatcher, error) {
	if deps.Pipeline == nil || deps.Sessions == nil || deps.Visibility == nil || deps.Catalogue == nil || deps.Remembered == nil || deps.Panicked == nil ||
		deps.Tracer == nil || deps.Meters == nil || deps.Propagator == nil || deps.Log == nil {
		return nil, errors.New("dispatch: every dependency is required")
	}
	return &Dispatcher{deps}, nil
}

// Deps are the dependencies of a [Dispatcher]. Every field is required.
type Deps struct {
	Pipeline   *pipeline.Pipeline
	Sessions   *session.Store
	Visibility *visibility.Visibility
	// Catalogue receives the lists of servers.
	Catalogue *toolreport.Reporter
	// Remembered is the memory budget for the answers that clients may continue to read after they have lost their
	// connection.
	Remembered *limits.Budget
	// Limits are the limits for parsing messages.
	Limits jsonrpc.Limits
	// Version is the version of this build, which clients read.
	Version string
	// Panicked logs a panic that was recovered.
	Panicked func(ctx context.Context, what any)

	Tracer     trace.Tracer
	Meters     *meters.Meters
	Propagator propagation.TextMapPropagator
	Log        *slog.Logger
}

// Exchange is one message of an authenticated caller to a server, while the message is handled. The protocols create
// it (see protocol.Router.NewRequest); the zero value is not usable. One goroutine handles an Exchange. Only its Relay
// and its Sink are used by several goroutines.
type Exchange struct {
	*Dispatcher
	httpserver.Caller

	// ClientCtx ends when the caller disconnects.
	ClientCtx context.Context //nolint:containedctx // the caller's own
	// Sink sends the caller messages before the response, and relay filters what the server sends.
	Sink  Sink
	relay Relay
	// ServerName is the configured name of the server; empty at the URL of all servers. Server is that server; nil at
	// the URL of all servers.
	ServerName string
	Server     *servers.Server
	// Timeout is the maximum duration of a request to the server.
	Timeout time.Duration
	// Message is the parsed message; nil before it is read.
	Message *jsonrpc.Message
	// Size is the size of the message in bytes; 0 before it is read.
	Size int
	// Received is when the whole message had arrived.
	Received time.Time
	// Session is the session of the message, or the state that takes its place; nil before it is found.
	Session *session.Session
	// Slot is the message's share of the quotas of requests and of memory.
	Slot *limits.Slot
	// Deadline is the clock of the server's timeout if the server may send requests to the client; otherwise nil.
	Deadline *upstream.PausableDeadline
	// Hold is how long a call is held while it waits for approvers; nil means as configured.
	Hold *time.Duration
	// ApprovalID is the id of the approval that a task has waited for; empty if there is none.
	ApprovalID string
	// Era does what the families of revisions do differently, and Terms are the values that depend on the revision.
	Era Era
	Terms
	// Addressing is how the client addresses the server.
	Addressing Addressing
}

// ID returns the id of the request as raw JSON; nil if it has none.
func (x *Exchange) ID() []byte { return x.Message.ID.Of(x.Message.Raw) }

// RawID implements [Replayable].
func (x *Exchange) RawID() []byte { return x.ID() }

// ActingPrincipal returns the principal with the session and the run of the message.
func (x *Exchange) ActingPrincipal() *identityv1.Principal {
	p := proto.CloneOf(x.Principal)
	p.Session, p.Run = x.Place().Session, x.Message.Meta.Run
	return p
}

// Handle carries out a request in the way that all revisions have in common.
func (x *Exchange) Handle(ctx context.Context) Response {
	switch {
	case x.Message.Method == mcp.MethodToolsList:
		return x.listTools(ctx)
	case mcp.AsksClient(x.Message.Method):
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "only servers send this request."})
	case x.Message.Method == mcp.MethodToolsCall && x.Message.Name == mcp.ToolApprovalWait:
		return x.WaitForApproval(ctx)
	default:
		return x.makeCall(ctx)
	}
}
