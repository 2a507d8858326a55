// Package mcp contains the names and numbers of the Model Context Protocol that the gateway uses, each with its source
// in the specification.
package mcp

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// Modern is the first revision without sessions. A revision is a name and is never compared by order: a revision that
// is not in one of the lists below is unknown.
const Modern = "2026-07-28"

// Methods that the gateway passes without a rule, or uses itself.
const (
	MethodInitialize       = "initialize"
	MethodDiscover         = "server/discover" // of 2026-07-28
	MethodPing             = "ping"
	MethodToolsList        = "tools/list"
	MethodToolsCall        = "tools/call"
	MethodInitialized      = "notifications/initialized"
	MethodCancelled        = "notifications/cancelled"
	MethodProgress         = "notifications/progress"
	MethodMessage          = "notifications/message" // a log message of the server
	MethodToolsChanged     = "notifications/tools/list_changed"
	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodRootsChanged     = "notifications/roots/list_changed"
	MethodResourceUpdated  = "notifications/resources/updated"
	MethodElicit           = "elicitation/create"
	MethodSample           = "sampling/createMessage"
	MethodRoots            = "roots/list"
	MethodListen           = "subscriptions/listen"                     // of 2026-07-28; opens a stream of notifications
	MethodAcknowledged     = "notifications/subscriptions/acknowledged" // the first notification on that stream
)

// A Feature is a capability that a server may offer (MCP 2025-11-25, Lifecycle, Capability Negotiation), with the
// method that its users call first, and its options.
type Feature struct {
	Capability, Method string
	// Options are the names of options. An option with a method is offered only if that method is allowed, too.
	Options []FeatureOption
}

// FeatureOption is one option of a [Feature].
type FeatureOption struct{ Name, Method string }

// Features returns the features that the gateway offers if policy allows the method.
func Features() []Feature {
	return []Feature{
		{"completions", "completion/complete", nil},
		{"logging", MethodSetLevel, nil},
		{"prompts", "prompts/list", []FeatureOption{{"listChanged", ""}}},
		{"resources", "resources/list", []FeatureOption{{"listChanged", ""}, {"subscribe", MethodSubscribe}}},
		{"tools", MethodToolsList, []FeatureOption{{"listChanged", ""}}},
	}
}

// MethodSubscribe subscribes to changes of a resource, and MethodUnsubscribe ends that (MCP 2025-11-25, Resources,
// Subscriptions). MethodSetLevel sets the lowest level of log messages that the client gets (Logging).
const (
	MethodSubscribe   = "resources/subscribe"
	MethodUnsubscribe = "resources/unsubscribe"
	MethodSetLevel    = "logging/setLevel"
)

// ExtensionTasks is the extension by which a call is answered with a task that its client polls (its specification of
// 2026-07-28), with its methods.
const (
	ExtensionTasks    = "io.modelcontextprotocol/tasks"
	MethodTasksGet    = "tasks/get"
	MethodTasksUpdate = "tasks/update"
	MethodTasksCancel = "tasks/cancel"
)

// LogLevels returns the levels of log messages, the lowest first (MCP 2025-11-25, Logging).
func LogLevels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

// Tells returns the method for which a server's notification is useful: a client that may not call that method, or not
// receive it as a server request, has no use for the notification. It is empty for unknown notifications.
func Tells(notification string) string {
	switch notification {
	case MethodToolsChanged:
		return MethodToolsList
	case MethodPromptsChanged:
		return "prompts/list"
	case MethodResourcesChanged:
		return "resources/list"
	case MethodResourceUpdated:
		return MethodSubscribe
	case "notifications/elicitation/complete":
		return MethodElicit
	default:
		return ""
	}
}

// IsOwnNotification reports whether a method is a notification that the protocol does not define.
func IsOwnNotification(method string) bool {
	return mcpmethod.IsNotification(method) && !slices.Contains(mcpmethod.All(), method)
}

// AboutServer reports whether a notification concerns the server itself and not a single session.
func AboutServer(notification string) bool {
	return strings.HasSuffix(notification, "/list_changed") && Tells(notification) != ""
}

// An Ability is a capability that a client may offer to a server, with the method by which the server uses it, and its
// options.
type Ability struct {
	Capability, Method string
	Options            []Option
}

// Option is an option of an [Ability]: its name, and its JSON value if the client has it.
type Option struct{ Name, Value string }

// Told returns the raw capabilities object of a client with these abilities and extensions.
func Told(abilities []Ability, extensions ...string) string {
	var has []string
	for _, a := range abilities {
		var options []string
		for _, o := range a.Options {
			options = append(options, `"`+o.Name+`":`+o.Value)
		}
		has = append(has, `"`+a.Capability+`":{`+strings.Join(options, ",")+`}`)
	}
	return "{" + strings.Join(append(has, Extended(extensions)...), ",") + "}"
}

// Extended returns the raw members of capabilities that declare extensions: one, or none without extensions.
func Extended(extensions []string) []string {
	if len(extensions) == 0 {
		return nil
	}
	return []string{`"extensions":{"` + strings.Join(extensions, `":{},"`) + `":{}}`}
}

