package meters

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// These are the keys of the attributes. docs/telemetry.md lists the values of each.
const (
	methodName     = attribute.Key("mcp.method.name")
	errorType      = attribute.Key("error.type")
	transport      = attribute.Key("network.transport")
	version        = attribute.Key("mcp.protocol.version")
	decisionEffect = attribute.Key("sluice.decision.effect")
	decisionCode   = attribute.Key("sluice.decision.code")
	observedEffect = attribute.Key("sluice.observed.effect")
	approvalState  = attribute.Key("sluice.approval.state")
	redactionName  = attribute.Key("sluice.redaction.name")
	issuerName     = attribute.Key("sluice.issuer")
	jwtOutcome     = attribute.Key("sluice.jwt.outcome")
)

func (m *Meters) createInstruments(meter metric.Meter) error {
	// OpenTelemetry's conventions for MCP define these bucket boundaries for the durations of client and server
	// operations.
	operation := metric.WithExplicitBucketBoundaries(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
	// The last boundary is the longest time for which a call can be held.
	hold := metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 30, 45, 60, 120, 300, 600)
	var errs [12]error
	// OpenTelemetry's conventions for MCP define bucket boundaries for sessions. Further boundaries, up to four hours,
	// are added here.
	lived := metric.WithExplicitBucketBoundaries(1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400)
	m.served, errs[0] = meter.Float64Histogram("mcp.server.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Time from a client's message, or a server's request, to the gateway's answer, including all waits"), operation)
	m.sent, errs[1] = meter.Float64Histogram("mcp.client.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Time from the gateway's message to a server to its answer"), operation)
	m.held, errs[2] = meter.Float64Histogram("sluice.hold.duration",
		metric.WithUnit("s"), metric.WithDescription("Time that calls were held open for people to decide"), hold)
	m.decided, errs[3] = meter.Int64Counter("sluice.decisions",
		metric.WithUnit("{decision}"), metric.WithDescription("Calls that were allowed, and requests that were refused"))
	m.worked, errs[4] = meter.Float64Histogram("sluice.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Time from a message to the gateway's answer. Time that the gateway waits for people, or for the client's answers to a server's requests, is excluded"), operation)
	m.toClients, errs[7] = meter.Float64Histogram("mcp.server.session.duration",
		metric.WithUnit("s"), metric.WithDescription("Time that a client's session was open"), lived)
	m.toServers, errs[8] = meter.Float64Histogram("mcp.client.session.duration",
		metric.WithUnit("s"), metric.WithDescription("Time that the gateway's session with a server was open"), lived)
	m.rested, errs[6] = meter.Int64Counter("sluice.upstream.rests",
		metric.WithUnit("{rest}"), metric.WithDescription("How often the gateway sent nothing to a server for 2 s, because the server was not reached 10 times in a row"))
	m.differed, errs[5] = meter.Int64Counter("sluice.decisions.differing",
		metric.WithUnit("{decision}"), metric.WithDescription("Decisions that differ from an earlier decision on the same call in the same policy epoch; each is a fault"))
	m.observed, errs[9] = meter.Int64Counter("sluice.decisions.observed",
		metric.WithUnit("{decision}"), metric.WithDescription("Calls that would have had another result if no rule, document or server were only observed"))
	m.redacted, errs[10] = meter.Int64Counter("sluice.redactions",
		metric.WithUnit("{value}"), metric.WithDescription("Values that redactions of the policy replaced in arguments, results and messages before results"))
	m.verified, errs[11] = meter.Int64Counter("sluice.jwt.verifications",
		metric.WithUnit("{verification}"), metric.WithDescription("Verifications of JWTs. The result of a verification is remembered, so a JWT is not verified again for each request"))
	return errors.Join(errs[:]...)
}
