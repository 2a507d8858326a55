// Package mcp defines the names and codes of the Model Context Protocol that the gateway uses. Comments cite sections
// of the specification.
package mcp

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// Modern is the first revision without sessions. Code compares revisions only for equality and never orders them. A
// revision that is neither Modern nor one of [Supported] is unknown.
const Modern = "2026-07-28"

// These are the MCP methods that the gateway's code refers to.
const (
	MethodInitialize       = "initialize"
	MethodDiscover         = "server/discover" // only in 2026-07-28
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
	MethodListen           = "subscriptions/listen"                     // only in 2026-07-28; opens a notification stream
	MethodAcknowledged     = "notifications/subscriptions/acknowledged" // first on each stream from MethodListen
)

// A Feature is a capability that a server may declare (MCP 2025-11-25, Lifecycle, Capability Negotiation). Clients that
// use the feature call Method first.
type Feature struct {
	Capability, Method string
	// Options are the feature's options. The gateway declares an option only if the policy allows the option's method,
	// if it has one.
	Options []FeatureOption
}

// FeatureOption is one option of a [Feature].
type FeatureOption struct{ Name, Method string }

// Features returns the features that the gateway can declare to a client. It declares those whose methods the policy
// allows.
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
// Resources, Subscriptions). MethodSetLevel sets the lowest level of the log messages that the client receives (MCP
// 2025-11-25, Logging).
const (
	MethodSubscribe   = "resources/subscribe"
	MethodUnsubscribe = "resources/unsubscribe"
	MethodSetLevel    = "logging/setLevel"
)

// ExtensionTasks is an MCP extension (Tasks, 2026-07-28). A server with this extension may answer a call with a task,
// which the client polls for the result. The other constants are the extension's methods.
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

// MethodForNotification returns the method to which a server's notification belongs, or "" if the notification is
// unknown. The gateway forwards the notification only to clients for which the policy allows this method. Servers call
// elicitation/create, and clients call all other methods.
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

// IsVendorNotification reports whether a method looks like a notification but is not defined by MCP.
func IsVendorNotification(method string) bool {
	return mcpmethod.IsNotification(method) && !slices.Contains(mcpmethod.All(), method)
}

// IsServerNotification reports whether a notification concerns the whole server, and not only one session.
func IsServerNotification(notification string) bool {
	return strings.HasSuffix(notification, "/list_changed") && MethodForNotification(notification) != ""
}

// An Ability is a capability that a client may declare to a server. The server uses the capability by calling Method.
type Ability struct {
	Capability, Method string
	Options            []Option
}

// Option is an option of an [Ability]. A client declares the option with a member that has this name and this JSON
// value.
type Option struct{ Name, Value string }

// CapabilitiesJSON returns the raw capabilities object of a client that has these abilities and extensions.
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

// ExtensionMembers returns the raw members of a capabilities object that declare the extensions. It returns no members
// if there are no extensions.
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

// OfferedMethods returns the methods about which the gateway asks the policy service before a client uses them. These
// are the methods of [Features], [Abilities] and extensions, and the notifications that MCP defines.
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
// false for all methods that MCP does not define.
func AsksClient(method string) bool {
	return method == MethodPing || slices.ContainsFunc(Abilities(), func(a Ability) bool { return a.Method == method })
}

// AsksServer reports whether a client may send a request with this method to a server. It returns true for ping, and
// false for all methods that MCP does not define.
func AsksServer(method string) bool {
	return method == MethodPing || slices.Contains(mcpmethod.All(), method) && !AsksClient(method)
}

// IsMethodOf2026 reports whether a method exists only in revision 2026-07-28.
func IsMethodOf2026(method string) bool { return method == MethodDiscover || method == MethodListen }

// IsMultiRound reports whether an answer to the method may contain requests to the client (MCP 2026-07-28, Multi
// Round-Trip Requests).
func IsMultiRound(method string) bool {
	return method == MethodToolsCall || method == "prompts/get" || method == "resources/read"
}

// IsCacheable reports whether a result of the method states how long it may be cached (MCP 2026-07-28, Caching).
func IsCacheable(method string) bool {
	switch method {
	case MethodDiscover, MethodToolsList, "prompts/list", "resources/list", "resources/templates/list", "resources/read":
		return true
	default:
		return false
	}
}

// IsRemoved reports whether the method exists in revisions that use sessions but was removed in revision 2026-07-28.
func IsRemoved(method string) bool {
	switch method {
	case MethodInitialize, MethodPing, MethodSetLevel, MethodSubscribe, MethodUnsubscribe, "tasks/list", "tasks/result":
		return true
	default:
		return false
	}
}

// These error codes are defined by JSON-RPC 2.0 (section 5.1), by MCP 2026-07-28 or by the gateway. The gateway's codes
// are outside the range from -32768 to -32000.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodUnknown      = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeCapabilityMissing  = -32021
	CodeVersionUnsupported = -32022
	// CodeElicitation means that the user must open a URL before the server can execute the request (MCP 2025-11-25,
	// Elicitation, URL Mode).
	CodeElicitation = -32042
	// CodeRefused means that the gateway has refused a request with a method other than tools/call.
	CodeRefused = -31403
)

// ToolApprovalWait is the name of a tool that the gateway adds to every server's list. With this tool, a client can
// wait for the decision on an approval.
const ToolApprovalWait = "sluice_approval_wait"

// The gateway defines these keys of `_meta`.
const (
	// MetaDecision is the key of the policy decision on a call. Its value contains only the parts that the caller may
	// see.
	MetaDecision = "dev.sluice/decision"
	// MetaUnavailable is the key of the servers that are missing from a joined list, with the reason for each.
	MetaUnavailable = "dev.sluice/unavailable"
	// MetaLeftOut is the key of the elements that are missing from a joined list, with the reason for each.
	MetaLeftOut = "dev.sluice/leftOut"
)

// Revision 2026-07-28 defines these keys of `_meta`.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	// MetaLogLevel is the key of the lowest level of log messages that the client wants to receive before the answer.
	// It may be absent.
	MetaLogLevel = "io.modelcontextprotocol/logLevel"
	// MetaServerInfo is the key of the description of the server that answers. MetaSubscription is the key of the id of
	// the subscription to which a notification belongs.
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// These are the values of resultType. ResultComplete means that the result is final. ResultInputRequired means that the
// result contains requests to the client, which answers them and then repeats its own request. ResultTask means that
// the result is a task, whose own result follows later.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// Supported returns the revisions with sessions that the gateway supports, newest first.
func Supported() []string {
	return []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
}

// IsSupported reports whether a revision is one of [Supported].
func IsSupported(version string) bool { return slices.Contains(Supported(), version) }

// IsRevision reports whether a string has the form of a revision, which is a date. If a client requests an unknown
// revision of this form, the client may be newer than the gateway.
func IsRevision(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil
}

// HasFormElicitation reports whether a revision supports elicitation with forms (MCP 2025-06-18, Elicitation).
func HasFormElicitation(version string) bool {
	return version == "2025-11-25" || version == "2025-06-18"
}

// MethodNeedsNoRule reports whether a method is allowed even if no policy rule allows it. One of these methods is
// tools/list, because the gateway filters the listed tools.
func MethodNeedsNoRule(method string) bool {
	switch method {
	case MethodInitialize, MethodDiscover, MethodPing, MethodToolsList, MethodInitialized, MethodCancelled, MethodProgress:
		return true
	default:
		return false
	}
}
