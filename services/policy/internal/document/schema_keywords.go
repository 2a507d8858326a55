package document

import (
	"maps"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/detect"
	"github.com/sluice-mesh/sluice/services/internal/valuepath"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// keywords describes all keys in documents. The map is indexed by a name in [structNames], a dot and the key.
var keywords = map[string]keyword{
	"document.version": {"The version of the policy language: always 1.", schema{"const": 1}, true},
	"document.name":    {"The unique name of the document. Default: the file's name.", schema{"pattern": documentNamePattern}, false},
	"document.server":  {"The server to which the document applies: a name or a pattern. Without it: every server.", patternLimits, false},
	"document.default": {"The decision on tools/call if no rule with an action matches.", oneOf([]string{"deny", "allow", "by_risk"}), false},
	"document.mode":    {"With observe, the rules and the default of the document decide nothing, and their decisions are recorded.", modes, false},
	"document.until":   {"The end of mode: observe, at most 30 days ahead, for example 2026-12-20.", nil, false},
	"document.tools":   {"Entries by exact tool name.", schema{"propertyNames": schema{"pattern": toolNamePattern}}, false},
	"document.rules":   {"Rules by patterns for tools, methods and callers. Their order has no effect.", nil, false},
	"document.tests":   {"Calls with the decisions that are expected. A document whose tests fail does not load.", nil, false},

	"rule.name":           {"The unique name of the rule. Decisions and limits refer to it.", schema{"pattern": documentNamePattern}, true},
	"rule.match":          {"The calls that the rule matches. Every key must match; an absent key matches everything.", nil, false},
	"rule.action":         {"What happens to a matching call. The strictest action of all matching rules wins: hide, deny, require_approval, allow.", oneOf(engine.Actions()), false},
	"rule.reason":         {"Text for the model and for people, for example what to do instead.", schema{"maxLength": engine.MaxReasonBytes}, false},
	"rule.rate_limit":     {"A limit or a list of limits. Every limit of every matching rule applies.", nil, false},
	"rule.approvers":      {"Groups whose members may approve. Default: any approver.", schema{"minLength": 1}, false},
	"rule.quorum":         {"How many people must approve. Default: 1.", between(1, engine.MaxQuorum), false},
	"rule.decide_within":  {"The time for people to decide, for example 1h.", nil, false},
	"rule.execute_within": {"The time for the caller to repeat the approved call, for example 10m.", nil, false},
	"rule.self_confirm":   {"Whether the user of the agent may also confirm the call.", nil, false},
	"rule.grant":          {"One approval covers several calls.", nil, false},
	"rule.approve_with":   {"How the people who approve must have signed in.", nil, false},
	"rule.idempotent":     {"Whether an approved call with an unknown outcome may be sent again.", nil, false},
	"rule.timeout":        {"The maximum time for the server's response, for example 20s. Progress does not extend it.", nil, false},
	"rule.forward":        {"The arguments must satisfy the tool's input schema, and the schema must declare all of them.", oneOf([]string{"strict"}), false},
	"rule.redact":         {"Values that are replaced before the client receives the result, or the server the arguments.", nil, false},
	"rule.record":         {"What is stored of the calls, besides the journal.", nil, false},
	"rule.needs_scope":    {"OAuth scopes that callers need, for example github.write. Calls without them are refused.", schema{"pattern": scopePattern}, false},
	"rule.when":           {"A condition, for example args.draft == true. The rule decides only if the condition is true.", conditionLimits, false},
	"rule.extra_args":     {"The condition ignores arguments that it does not read.", oneOf([]string{"allow"}), false},
	"rule.mode":           {"With observe, the rule decides nothing, and its decisions are recorded.", modes, false},
	"rule.until":          {"The end of mode: observe, at most 30 days ahead, for example 2026-12-20.", nil, false},
	"rule.otherwise":      {"The rule for calls for which the condition is false.", nil, false},

	"match.method":      {"Methods of MCP. Default: tools/call. Patterns with * and ?.", patternLimits, false},
	"match.tool":        {"Names of tools. Patterns with * and ?.", patternLimits, false},
	"match.prompt":      {"Names of prompts. Patterns with * and ?.", patternLimits, false},
	"match.uri":         {"URIs of resources. Patterns with * and ?.", patternLimits, false},
	"match.server":      {"Names of servers. Patterns with * and ?.", patternLimits, false},
	"match.agent":       {"Names of agents. Patterns with * and ?.", patternLimits, false},
	"match.principal":   {"Subjects of callers. Patterns with * and ?.", patternLimits, false},
	"match.groups":      {"Groups of callers. Patterns with * and ?.", patternLimits, false},
	"match.tenant":      {"Tenants of callers. Patterns with * and ?.", patternLimits, false},
	"match.category":    {"Categories of tools in the catalog.", oneOf(engine.Categories()), false},
	"match.risk":        {"Risks of tools in the catalog.", oneOf(engine.Risks()), false},
	"match.tags":        {"Tags of tools in the catalog.", schema{"pattern": `^[a-z0-9-]{1,64}$`}, false},
	"match.annotations": {"Hints of the tool's definition. Only hints of trusted servers match.", annotationNames(), false},

	"limit.max":    {"The maximum number of calls in any window.", between(1, engine.MaxLimit), true},
	"limit.window": {"The length of the window: a number of seconds, or for example 90s, 1h or 7d.", nil, true},
	"limit.per":    {"What the calls are counted by. Default: session, and in entries also server and tool.", oneOf(engine.Dimensions()), false},

	"redact.results":   {"What is replaced in results, before the client receives them.", nil, false},
	"redact.arguments": {"What is replaced in arguments, before approvers see them and the server receives them.", nil, false},
	"replaced.paths":   {"JSON Pointers, with * for every member or item, for example /items/*/token.", schema{"pattern": `^/.`, "maxLength": valuepath.MaxBytes}, false},
	"replaced.detect":  {"Detectors of secrets and personal data.", oneOf(detect.Names()), false},

	"record.arguments": {"A copy of the arguments, encrypted, in which secrets are replaced.", oneOf([]string{"redacted"}), true},

	"grant.calls":      {"How many calls one approval covers.", between(1, engine.MaxGrantCalls), true},
	"grant.within":     {"How long the grant is valid, for example 1h.", nil, true},
	"grant.critical":   {"Whether the grant may cover tools that are destructive, financial, of critical risk, or unclassified.", nil, false},
	"grant.where":      {"A condition. The grant covers only calls for which it is true.", conditionLimits, false},
	"grant.extra_args": {"The condition ignores arguments that it does not read.", oneOf([]string{"allow"}), false},

	"approve_with.max_age": {"The maximum time since the person has authenticated: 1m to 24h.", nil, false},
	"approve_with.acr":     {"The accepted values of the claim acr, at most 8.", schema{"pattern": `^[!#-\[\]-~]+$`, "maxLength": engine.MaxACRBytes}, false},

	"test.name":   {"What the test is about, for messages.", nil, false},
	"test.call":   {"The call.", nil, true},
	"test.caller": {"Who calls. Default: the subject local-agent, the agent local, the tenant default.", nil, false},
	"test.tool":   {"What the catalog knows about the tool. Without it the tool has no class.", nil, false},
	"test.now":    {"The time of the call, for example 2026-12-01T09:30:00Z. Without it the time is unknown.", nil, false},
	"test.want":   {"The decision that is expected.", nil, true},

	"call.server": {"The server's name. Default: the document's server, if it is not a pattern.", schema{"minLength": 1}, false},
	"call.method": {"The method. Default: tools/call, or the method that fits prompt or uri.", schema{"minLength": 1}, false},
	"call.tool":   {"The tool's name.", schema{"minLength": 1}, false},
	"call.prompt": {"The prompt's name.", schema{"minLength": 1}, false},
	"call.uri":    {"The resource's URI.", schema{"minLength": 1}, false},
	"call.args":   {"The arguments by name.", nil, false},

	"caller.subject": {"The subject.", schema{"minLength": 1}, false},
	"caller.agent":   {"The agent's name.", nil, false},
	"caller.tenant":  {"The tenant.", schema{"minLength": 1}, false},
	"caller.groups":  {"The groups.", nil, false},
	"caller.issuer":  {"The name of the issuer of the caller's JWT.", nil, false},
	"caller.client":  {"The OAuth client of the caller's JWT.", nil, false},
	"caller.scopes":  {"The OAuth scopes of the caller's JWT.", nil, false},
	"caller.chain":   {"The principals behind the caller, the nearest first.", nil, false},

	"tool.category":    {"The category.", oneOf(engine.Categories()), false},
	"tool.risk":        {"The risk.", oneOf(engine.Risks()), false},
	"tool.tags":        {"The tags.", nil, false},
	"tool.annotations": {"The hints of the definition, of a trusted server.", annotationNames(), false},
	"tool.trusted":     {"Whether the server is trusted.", nil, false},
	"tool.schema":      {"The input schema, for rules with forward: strict. Without it the arguments count as valid.", nil, false},
	"tool.arguments":   {"The names of all arguments that the tool's schema allows. Without it: any.", nil, false},

	"want.action": {"The action.", oneOf(engine.Actions()), true},
	"want.rule":   {"The rule that decides: its name, tools.TOOL for an entry, NAME.otherwise, or DOCUMENT/NAME.", schema{"minLength": 1}, false},
	"want.code":   {"The code that the caller gets.", oneOf(testCodes), false},
	"want.reason": {"The reason that the caller gets, exactly.", nil, false},
}

func annotationNames() schema {
	return schema{"propertyNames": oneOf(slices.Sorted(maps.Keys(engine.Annotations())))}
}
