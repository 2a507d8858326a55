// Package meters defines the gateway's metrics. The values of each attribute come from a fixed list or are the names of
// configured issuers. All other values are recorded as `_OTHER`, because strings from clients and servers are unlimited
// in number and may be secret.
package meters

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/detect"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// other is the attribute value that stands for all values that are not in the attribute's list, as in OpenTelemetry's
// conventions.
const other = "_OTHER"

// unlisted is the approval state under which all states are counted that are not in the attribute's list.
const unlisted = approvalv1.ApprovalState_APPROVAL_STATE_UNSPECIFIED

// methods contains the values of the method attribute, which are the MCP methods and other.
var methods = append(mcpmethod.All(), other)

// These are the error types of a message to which a server has given no usable answer. Unavailable means that the
// message was not sent. Timeout means that the server did not answer before the timeout. Unknown means that the server
// may have executed the message.
const (
	Unavailable = "upstream_unavailable"
	Timeout     = "upstream_timeout"
	Unknown     = "outcome_unknown"
)

// errorTypes contains the values of the error type attribute. They stand for no error, for a tool result with an error,
// for the error codes of JSON-RPC, of MCP and of the gateway's refusals, and for a message to which a server has given
// no usable answer.
var errorTypes = []string{
	"", "tool_error", "-32700", "-32600", "-32601", "-32602", "-32603", "-32020", "-32021", "-32022", "-31403",
	Unavailable, Timeout, Unknown, other,
}

var transports = []string{"tcp", "pipe"}

// Operation describes one message and its outcome.
type Operation struct {
	// Method is the MCP method.
	Method string
	// ErrorType is the type of the error, or empty if there was no error.
	ErrorType string
	// Transport is `tcp` or `pipe`.
	Transport string
}

// Meters records the gateway's metrics. It is safe for concurrent use.
type Meters struct {
	served, worked, sent, held metric.Float64Histogram
	toClients, toServers       metric.Float64Histogram
	decided, differed, rested  metric.Int64Counter
	observed, redacted         metric.Int64Counter
	verified                   metric.Int64Counter

	// Attribute sets are created only once, because creating one takes longer than recording a value.
	operations map[Operation][]metric.RecordOption
	states     map[approvalv1.ApprovalState][]metric.RecordOption
	sessions   map[session][]metric.RecordOption
	refusals   map[commonv1.Code][]metric.AddOption
	allowed    []metric.AddOption
	effects    map[string][]metric.AddOption
	redactions map[string][]metric.AddOption
}

// New returns metrics that are recorded with the given meter. It returns an error if the meter is nil.
func New(meter metric.Meter) (*Meters, error) {
	if meter == nil {
		return nil, errors.New("meters: a meter is required")
	}
	m := &Meters{operations: operations(), states: states(), sessions: sessions(), refusals: refusals(), effects: observedEffects(), redactions: redactions(), allowed: []metric.AddOption{newAttributeSet(decisionEffect.String("allow"))}}
	if err := m.createInstruments(meter); err != nil {
		return nil, err
	}
	for _, rare := range []metric.Int64Counter{m.differed, m.rested} {
		rare.Add(context.Background(), 0) // so that the metric exists before its first event
	}
	return m, nil
}

func operations() map[Operation][]metric.RecordOption {
	out := make(map[Operation][]metric.RecordOption, len(methods)*len(errorTypes)*len(transports))
	for _, method := range methods {
		for _, failure := range errorTypes {
			for _, by := range transports {
				of := []attribute.KeyValue{methodName.String(method), transport.String(by)}
				if failure != "" {
					of = append(of, errorType.String(failure))
				}
				out[Operation{method, failure, by}] = []metric.RecordOption{newAttributeSet(of...)}
			}
		}
	}
	return out
}

type session struct{ version, transport string }

func sessions() map[session][]metric.RecordOption {
	out := make(map[session][]metric.RecordOption)
	for _, spoken := range append(mcp.Supported(), other) {
		for _, by := range transports {
			out[session{spoken, by}] = []metric.RecordOption{newAttributeSet(version.String(spoken), transport.String(by))}
		}
	}
	return out
}

func states() map[approvalv1.ApprovalState][]metric.RecordOption {
	out := make(map[approvalv1.ApprovalState][]metric.RecordOption)
	for number := range approvalv1.ApprovalState_name {
		state := approvalv1.ApprovalState(number)
		name := enum.Name(state)
		if state == unlisted {
			name = other
		}
		out[state] = []metric.RecordOption{newAttributeSet(approvalState.String(name))}
	}
	return out
}

func refusals() map[commonv1.Code][]metric.AddOption {
	out := make(map[commonv1.Code][]metric.AddOption)
	for number := range commonv1.Code_name {
		code := commonv1.Code(number)
		out[code] = []metric.AddOption{newAttributeSet(decisionEffect.String("deny"), decisionCode.String(enum.NameOrEmpty(code)))}
	}
	out[commonv1.Code_CODE_UNSPECIFIED] = []metric.AddOption{newAttributeSet(decisionEffect.String("deny"), decisionCode.String(other))}
	return out
}

