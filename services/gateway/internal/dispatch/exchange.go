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
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
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

// Dispatcher executes requests from callers to servers. [New] creates it. It is safe for concurrent use.
type Dispatcher struct{ Deps Deps }

// New returns a dispatcher, or an error if a dependency is missing.
func New(deps Deps) (*Dispatcher, error) {
	if deps.Pipeline == nil || deps.Sessions == nil || deps.Visibility == nil || deps.Catalogue == nil || deps.Remembered == nil || deps.Forms == nil || deps.Panicked == nil ||
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
	// Catalogue receives the servers' tool lists.
	Catalogue *toolreport.Reporter
	// Remembered is the memory budget for stored answers. Answers are stored so that a client that has lost its connection
	// can resume the stream.
	Remembered *limits.Budget
	// Forms stores which clients respond to the forms that the gateway sends.
	Forms *forms.Memory
	// Limits are the limits for parsing messages.
	Limits jsonrpc.Limits
	// Version is the version of this build, which is sent to clients.
	Version string
	// Panicked logs a panic after it was recovered.
	Panicked func(ctx context.Context, what any)

	Tracer     trace.Tracer
	Meters     *meters.Meters
	Propagator propagation.TextMapPropagator
	Log        *slog.Logger
}

// Exchange is one message from an authenticated caller to a server, while the gateway handles it.
// protocol.Router.NewRequest creates it. The zero value cannot be used. An Exchange is not safe for concurrent use,
// except for its Relay and its Sink.
type Exchange struct {
	*Dispatcher
	httpserver.Caller

	// ClientCtx is cancelled when the caller disconnects.
	ClientCtx context.Context //nolint:containedctx // the caller's context
	// Sink sends messages to the caller before the response. relay filters the messages that the server sends before its
	// answer.
	Sink  Sink
	relay Relay
	// ServerName is the server's configured name. If the message was sent to the URL for all servers, ServerName is empty
	// and Server is nil.
	ServerName string
	Server     *servers.Server
	// Timeout limits how long a request to the server may take.
	Timeout time.Duration
	// Message is the parsed message, or nil before it is read.
	Message *jsonrpc.Message
	// Size is the size of the message in bytes, or 0 before it is read.
	Size int
	// Received is the time at which the last byte of the message arrived.
	Received time.Time
	// Session is the session to which the message belongs. In revision 2026-07-28, it is the state that replaces a
	// session. Session is nil before it is found.
	Session *session.Session
	// Slot counts the message among the caller's requests in flight, and contains the memory that the message uses. Quotas
	// limit both.
	Slot *limits.Slot
	// Deadline measures the server's timeout. It is nil if the server may not send requests to the client.
	Deadline *upstream.PausableDeadline
	// Hold is how long a call is held while it waits for approvers. If it is nil, the configured time applies.
	Hold *time.Duration
	// ApprovalID is the id of the approval for which a task has waited. It is empty if the call is not a task.
	ApprovalID string
	// Era implements the behavior that depends on whether the MCP revision uses sessions. Terms contains values that
	// depend on the revision.
	Era Era
	Terms
	// Addressing implements the behavior that depends on the URL to which the client connects.
	Addressing Addressing
}

// ID returns the id of the request as raw JSON, or nil if the message has no id.
func (x *Exchange) ID() []byte { return x.Message.ID.Of(x.Message.Raw) }

// RawID implements [Replayable].
func (x *Exchange) RawID() []byte { return x.ID() }

// ActingPrincipal returns a copy of the principal that includes the session and run of the message.
func (x *Exchange) ActingPrincipal() *identityv1.Principal {
	p := proto.CloneOf(x.Principal)
	p.Session, p.Run = x.Place().Session, x.Message.Meta.Run
	return p
}

// Handle executes a request. It implements the steps that are the same in all revisions.
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
