// Package mcp contains the names and codes of the Model Context Protocol that the gateway uses. Comments cite sections
// of the specification.
package mcp

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// Modern is the first revision that does not use sessions. Revisions are compared only for equality and never ordered.
// A revision that is neither Modern nor one of [Supported] is unknown.
const Modern = "2026-07-28"

// These are the MCP methods that the gateway's code refers to.
const (
	MethodInitialize       = "initialize"
	MethodDiscover         = "server/discover" // of 2026-07-28
	MethodPing             = "ping"
	MethodToolsList        = "tools/list"
	MethodToolsCall        = "tools/call"
	MethodInitialized      = "notifications/initialized"
	MethodCancelled        = "notifications/cancelled"
	MethodProgress         = "notifications/progress"
	MethodMessage          = "notifications/message" // a log message from the server
	MethodToolsChanged     = "notifications/tools/list_changed"
	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodRootsChanged     = "notifications/roots/list_changed"
	MethodResourceUpdated  = "notifications/resources/updated"
	MethodElicit           = "elicitation/create"
	MethodSample           = "sampling/createMessage"
	MethodRoots            = "roots/list"
	MethodListen           = "subscriptions/listen"                     // of 2026-07-28; opens a stream of notifications
	MethodAcknowledged     = "notifications/subscriptions/acknowledged" // the first notification on a stream of MethodListen
)

// A Feature is a capability that a server may declare (MCP 2025-11-25, Lifecycle, Capability Negotiation). Method is
// the first method that clients call to use the feature.
type Feature struct {
	Capability, Method string
	// Options are the feature's options. If an option has a method, the gateway declares the option only if the policy
	// also allows that method.
	Options []FeatureOption
}

// FeatureOption is one option of a [Feature].
type FeatureOption struct{ Name, Method string }

// Features returns the features that the gateway declares to a client if the policy allows their methods.
func Features() []Feature {
	return []Feature{
		{"completions", "completion/complete", nil},
		{"logging", MethodSetLevel, nil},
		{"prompts", "prompts/list", []FeatureOption{{"listChanged", ""}}},
		{"resources", "resources/list", []FeatureOption{{"listChanged", ""}, {"subscribe", MethodSubscribe}}},
		{"tools", MethodToolsList, []FeatureOption{{"listChanged", ""}}},
	}
}

// MethodSubscribe subscribes to updates of a resource. MethodUnsubscribe ends the subscription (MCP 2025-11-25,
// Resources, Subscriptions). MethodSetLevel sets the minimum level of log messages that the client receives (MCP
// 2025-11-25, Logging).
const (
	MethodSubscribe   = "resources/subscribe"
	MethodUnsubscribe = "resources/unsubscribe"
	MethodSetLevel    = "logging/setLevel"
)

// ExtensionTasks is an MCP extension (Tasks, 2026-07-28). With this extension, a server may answer a call with a task,
// which the client polls for the result. The other constants are the methods of the extension.
const (
	ExtensionTasks    = "io.modelcontextprotocol/tasks"
	MethodTasksGet    = "tasks/get"
	MethodTasksUpdate = "tasks/update"
	MethodTasksCancel = "tasks/cancel"
)

// LogLevels returns the levels of log messages in ascending order (MCP 2025-11-25, Logging).
func LogLevels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