// Abilities returns the abilities that the gateway declares to a server if the client has them and policy allows the
// method.
func Abilities() []Ability {
	return []Ability{
		{"elicitation", MethodElicit, []Option{{"form", "{}"}, {"url", "{}"}}},
		{"roots", MethodRoots, []Option{{"listChanged", "true"}}},
		{"sampling", MethodSample, []Option{{"context", "{}"}, {"tools", "{}"}}},
	}
}

// OfferedMethods returns the methods about which policy is asked: those of [Features], [Abilities] and extensions, and
// the notifications of the protocol.
func OfferedMethods() []string {
	out := mcpmethod.Notifications()
	for _, f := range Features() {
		if f.Method != MethodToolsList { // tools/list needs no rule
			out = append(out, f.Method)
		}
	}
	out = append(out, MethodSubscribe, MethodTasksGet)
	for _, a := range Abilities() {
		out = append(out, a.Method)
	}
	return out
}

// AsksClient reports whether a server can send a request of this method to a client, and AsksServer whether a client
// can send one to a server. Both are true for ping, and false for methods that the protocol does not define.
func AsksClient(method string) bool {
	return method == MethodPing || slices.ContainsFunc(Abilities(), func(a Ability) bool { return a.Method == method })
}

// AsksServer is described at [AsksClient].
func AsksServer(method string) bool {
	return method == MethodPing || slices.Contains(mcpmethod.All(), method) && !AsksClient(method)
}

// IsModern reports whether a method exists only in 2026-07-28.
func IsModern(method string) bool { return method == MethodDiscover || method == MethodListen }

// IsMultiRound reports whether the answer to a method may contain requests to the client (MCP 2026-07-28, Multi
// Round-Trip Requests).
func IsMultiRound(method string) bool {
	return method == MethodToolsCall || method == "prompts/get" || method == "resources/read"
}

// IsCacheable reports whether results of a method say how long they may be cached (MCP 2026-07-28, Caching).
func IsCacheable(method string) bool {
	switch method {
	case MethodDiscover, MethodToolsList, "prompts/list", "resources/list", "resources/templates/list", "resources/read":
		return true
	default:
		return false
	}
}

// IsRemoved reports whether a method of the revisions with sessions does not exist in 2026-07-28.
func IsRemoved(method string) bool {
	switch method {
	case MethodInitialize, MethodPing, MethodSetLevel, MethodSubscribe, MethodUnsubscribe, "tasks/list", "tasks/result":
		return true
	default:
		return false
	}
}

// Error codes of JSON-RPC 2.0, section 5.1, of MCP 2026-07-28, and the gateway's own, which are outside of -32768 to
// -32000.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodUnknown      = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeCapabilityMissing  = -32021
	CodeVersionUnsupported = -32022
	// CodeElicitation means that an address must be opened before the request (MCP 2025-11-25, Elicitation, URL Mode).
	CodeElicitation = -32042
	// CodeRefused means that a request other than tools/call was refused.
	CodeRefused = -31403
)

// ToolApprovalWait is the gateway's own tool, on every server.
const ToolApprovalWait = "sluice_approval_wait"

// Keys of `_meta` that the gateway defines.
const (
	// MetaDecision is the part of the decision on a call that the caller gets.
	MetaDecision = "dev.sluice/decision"
	// MetaUnavailable lists the servers that are missing in a list of all servers, and why.
	MetaUnavailable = "dev.sluice/unavailable"
	// MetaLeftOut lists the elements of servers' lists that are missing in a list of all servers, and why.
	MetaLeftOut = "dev.sluice/leftOut"
)

// Keys of `_meta` in requests of 2026-07-28.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	// MetaLogLevel is the lowest level of log messages that come with the answer; may be absent.
	MetaLogLevel = "io.modelcontextprotocol/logLevel"
	// MetaServerInfo describes the answering server. MetaSubscription is the id of the subscription that a notification
	// belongs to.
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// The values of resultType: a final answer, an answer with requests to the client after which the request is repeated,
// and a task whose answer comes later.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// Supported returns the revisions with sessions that the gateway speaks, newest first.
func Supported() []string {
	return []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
}

// IsSupported reports whether a revision is one of [Supported].
func IsSupported(version string) bool { return slices.Contains(Supported(), version) }

// IsRevision reports whether a text has the form of a revision, which is a date. A client that asks for an unsupported
// one may be newer than this gateway.
func IsRevision(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil
}

// Elicits reports whether a revision has elicitation with a form (MCP 2025-06-18, "Elicitation").
func Elicits(version string) bool { return version == "2025-11-25" || version == "2025-06-18" }

// AlwaysPasses reports whether a method needs no rule. The answer to tools/list is filtered.
func AlwaysPasses(method string) bool {
	switch method {
	case MethodInitialize, MethodDiscover, MethodPing, MethodToolsList, MethodInitialized, MethodCancelled, MethodProgress:
		return true
	default:
		return false
	}
}
