// Package mcp holds the names and numbers of the Model Context Protocol that the
// gateway acts on, each with the clause that it comes from.
package mcp

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// Modern is the first revision without sessions. A revision is a name and never
// compared as text: what is not in one of the lists below is unknown.
const Modern = "2026-07-28"

// Methods that always pass the gateway, and that it acts on itself.
const (
	MethodInitialize       = "initialize"
	MethodDiscover         = "server/discover" // of 2026-07-28
	MethodPing             = "ping"
	MethodToolsList        = "tools/list"
	MethodToolsCall        = "tools/call"
	MethodInitialized      = "notifications/initialized"
	MethodCancelled        = "notifications/cancelled"
	MethodProgress         = "notifications/progress"
	MethodMessage          = "notifications/message" // a line of the server's log
	MethodToolsChanged     = "notifications/tools/list_changed"
	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodRootsChanged     = "notifications/roots/list_changed"
	MethodResourceUpdated  = "notifications/resources/updated"
	MethodElicit           = "elicitation/create"
	MethodSample           = "sampling/createMessage"
	MethodRoots            = "roots/list"
	MethodListen           = "subscriptions/listen"                     // of 2026-07-28, for what comes on a stream
	MethodAcknowledged     = "notifications/subscriptions/acknowledged" // the first that does
)

// A Feature is what a server may offer, by its name among the capabilities (MCP 2025-11-25,
// Lifecycle, Capability Negotiation), the method that who uses it calls first, and what a
// client may know of it besides.
type Feature struct {
	Capability, Method string
	// Options are names, of which one whose method is not empty needs that one too.
	Options []FeatureOption
}

// FeatureOption is one of them.
type FeatureOption struct{ Name, Method string }

// Features returns those that the gateway offers where policy allows the method.
func Features() []Feature {
	return []Feature{
		{"completions", "completion/complete", nil},
		{"logging", MethodSetLevel, nil},
		{"prompts", "prompts/list", []FeatureOption{{"listChanged", ""}}},
		{"resources", "resources/list", []FeatureOption{{"listChanged", ""}, {"subscribe", MethodSubscribe}}},
		{"tools", MethodToolsList, []FeatureOption{{"listChanged", ""}}},
	}
}

// MethodSubscribe asks to be told when a resource changes, and MethodUnsubscribe to be told no longer
// (MCP 2025-11-25, Resources, Subscriptions). MethodSetLevel says which lines of a server's log a client
// wants (Logging).
const (
	MethodSubscribe   = "resources/subscribe"
	MethodUnsubscribe = "resources/unsubscribe"
	MethodSetLevel    = "logging/setLevel"
)

// ExtensionTasks is the extension by which a call is answered with a task that its client asks about
// (its specification of 2026-07-28), and these are its methods.
const (
	ExtensionTasks    = "io.modelcontextprotocol/tasks"
	MethodTasksGet    = "tasks/get"
	MethodTasksUpdate = "tasks/update"
	MethodTasksCancel = "tasks/cancel"
)

// LogLevels returns the levels of lines of a server's log, the least first (MCP 2025-11-25, Logging).
func LogLevels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

// Tells returns the method that a server's notification serves: who may not call, or be asked
// by, that one has no use for it. It is empty for one that is not known.
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

// IsOwnNotification reports whether a method is a notification that the protocol does not know.
func IsOwnNotification(method string) bool {
	return mcpmethod.IsNotification(method) && !slices.Contains(mcpmethod.All(), method)
}

// AboutServer reports whether a notification is about the server itself, whatever session it
// is of.
func AboutServer(notification string) bool {
	return strings.HasSuffix(notification, "/list_changed") && Tells(notification) != ""
}

// An Ability is what a client may offer to do for a server, by its name among the
// capabilities, the method by which it is asked for, and what a server may know of it
// besides.
type Ability struct {
	Capability, Method string
	Options            []Option
}

// Option is one thing that a server may know of an ability: its name, and what stands there
// in JSON where the client has it.
type Option struct{ Name, Value string }

// Told returns abilities, and these extensions, as an object that says them, as a client's
// capabilities do.
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

// Extended are the members of capabilities that say extensions: one, or none where there are none.
func Extended(extensions []string) []string {
	if len(extensions) == 0 {
		return nil
	}
	return []string{`"extensions":{"` + strings.Join(extensions, `":{},"`) + `":{}}`}
}

// Abilities returns those that the gateway tells a server of where the client has them and
// policy allows the method.
func Abilities() []Ability {
	return []Ability{
		{"elicitation", MethodElicit, []Option{{"form", "{}"}, {"url", "{}"}}},
		{"roots", MethodRoots, []Option{{"listChanged", "true"}}},
		{"sampling", MethodSample, []Option{{"context", "{}"}, {"tools", "{}"}}},
	}
}

