// Package mcpmethod holds the names of the methods of MCP, of all revisions and both
// directions, for those who have to tell a method from another spelling of it.
package mcpmethod

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
		"notifications/tasks/status", "notifications/subscriptions/acknowledged",
	}
}
