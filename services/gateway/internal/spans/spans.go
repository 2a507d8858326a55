// Package spans defines the contents of the gateway's spans: OpenTelemetry's semantic conventions for MCP, and
// attributes of this project with the prefix `sluice.`. Spans never contain arguments, results, tokens or session
// ids.
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
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// toolError is the error type of a result that reports an error.
const toolError = "tool_error"

// maxName limits how much of a name that a client or server has written is added to a span, in bytes.
const maxName = 128

// Place is the source or the target of a message.
type Place struct {
	// Server is the configured name of the server.
	Server string
	// Transport is `tcp` or `pipe`.
	Transport string
	// Version is the protocol revision of the session; empty if there is none.
	Version string
	// Session is the digest that identifies the gateway's session in records, never its id; empty if there is none.
	Session string
}

// serves are the options of the span of every message. They do not change.
var serves = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}

// Serve starts the server span of a message. The trace of an untrusted client becomes a link, that of a trusted
// client the parent.
func Serve(ctx context.Context, tracer trace.Tracer, m *gate.Message, client trace.SpanContext, trusted bool) (context.Context, trace.Span) {
	opts := serves
	switch {
	case !client.IsValid():
	case trusted:
		ctx = trace.ContextWithRemoteSpanContext(ctx, client)
	default:
		opts = append(opts[:1:1], trace.WithLinks(trace.Link{SpanContext: client}))
	}
	return tracer.Start(ctx, Name(m), opts...) //nolint:spancheck // the caller ends it
}

// Send starts the client span of a message to a server if the span of ctx is sampled. Otherwise it returns the span
// of ctx, because neither would be exported.
func Send(ctx context.Context, tracer trace.Tracer, m *gate.Message, to Place) (context.Context, trace.Span) {
	if span := trace.SpanFromContext(ctx); span.SpanContext().IsValid() && !span.SpanContext().IsSampled() {
		return ctx, span
	}
	ctx, span := tracer.Start(ctx, Name(m), trace.WithSpanKind(trace.SpanKindClient)) //nolint:spancheck // the caller ends it
	Message(span, m, to)
	return ctx, span //nolint:spancheck // see above
}

// Client reads a client's trace context from `_meta`, or otherwise from the traceparent header, which may be empty.
func Client(m *gate.Message, header string, with propagation.TextMapPropagator) trace.SpanContext {
	parent := cmp.Or(m.Meta.TraceParent, header)
	if parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": parent, "tracestate": m.Meta.TraceState}
	return trace.SpanContextFromContext(with.Extract(context.Background(), carrier))
}

// Transport returns the name of a transport in spans and metrics. kind is `http`, `stdio` or `grpc`.
func Transport(kind string) string {
	if kind == "stdio" {
		return "pipe"
	}
	return "tcp"
}

// Name returns the name of a span: `{mcp.method.name} {gen_ai.tool.name}`.
func Name(m *gate.Message) string {
	switch {
	case m.Method == "":
		return "response"
	case m.Method != mcp.MethodToolsCall:
		return m.Method
	default:
		return m.Method + " " + Clip(m.Name)
	}
}

// Message adds the attributes of a message.
func Message(s trace.Span, m *gate.Message, at Place) {
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

// Session adds the attributes of the session of a message, once it is known.
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

// Decision adds the attributes of the decision on a call: its identifier, the code of its refusal, which is empty for
// an allowed call, and the answers of policy and the limiter, as far as they were asked.
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

// Approval adds the id of the approval of a call, and how long the call was held open. An empty id adds nothing.
func Approval(s trace.Span, id string, held time.Duration) {
	if !s.IsRecording() || id == "" {
		return
	}
	s.SetAttributes(approvalID.String(id))
	if held > 0 {
		s.SetAttributes(approvalWait.Float64(held.Seconds()))
	}
}

// ErrorType returns the type of the error that a server's answer reports; empty for none.
func ErrorType(a *gate.Answer) string {
	switch {
	case a.IsError:
		return toolError
	case a.Error.Present():
		code, err := strconv.Atoi(string(a.ErrorCode.Of(a.Raw)))
		if err != nil {
			code = mcp.CodeInvalidRequest // a code that is not a number may be any text
		}
		return strconv.Itoa(code)
	default:
		return ""
	}
}

// Answer adds the error type of a server's answer. Like ToolError and Error it returns the type, which metrics
// contain too.
func Answer(s trace.Span, a *gate.Answer) string {
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

// ToolError adds that a tool's result reports an error.
func ToolError(s trace.Span) string {
	s.SetAttributes(errorType.String(toolError))
	return toolError
}

// Error adds that the answer is a JSON-RPC error with that code.
func Error(s trace.Span, code int) string { return jsonError(s, strconv.Itoa(code)) }

func jsonError(s trace.Span, code string) string {
	s.SetAttributes(errorType.String(code), statusCode.String(code))
	return code
}

// Failed adds why a message got no usable answer: the code of its refusal.
func Failed(s trace.Span, code string) {
	s.SetAttributes(errorType.String(code))
	s.SetStatus(codes.Error, code)
}

// id returns the id of a request as text.
func id(m *gate.Message) string {
	raw := m.ID.Of(m.Raw)
	if text, err := jsontext.AppendUnquote(nil, raw); err == nil {
		return string(text)
	}
	return string(raw)
}

// Clip shortens a text of a client or server to 128 bytes, and makes it valid UTF-8, for spans and messages.
func Clip(text string) string {
	if len(text) > maxName {
		text = text[:maxName] + "…"
	}
	return strings.ToValidUTF8(text, "\ufffd")
}
