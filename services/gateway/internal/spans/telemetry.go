package spans

import "go.opentelemetry.io/otel/attribute"

// These are the names of the spans that describe writes to the journal.
const (
	JournalIntent  = "journal intent"
	JournalOutcome = "journal outcome"
	JournalRefusal = "journal refusal"
	JournalClaim   = "journal claim"
)

// These are the keys of the attributes. docs/telemetry.md describes their values.
const (
	methodName      = attribute.Key("mcp.method.name")
	protocolVersion = attribute.Key("mcp.protocol.version")
	sessionID       = attribute.Key("mcp.session.id")
	operationName   = attribute.Key("gen_ai.operation.name")
	toolName        = attribute.Key("gen_ai.tool.name")
	requestID       = attribute.Key("jsonrpc.request.id")
	statusCode      = attribute.Key("rpc.response.status_code")
	errorType       = attribute.Key("error.type")
	transport       = attribute.Key("network.transport")

	server           = attribute.Key("sluice.server")
	decisionID       = attribute.Key("sluice.decision.id")
	decisionEffect   = attribute.Key("sluice.decision.effect")
	decisionCode     = attribute.Key("sluice.decision.code")
	decisionRule     = attribute.Key("sluice.decision.rule")
	observedEffect   = attribute.Key("sluice.observed.effect")
	observedCode     = attribute.Key("sluice.observed.code")
	observedRule     = attribute.Key("sluice.observed.rule")
	approvalID       = attribute.Key("sluice.approval.id")
	approvalWait     = attribute.Key("sluice.approval.wait")
	policyRevision   = attribute.Key("sluice.policy.revision")
	limiterKey       = attribute.Key("sluice.limiter.key")
	limiterRemaining = attribute.Key("sluice.limiter.remaining")
)
