// Package mcpmethod contains the names of all MCP methods, for all protocol revisions and both directions. Other
// packages use it to detect misspelled methods.
package mcpmethod

import "strings"

// All returns every MCP method once.
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

// IsNotification reports whether a method is a notification.
func IsNotification(method string) bool { return strings.HasPrefix(method, "notifications/") }

// IsProtocol reports whether clients and servers use a method only to learn about each other, and not to execute work.
// These methods are initialize, ping, discovery, subscriptions, lists and notifications.
func IsProtocol(method string) bool {
	switch method {
	case "initialize", "ping", "server/discover", "subscriptions/listen", "logging/setLevel":
		return true
	default:
		return IsNotification(method) || strings.HasSuffix(method, "/list")
	}
}

// Notifications returns the notifications that are forwarded by default. They are not forwarded if a rule denies them,
// or denies access to the tools, prompts or resources that they are about. Some other notifications need no rule (see
// [WithoutRule]). Notifications about tasks are not forwarded.
func Notifications() []string {
	return []string{
		"notifications/message", "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
		"notifications/resources/updated", "notifications/roots/list_changed", "notifications/elicitation/complete",
	}
}

// WithoutRule returns the methods that need no rule. The gateway does not call the policy service for them.
func WithoutRule() []string {
	return []string{
		"initialize", "ping", "tools/list", "server/discover", "subscriptions/listen",
		"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/subscriptions/acknowledged",
	}
}
