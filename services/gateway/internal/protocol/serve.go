package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// End releases the resources of the request. The caller must call it once, after resp was sent.
func (x *Request) End(resp dispatch.Response) {
	if x.Slot != nil {
		defer x.Slot.End()
	}
	if x.span != nil {
		defer x.span.End()
		defer x.Measure(x.ClientCtx, resp)
	}
	if x.Release != nil {
		defer x.Release()
	}
	x.OwnCleanup.Run()
}

// NewRequest returns the request for a message to a server. If server is empty, the message is addressed to the URL for
// all servers. The caller must cancel ctx when the client disconnects.
func (f *Router) NewRequest(ctx context.Context, c httpserver.Caller, server string, header http.Header, to dispatch.Sink) *Request {
	x := &Request{Router: f, Header: header}
	x.Exchange = dispatch.Exchange{Dispatcher: f.Dispatcher, Caller: c, ClientCtx: ctx, Sink: to, ServerName: server}
	x.Addressing = dispatch.Direct{Exchange: &x.Exchange}
	return x
}

// NewHookRequest is like NewRequest, but for a message from a client's hook. server is the name of the server that
// represents the client's own tools.
func (f *Router) NewHookRequest(ctx context.Context, c httpserver.Caller, server string, header http.Header, to dispatch.Sink) *Request {
	x := f.NewRequest(ctx, c, server, header, to)
	x.isHook = true
	return x
}

// Serve handles the message in body, and returns the response. size is the size of the message in bytes, or -1 if the
// size is unknown.
func (x *Request) Serve(body io.Reader, size int64) dispatch.Response {
	ctx := x.ClientCtx
	sessions := x.Sessionful(x)
	x.SetProtocol(sessions)
	var err error
	if x.Slot, err = x.InFlight.Begin(x.Principal, x.ServerName); err != nil {
		return x.Refuse(ctx, TooMuchInFlight(err))
	}
	if refused := x.readMessage(body, size); refused != nil {
		return x.Refuse(ctx, refused)
	}
	parent, _ := SingleHeader(x.Header, "Traceparent")
	ctx, x.span = spans.Serve(ctx, x.Tracer, x.Message, spans.Client(x.Message, parent, x.Propagator), x.TrustParent)
	spans.Message(x.span, x.Message, x.Place())
	x.ClientCtx = ctx
	if refused := x.checkMessage(); refused != nil {
		return x.refuseVersion(ctx, refused)
	}
	if x.isModern() {
		return x.Stateless(x).Post(ctx)
	}
	return sessions.Post(ctx)
}

func (x *Request) readMessage(from io.Reader, size int64) *refusal.Refusal {
	if refused := x.Resolve(); refused != nil {
		return refused
	}
	if x.Server != nil {
		x.Server.Touch()
	}
	if !isJSON(x.Header) {
		return refusal.ProtocolError(commonv1.Code_CODE_MEDIA_TYPE, "")
	}
	body, err := x.pieces.ReadAll(x.Slot.Reader(from), size, x.Limits.Bytes)
	x.Received, x.Size = time.Now(), len(body)
	switch {
	case errors.Is(err, limits.ErrRequests):
		return TooMuchInFlight(err)
	case err != nil:
		return UnreadableBody()
	}
	end, err := x.Slot.Answer.TimesliceFor(x.ClientCtx, len(body))
	if err != nil {
		return UnreadableBody() // the caller has disconnected
	}
	defer end()
	if x.Message, err = jsonrpc.Parse(body, x.parseLimits()); err != nil {
		x.Message = nil
		return InvalidMessage(err)
	}
	return nil
}

// Resolve finds the server that the message's URL addresses. It refuses the message if the server is not configured or
// is hidden from the caller.
func (x *Request) Resolve() *refusal.Refusal {
	if x.IsForAllServers() {
		return nil
	}
	reachable := x.Servers
	if x.isHook {
		reachable = x.Hosts
	}
	if x.isAbsent(x.ClientCtx, x.Caller, x.ServerName, reachable) {
		return unknownServer(x.ServerName)
	}
	x.Server = reachable[x.ServerName]
	x.Timeout, x.Discovery = x.Server.Timeout, x.Server.Own()
	return nil
}

