// Package mcpmethod holds the names of the methods of MCP, of all revisions and both
// directions, for those who have to tell a method from another spelling of it.
package mcpmethod

import "strings"

// All returns every method, each once.
func All() []string {
	return []string{
		"initialize", "ping", "server/discover",
		"tools/list", "tools/call", "prompts/list", "prompts/get",
		"resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
		"completion/complete", "logging/setLevel", "subscriptions/listen",
		"tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update",
		"sampling/createMessage", "elicitation/create", "roots/list",
		"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/message",
		"notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
		"notifications/resources/updated", "notifications/roots/list_changed", "notifications/elicitation/complete",
		"notifications/tasks/status", "notifications/tasks", "notifications/subscriptions/acknowledged",
	}
}

// IsNotification reports whether a method is one of a notification.
func IsNotification(method string) bool { return strings.HasPrefix(method, "notifications/") }

// IsProtocol reports whether a method is one by which clients and servers learn of each other, and not one that does
// something: initialize, ping, discovery, what a client listens to, lists and notifications.
func IsProtocol(method string) bool {
	switch method {
	case "initialize", "ping", "server/discover", "subscriptions/listen", "logging/setLevel":
		return true
	default:
		return IsNotification(method) || strings.HasSuffix(method, "/list")
	}
}

// Notifications returns those of the protocol that pass unless a rule denies them, and as far as what they
// are about does. Of the others some need no rule, which is [Unasked], and tasks' are not carried.
func Notifications() []string {
	return []string{
		"notifications/message", "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
		"notifications/resources/updated", "notifications/roots/list_changed", "notifications/elicitation/complete",
	}
}

// Unasked returns the methods about which policy is not asked, for they need no rule.
func Unasked() []string {
	return []string{
		"initialize", "ping", "tools/list", "server/discover", "subscriptions/listen",
		"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/subscriptions/acknowledged",
	}
}