func observedEffects() map[string][]metric.AddOption {
	out := make(map[string][]metric.AddOption)
	for number := range gatewayv1.ObservedEffect_name {
		if name := enum.NameOrEmpty(gatewayv1.ObservedEffect(number)); name != "" {
			out[name] = []metric.AddOption{newAttributeSet(observedEffect.String(name))}
		}
	}
	return out
}

func redactions() map[string][]metric.AddOption {
	out := make(map[string][]metric.AddOption)
	for _, name := range append(detect.Names(), "path", "whole") {
		out[name] = []metric.AddOption{newAttributeSet(redactionName.String(name))}
	}
	return out
}

func newAttributeSet(of ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(of...))
}

// CountVerified counts a verification of a JWT. issuer is the name of a configured issuer, or empty if the JWT does not
// name one. outcome is `valid`, or the reason why the JWT was refused.
func (m *Meters) CountVerified(issuer, outcome string) {
	m.verified.Add(context.Background(), 1, newAttributeSet(issuerName.String(cmp.Or(issuer, other)), jwtOutcome.String(outcome)))
}

// RecordServed records how long the gateway took from the last byte of a client's message to the answer. It records two
// metrics, one with and one without the time for which the message was held.
func (m *Meters) RecordServed(ctx context.Context, o Operation, took, held time.Duration) {
	of := m.attributesOf(o)
	m.served.Record(ctx, took.Seconds(), of...)
	m.worked.Record(ctx, (took - held).Seconds(), of...)
}

// RecordSent records how long a server took to answer a message.
func (m *Meters) RecordSent(ctx context.Context, o Operation, took time.Duration) {
	m.sent.Record(ctx, took.Seconds(), m.attributesOf(o)...)
}

// attributesOf returns the attributes of an operation. If the method or the error type is not in its list, attributesOf
// uses the value other instead. If the transport is not in its list, attributesOf uses tcp.
func (m *Meters) attributesOf(o Operation) []metric.RecordOption {
	if found, ok := m.operations[o]; ok {
		return found
	}
	known := Operation{other, other, "tcp"}
	if _, ok := m.operations[Operation{o.Method, "", "tcp"}]; ok {
		known.Method = o.Method
	}
	if _, ok := m.operations[Operation{other, o.ErrorType, "tcp"}]; ok {
		known.ErrorType = o.ErrorType
	}
	if _, ok := m.operations[Operation{other, "", o.Transport}]; ok {
		known.Transport = o.Transport
	}
	return m.operations[known]
}

// RecordClientSession records how long a client's session was open. version is one of [mcp.Supported].
func (m *Meters) RecordClientSession(ctx context.Context, version string, took time.Duration) {
	m.toClients.Record(ctx, took.Seconds(), m.session(version, "tcp")...)
}

// RecordServerSession records how long a session with a server was open. transport is `tcp` or `pipe`.
func (m *Meters) RecordServerSession(ctx context.Context, version, transport string, took time.Duration) {
	m.toServers.Record(ctx, took.Seconds(), m.session(version, transport)...)
}

func (m *Meters) session(version, transport string) []metric.RecordOption {
	if of, ok := m.sessions[session{version, transport}]; ok {
		return of
	}
	if of, ok := m.sessions[session{other, transport}]; ok {
		return of
	}
	return m.sessions[session{other, "tcp"}]
}

// RecordHeld records how long a call was held, together with the state of its approval at the end.
func (m *Meters) RecordHeld(ctx context.Context, state approvalv1.ApprovalState, took time.Duration) {
	of, ok := m.states[state]
	if !ok {
		of = m.states[unlisted]
	}
	m.held.Record(ctx, took.Seconds(), of...)
}

// CountAllowed counts a request that was allowed.
func (m *Meters) CountAllowed(ctx context.Context) { m.decided.Add(ctx, 1, m.allowed...) }

// CountObserved counts a call that would have had a different result if the whole policy were enforced, including rules
// that are only recorded (mode: observe). effect is the name of an ObservedEffect, for example would_deny.
func (m *Meters) CountObserved(ctx context.Context, effect string) {
	m.observed.Add(ctx, 1, m.effects[effect]...)
}

// CountRedacted counts n values that redactions have replaced. The name is that of a detector, "path" or "whole".
func (m *Meters) CountRedacted(ctx context.Context, name string, n int64) {
	m.redacted.Add(ctx, n, m.redactions[name]...)
}

// CountCacheMismatch counts a decision that differs from the cached decision of the same policy epoch.
func (m *Meters) CountCacheMismatch(ctx context.Context) { m.differed.Add(ctx, 1) }

// CountPause counts the beginning of a pause during which the gateway sends no requests to a server.
func (m *Meters) CountPause(ctx context.Context) { m.rested.Add(ctx, 1) }

// CountRefused counts a request that was refused.
func (m *Meters) CountRefused(ctx context.Context, code commonv1.Code) {
	of, ok := m.refusals[code]
	if !ok {
		of = m.refusals[commonv1.Code_CODE_UNSPECIFIED]
	}
	m.decided.Add(ctx, 1, of...)
}