// OfferedMethods returns the methods of [Features], [Abilities] and extensions that policy is asked about,
// and the notifications of the protocol.
func OfferedMethods() []string {
	out := mcpmethod.Notifications()
	for _, f := range Features() {
		if f.Method != MethodToolsList { // which needs no rule
			out = append(out, f.Method)
		}
	}
	out = append(out, MethodSubscribe, MethodTasksGet)
	for _, a := range Abilities() {
		out = append(out, a.Method)
	}
	return out
}

// AsksClient reports whether a method of the protocol is one by which servers ask clients, and
// AsksServer whether it is one by which clients ask servers. A ping is both, and what the
// protocol does not know is neither.
func AsksClient(method string) bool {
	return method == MethodPing || slices.ContainsFunc(Abilities(), func(a Ability) bool { return a.Method == method })
}

// AsksServer is described at [AsksClient].
func AsksServer(method string) bool {
	return method == MethodPing || slices.Contains(mcpmethod.All(), method) && !AsksClient(method)
}

// IsModern reports whether a method is of 2026-07-28 alone.
func IsModern(method string) bool { return method == MethodDiscover || method == MethodListen }

// IsMultiRound reports whether a server may ask the client in its answer to a method (MCP 2026-07-28,
// Multi Round-Trip Requests).
func IsMultiRound(method string) bool {
	return method == MethodToolsCall || method == "prompts/get" || method == "resources/read"
}

// IsCacheable reports whether results of a method say for how long a cache may keep them (MCP 2026-07-28,
// Caching).
func IsCacheable(method string) bool {
	switch method {
	case MethodDiscover, MethodToolsList, "prompts/list", "resources/list", "resources/templates/list", "resources/read":
		return true
	default:
		return false
	}
}

// IsRemoved reports whether 2026-07-28 no longer knows a method of the revisions with sessions.
func IsRemoved(method string) bool {
	switch method {
	case MethodInitialize, MethodPing, MethodSetLevel, MethodSubscribe, MethodUnsubscribe, "tasks/list", "tasks/result":
		return true
	default:
		return false
	}
}

// Error codes of JSON-RPC 2.0, section 5.1, of MCP 2026-07-28, and our own,
// which lie outside -32768 to -32000.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodUnknown      = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeCapabilityMissing  = -32021
	CodeVersionUnsupported = -32022
	// CodeElicitation is that of a request for which an address has to be opened first (MCP
	// 2025-11-25, Elicitation, URL Mode).
	CodeElicitation = -32042
	// CodeRefused is the code of a request other than tools/call that was refused.
	CodeRefused = -31403
)

// ToolApprovalWait is the gateway's own tool, on every server.
const ToolApprovalWait = "sluice_approval_wait"

// Keys of `_meta` that are ours.
const (
	// MetaDecision is what a caller learns about the decision on its call.
	MetaDecision = "dev.sluice/decision"
	// MetaUnavailable is which servers are left out of a list of those of all, and why.
	MetaUnavailable = "dev.sluice/unavailable"
	// MetaLeftOut is which elements of servers' lists are left out of a list of those of all, and why.
	MetaLeftOut = "dev.sluice/leftOut"
)

// Keys of `_meta` that every request of 2026-07-28 has.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	// MetaLogLevel is the least level of lines of the log that come with the answer; may be absent.
	MetaLogLevel = "io.modelcontextprotocol/logLevel"
	// MetaServerInfo is who answers, and MetaSubscription the id of the subscription by which a
	// notification comes.
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// The resultType of an answer that needs nothing more, of one that asks the client and has the request
// made again, and of one that stands for the answer that comes later.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// Supported returns the revisions with sessions that the gateway speaks, newest first.
func Supported() []string {
	return []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
}

// IsSupported reports whether a revision is one of them.
func IsSupported(version string) bool { return slices.Contains(Supported(), version) }

// IsRevision reports whether a text is written as revisions are, which are named by a
// day: a client that asks for one that is not spoken may be newer than this gateway.
func IsRevision(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil
}

// Elicits reports whether a revision knows elicitation by a form (MCP 2025-06-18,
// "Elicitation").
func Elicits(version string) bool { return version == "2025-11-25" || version == "2025-06-18" }

// AlwaysPasses reports whether a method passes without a rule that names it.
// tools/list is filtered on its way back.
func AlwaysPasses(method string) bool {
	switch method {
	case MethodInitialize, MethodDiscover, MethodPing, MethodToolsList, MethodInitialized, MethodCancelled, MethodProgress:
		return true
	default:
		return false
	}
}