// IsForAllServers reports whether the message was sent to the URL for all servers.
func (x *Request) IsForAllServers() bool { return x.ServerName == "" }

// parseLimits returns the limits for parsing the message. At the URL for all servers, ids may be twice as long, because
// the gateway adds the server's name to the ids of requests from servers.
func (x *Request) parseLimits() jsonrpc.Limits {
	l := x.Limits
	if x.IsForAllServers() {
		l.IDBytes *= 2
	}
	return l
}

// isJSON reports whether the headers describe a JSON body in UTF-8 without a content encoding.
func isJSON(h http.Header) bool {
	text, ok := SingleHeader(h, "Content-Type")
	encoding := h["Content-Encoding"]
	encoded := len(encoding) > 1 || len(encoding) == 1 && encoding[0] != ""
	if text == "application/json" { // nearly all clients send this value
		return !encoded
	}
	kind, params, err := mime.ParseMediaType(text)
	charset, named := params["charset"]
	return ok && !encoded && err == nil && kind == "application/json" && (!named || strings.EqualFold(charset, "utf-8"))
}

// checkMessage refuses ambiguous messages, messages of an unsupported revision, and messages that need no rule but are
// too large. For initialize, it accepts every value that has the form of a revision, because the body negotiates the
// revision.
func (x *Request) checkMessage() *refusal.Refusal {
	for name, lines := range x.Header {
		if len(lines) > 1 && strings.HasPrefix(name, "Mcp-") { // ambiguous, because two parsers could use different lines
			return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, "send each Mcp- header once.")
		}
	}
	header, _ := SingleHeader(x.Header, mcp.HeaderVersion)
	meta := x.Message.Meta.ProtocolVersion
	if meta != "" && header != "" && meta != header && (meta == mcp.Modern || header == mcp.Modern) {
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, mcp.HeaderVersion+" differs from params._meta.")
	}
	if mcp.IsMethodOf2026(x.Message.Method) && meta != "" && meta != mcp.Modern {
		return x.UnsupportedVersion(meta)
	}
	for _, version := range []string{meta, header} {
		agrees := x.Message.Method == mcp.MethodInitialize && mcp.IsRevision(version)
		if version != "" && version != mcp.Modern && !mcp.IsSupported(version) && !agrees {
			return x.UnsupportedVersion(version)
		}
	}
	// The size of a response is checked later, because the session must be known to find out whether a server's request
	// waits for the response.
	if x.NeedsNoRule() && x.Message.Kind != jsonrpc.Response {
		return x.CheckSize()
	}
	return nil
}

// TooMuchInFlight returns the refusal for a message that exceeds a quota of requests in flight.
func TooMuchInFlight(err error) *refusal.Refusal {
	message := "this caller has too many or too large requests in flight; wait for some of them."
	if full := quota.Reason(err); full != "" {
		message = full + "; wait for some of them."
	}
	return refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, message)
}

// UnreadableBody returns the refusal for a message whose body could not be read.
func UnreadableBody() *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_JSON_INVALID, "the body could not be read.")
}

// InvalidMessage returns the refusal for a message that can't be parsed because of err.
func InvalidMessage(err error) *refusal.Refusal {
	own, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return refusal.ProtocolError(commonv1.Code_CODE_JSON_INVALID, "")
	}
	return refusal.ProtocolError(own.Code, fmt.Sprintf("%s (at byte %d).", own.Detail, own.Offset))
}

// UnknownSession returns the refusal for a message with a session that does not exist or belongs to another caller.
func UnknownSession() *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_SESSION_UNKNOWN, "")
}

// SetProtocol sets the [Protocol] of the message.
func (x *Request) SetProtocol(p Protocol) { x.Protocol, x.Era = p, p }

// Enter assigns the message to a session.
func (x *Request) Enter(sess *session.Session) {
	if x.Session = sess; len(sess.Client.Offer.Abilities) > 0 {
		x.Deadline = new(upstream.PausableDeadline)
	}
	x.Protocol.SetTerms(sess)
}

// SingleHeader returns the value of a header. It returns false if the header is missing, empty or repeated. A repeated
// header is ambiguous, because two parsers could use different values.
func SingleHeader(h http.Header, name string) (string, bool) {
	if lines := h[name]; len(lines) == 1 {
		return lines[0], lines[0] != ""
	}
	return "", false
}
