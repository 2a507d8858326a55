// Package spans defines the contents of the gateway's spans. The spans follow OpenTelemetry's semantic conventions for
// MCP, and have additional attributes with the prefix `sluice.`. Spans never contain arguments, results, tokens or
// session ids.
package spans

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// toolError is the error type of a result that reports an error.
const toolError = "tool_error"

// maxName limits the length of a client's or server's name in a span, in bytes.
const maxName = 128

// Place contains the server and the session of a message.
type Place struct {
	// Server is the configured name of the server.
	Server string
	// Transport is `tcp` or `pipe`.
	Transport string
	// Version is the protocol revision of the session, or "" if there is no session.
	Version string
	// Session is the digest of the gateway's session id, never the id itself. It is empty if there is no session.
	Session string
}

// serverSpanOptions contains the options that all server spans share. It must not be modified.
var serverSpanOptions = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}

// Serve starts the server span of a message. If the client is trusted, its span becomes the parent of the server span.
// Otherwise the server span has only a link to the client's span.
func Serve(ctx context.Context, tracer trace.Tracer, m *jsonrpc.Message, client trace.SpanContext, trusted bool) (context.Context, trace.Span) {
	opts := serverSpanOptions
	switch {
	case !client.IsValid():
	case trusted:
		ctx = trace.ContextWithRemoteSpanContext(ctx, client)
	default:
		opts = append(opts[:1:1], trace.WithLinks(trace.Link{SpanContext: client}))
	}
	return tracer.Start(ctx, Name(m), opts...) //nolint:spancheck // the caller ends the span
}

// Send starts the client span of a message to a server if the span in ctx is sampled. If it is not sampled, Send
// returns the span in ctx, because a new span would not be exported.
func Send(ctx context.Context, tracer trace.Tracer, m *jsonrpc.Message, to Place) (context.Context, trace.Span) {
	if span := trace.SpanFromContext(ctx); span.SpanContext().IsValid() && !span.SpanContext().IsSampled() {
		return ctx, span
	}
	ctx, span := tracer.Start(ctx, Name(m), trace.WithSpanKind(trace.SpanKindClient)) //nolint:spancheck // the caller ends the span
	Message(span, m, to)
	return ctx, span //nolint:spancheck // the caller ends the span
}

// Client returns a client's trace context. It reads the trace context from the message's `_meta` or, if `_meta`
// contains none, from the value of the traceparent header. The value may be empty.
func Client(m *jsonrpc.Message, header string, with propagation.TextMapPropagator) trace.SpanContext {
	parent := cmp.Or(m.Meta.TraceParent, header)
	if parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": parent, "tracestate": m.Meta.TraceState}
	return trace.SpanContextFromContext(with.Extract(context.Background(), carrier))
}

// Transport returns the name that spans and metrics use for a transport. kind is `http`, `stdio` or `grpc`.
func Transport(kind string) string {
	if kind == "stdio" {
		return "pipe"
	}
	return "tcp"
}

// Name returns the name of a message's span, which has the form `{mcp.method.name} {gen_ai.tool.name}`.
func Name(m *jsonrpc.Message) string {
	switch {
	case m.Method == "":
		return "response"
	case m.Method != mcp.MethodToolsCall:
		return m.Method
	default:
		return m.Method + " " + Clip(m.Name)
	}
}

// Message sets the attributes that describe a message.
func Message(s trace.Span, m *jsonrpc.Message, at Place) {
	if !s.IsRecording() {
		return
	}
	s.SetAttributes(server.String(at.Server), transport.String(at.Transport))
	if m.Method != "" {
		s.SetAttributes(methodName.String(m.Method))
	}
	if m.ID.Present() {
		s.SetAttributes(requestID.String(id(m)))
	}
	if m.Method == mcp.MethodToolsCall {
		s.SetAttributes(operationName.String("execute_tool"), toolName.String(Clip(m.Name)))
	}
	Session(s, at)
}

// Session sets the attributes that describe the session of a message. It can be called later than [Message], because
// the session can become known later.
func Session(s trace.Span, at Place) {
	if !s.IsRecording() {
		return
	}
	if at.Version != "" {
		s.SetAttributes(protocolVersion.String(at.Version))
	}
	if at.Session != "" {
		s.SetAttributes(sessionID.String(at.Session))
	}
}