// MethodForNotification returns the method to which a server's notification is related, or "" if the notification is
// unknown. The gateway forwards the notification only to clients that may use the returned method. Clients call this
// method, unless it is elicitation/create, which servers call.
func MethodForNotification(notification string) string {
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

// IsVendorNotification reports whether a method has the form of a notification but is not defined by MCP.
func IsVendorNotification(method string) bool {
	return mcpmethod.IsNotification(method) && !slices.Contains(mcpmethod.All(), method)
}

// IsServerNotification reports whether a notification applies to the whole server and not only to one session.
func IsServerNotification(notification string) bool {
	return strings.HasSuffix(notification, "/list_changed") && MethodForNotification(notification) != ""
}

// An Ability is a capability that a client may declare to a server. Method is the method that the server calls to use
// the capability.
type Ability struct {
	Capability, Method string
	Options            []Option
}

// Option is an option of an [Ability]. A client that supports the option declares it as a member with this name and
// JSON value.
type Option struct{ Name, Value string }

// CapabilitiesJSON returns the raw capabilities object of a client with these abilities and extensions.
func CapabilitiesJSON(abilities []Ability, extensions ...string) string {
	var has []string
	for _, a := range abilities {
		var options []string
		for _, o := range a.Options {
			options = append(options, `"`+o.Name+`":`+o.Value)
		}
		has = append(has, `"`+a.Capability+`":{`+strings.Join(options, ",")+`}`)
	}
	return "{" + strings.Join(append(has, ExtensionMembers(extensions)...), ",") + "}"
}

// ExtensionMembers returns the raw members that declare extensions in a capabilities object. It returns no members if
// there are no extensions.
func ExtensionMembers(extensions []string) []string {
	if len(extensions) == 0 {
		return nil
	}
	return []string{`"extensions":{"` + strings.Join(extensions, `":{},"`) + `":{}}`}
}

// Abilities returns the client capabilities that the gateway can declare to a server. It declares those that the client
// has and whose methods the policy allows.
func Abilities() []Ability {
	return []Ability{
		{"elicitation", MethodElicit, []Option{{"form", "{}"}, {"url", "{}"}}},
		{"roots", MethodRoots, []Option{{"listChanged", "true"}}},
		{"sampling", MethodSample, []Option{{"context", "{}"}, {"tools", "{}"}}},
	}
}

// OfferedMethods returns the methods for which the gateway asks the policy service in advance whether they are allowed.
// These are the methods of [Features], [Abilities] and extensions, and the notifications that MCP defines.
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

// AsksClient reports whether a server may send a request with this method to a client. It returns true for ping, and
// false for methods that MCP does not define.
func AsksClient(method string) bool {
	return method == MethodPing || slices.ContainsFunc(Abilities(), func(a Ability) bool { return a.Method == method })
}

// AsksServer reports whether a client may send a request with this method to a server. It returns true for ping, and
// false for methods that MCP does not define.
func AsksServer(method string) bool {
	return method == MethodPing || slices.Contains(mcpmethod.All(), method) && !AsksClient(method)
}

// IsMethodOf2026 reports whether a method exists only in revision 2026-07-28.
func IsMethodOf2026(method string) bool { return method == MethodDiscover || method == MethodListen }

// IsMultiRound reports whether the answer to a method may contain requests to the client (MCP 2026-07-28, Multi
// Round-Trip Requests).
func IsMultiRound(method string) bool {
	return method == MethodToolsCall || method == "prompts/get" || method == "resources/read"
}

// IsCacheable reports whether the results of a method say how long they may be cached (MCP 2026-07-28, Caching).
func IsCacheable(method string) bool {
	switch method {
	case MethodDiscover, MethodToolsList, "prompts/list", "resources/list", "resources/templates/list", "resources/read":
		return true
	default:
		return false
	}
}

// IsRemoved reports whether a method exists in revisions that use sessions but was removed in revision 2026-07-28.
func IsRemoved(method string) bool {
	switch method {
	case MethodInitialize, MethodPing, MethodSetLevel, MethodSubscribe, MethodUnsubscribe, "tasks/list", "tasks/result":
		return true
	default:
		return false
	}
}

// These are error codes from JSON-RPC 2.0 (section 5.1) and MCP 2026-07-28, and codes that the gateway defines. The
// gateway's codes are outside the range from -32768 to -32000.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodUnknown      = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeCapabilityMissing  = -32021
	CodeVersionUnsupported = -32022
	// CodeElicitation means that the user must open a URL before the request can be executed (MCP 2025-11-25, Elicitation,
	// URL Mode).
	CodeElicitation = -32042
	// CodeRefused means that the gateway has refused a request other than tools/call.
	CodeRefused = -31403
)

// ToolApprovalWait is the name of a tool that the gateway adds to every server.
const ToolApprovalWait = "sluice_approval_wait"

// These are the keys of `_meta` that the gateway defines.
const (
	// MetaDecision is the key for those parts of a policy decision on a call that the caller may see.
	MetaDecision = "dev.sluice/decision"
	// MetaUnavailable is the key for the list of servers that are missing from a combined list, with the reason for
	// each.
	MetaUnavailable = "dev.sluice/unavailable"
	// MetaLeftOut is the key for the list of elements that are missing from a combined list, with the reason for each.
	MetaLeftOut = "dev.sluice/leftOut"
)

// These are keys of `_meta` that revision 2026-07-28 defines.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	// MetaLogLevel is the key for the minimum level of log messages that the client wants to receive before the answer.
	// It may be absent.
	MetaLogLevel = "io.modelcontextprotocol/logLevel"
	// MetaServerInfo is the key for the description of the server that answers. MetaSubscription is the key for the id
	// of the subscription to which a notification belongs.
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// These are values of resultType. ResultComplete means that the result is final. The next value means that the result
// contains requests to the client, which afterwards repeats its own request. The last value means that the result is a
// task whose own result follows later.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// Supported returns the revisions that use sessions and that the gateway supports, with the newest first.
func Supported() []string {
	return []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
}

// IsSupported reports whether a revision is one of [Supported].
func IsSupported(version string) bool { return slices.Contains(Supported(), version) }

// IsRevision reports whether a string has the form of a revision, which is a date. If a client requests an unsupported
// revision of this form, the client may be newer than the gateway.
func IsRevision(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil
}

// HasFormElicitation reports whether a revision supports elicitation by a form (MCP 2025-06-18, Elicitation).
func HasFormElicitation(version string) bool {
	return version == "2025-11-25" || version == "2025-06-18"
}

// MethodNeedsNoRule reports whether a method is allowed even if no policy rule allows it. This includes tools/list,
// whose response is filtered.
func MethodNeedsNoRule(method string) bool {
	switch method {
	case MethodInitialize, MethodDiscover, MethodPing, MethodToolsList, MethodInitialized, MethodCancelled, MethodProgress:
		return true
	default:
		return false
	}
}
