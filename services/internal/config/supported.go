package config

import "fmt"

// unsupportedKeys maps keys that only other versions support to advice. These keys are errors, because it would be
// misleading to accept a setting and ignore it.
var unsupportedKeys = map[string]string{
	"wasmagent": "remove it: agents are not offered",
	"ratelimit": "remove it: limits are kept in memory",

	"oidc": "use auth.issuers",
}

// ExplainKey implements [strictyaml.Explainer].
func (*File) ExplainKey(key string) (message, suggestion string, ok bool) {
	switch key {
	case "mcpServers":
		return "this is a client's configuration of MCP servers", "write each server under servers, with stdio: {command: [PROGRAM, ARGUMENT]} or http: {url: URL}", true
	case "version", "server", "default", "tools", "rules", "tests":
		return fmt.Sprintf("%q is a key of a policy, not of the configuration", key), "remove it, or name this file under policies if it is a policy", true
	}
	return explainUnsupported(key)
}

// ExplainKey implements [strictyaml.Explainer].
func (*Auth) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainUnsupported(key)
}

// ExplainKey implements [strictyaml.Explainer].
func (*Server) ExplainKey(key string) (message, suggestion string, ok bool) {
	message = fmt.Sprintf("unknown key %q", key)
	switch key {
	case "command", "env":
		return message, "write it under stdio, for example stdio: {command: [PROGRAM, ARGUMENT]}", true
	case "args":
		return message, "write the arguments after the program: stdio: {command: [PROGRAM, ARGUMENT]}", true
	case "cwd":
		return message, "write it as stdio: {dir: …}", true
	case "url", "headers":
		return message, "write it under http, for example http: {url: URL}", true
	case "type", "transport":
		return message, "remove it: http, stdio or grpc names the transport", true
	}
	return explainUnsupported(key)
}

// ExplainKey implements [strictyaml.Explainer].
func (*StdioServer) ExplainKey(key string) (message, suggestion string, ok bool) {
	message = fmt.Sprintf("unknown key %q", key)
	switch key {
	case "args":
		return message, "write the arguments after the program: command: [PROGRAM, ARGUMENT]", true
	case "cwd":
		return message, "write dir", true
	}
	return "", "", false
}

func explainUnsupported(key string) (message, suggestion string, ok bool) {
	suggestion, ok = unsupportedKeys[key]
	return fmt.Sprintf("%q is not offered in this version", key), suggestion, ok
}

// ExplainKey implements [strictyaml.Explainer].
func (*Stores) ExplainKey(key string) (message, suggestion string, ok bool) {
	return explainUnsupported(key)
}