// Decision sets the attributes that describe the decision on a call. decision is the id of the decision. code is the
// refusal code, or empty for an allowed call. d is the policy service's decision, or nil if the policy service has not
// evaluated the call. lease is the reservation of the call's limits, or nil if no limits were reserved.
func Decision(s trace.Span, decision, code string, d *policyv1.Decision, lease *ratelimitv1.Lease) {
	if !s.IsRecording() {
		return
	}
	s.SetAttributes(decisionID.String(decision), decisionEffect.String("allow"))
	if code != "" {
		s.SetAttributes(decisionEffect.String("deny"), decisionCode.String(code))
	}
	if rule := d.GetRule(); rule != nil {
		s.SetAttributes(decisionRule.String(rule.GetDocument() + "/" + rule.GetRule()))
	}
	if revision := d.GetPolicyRevision(); revision != "" {
		s.SetAttributes(policyRevision.String(revision))
	}
	if i := int(lease.GetTightest()); lease != nil && i >= 0 && i < len(lease.GetRemaining()) && i < len(d.GetLimits()) {
		key := enum.Name(d.GetLimits()[i].GetSessionKey())
		s.SetAttributes(limiterKey.String(key), limiterRemaining.String(lease.GetRemaining()[i].GetRemaining()))
	}
}

// Observed sets the attributes for the result that a call would have had if the rules with mode: observe were enforced.
func Observed(s trace.Span, would journal.Observed) {
	if !s.IsRecording() {
		return
	}
	s.SetAttributes(observedEffect.String(would.Effect))
	if would.Code != "" {
		s.SetAttributes(observedCode.String(would.Code))
	}
	if would.Rule != (journal.Rule{}) {
		s.SetAttributes(observedRule.String(would.Rule.Document + "/" + would.Rule.Rule))
	}
}

// Approval sets the attributes for the id of a call's approval and for how long the call was held. If the id is empty,
// Approval does nothing.
func Approval(s trace.Span, id string, held time.Duration) {
	if !s.IsRecording() || id == "" {
		return
	}
	s.SetAttributes(approvalID.String(id))
	if held > 0 {
		s.SetAttributes(approvalWait.Float64(held.Seconds()))
	}
}

// ErrorType returns the type of the error in a server's answer, or "" if the answer is not an error.
func ErrorType(a *jsonrpc.Answer) string {
	switch {
	case a.IsError:
		return toolError
	case a.Error.Present():
		code, err := strconv.Atoi(string(a.ErrorCode.Of(a.Raw)))
		if err != nil {
			code = mcp.CodeInvalidRequest // a code that is not a number could be any string
		}
		return strconv.Itoa(code)
	default:
		return ""
	}
}

// Answer sets the attribute for the error type of a server's answer. Like ToolError and Error, it returns the error
// type, so that the caller can also use it as a metric attribute.
func Answer(s trace.Span, a *jsonrpc.Answer) string {
	failure := ErrorType(a)
	switch failure {
	case "":
		return ""
	case toolError:
		return ToolError(s)
	default:
		return jsonError(s, failure)
	}
}

// ToolError sets the error type of the span of a call whose result reports an error. It returns the error type.
func ToolError(s trace.Span) string {
	s.SetAttributes(errorType.String(toolError))
	return toolError
}

// Error sets the attribute for the error type of a JSON-RPC error with the given code, and returns the error type.
func Error(s trace.Span, code int) string { return jsonError(s, strconv.Itoa(code)) }

func jsonError(s trace.Span, code string) string {
	s.SetAttributes(errorType.String(code), statusCode.String(code))
	return code
}

// Failed sets the error type of the span of a message that has no usable answer. The error type is the code of the
// refusal.
func Failed(s trace.Span, code string) {
	s.SetAttributes(errorType.String(code))
	s.SetStatus(codes.Error, code)
}

func id(m *jsonrpc.Message) string {
	raw := m.ID.Of(m.Raw)
	if text, err := jsontext.AppendUnquote(nil, raw); err == nil {
		return string(text)
	}
	return string(raw)
}

// Clip truncates a string from a client or server to 128 bytes, and makes it valid UTF-8.
func Clip(text string) string {
	if len(text) > maxName {
		text = text[:maxName] + "…"
	}
	return strings.ToValidUTF8(text, "\ufffd")
}
