package gatewaytest

import (
	"net/http"
)

const (
	// Initialize is the initialize request of a client that declares sampling.
	Initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}`
	// InitializeAll is the initialize request of a client that declares all capabilities with which a server may send
	// requests to the client, and some capabilities that no server may use.
	InitializeAll = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{` +
		`"sampling":{"tools":{},"x":{}},"elicitation":{"form":{}},"roots":{"listChanged":true},"tasks":{},"experimental":{"y":{}}},"clientInfo":{"name":"c","version":"1"}}}`
	// Capabilities are the client capabilities that the requests from [Modern] declare.
	Capabilities = `{"sampling":{},"elicitation":{"form":{}},"tasks":{}}`
)

// Methods returns methods that a rule must allow. Tests configure their policy to allow them.
func Methods() []string {
	return []string{
		"completion/complete", "prompts/list", "resources/list", "resources/subscribe", "logging/setLevel",
		"elicitation/create", "roots/list", "sampling/createMessage",
	}
}

// Call returns a call to a tool of the server named "files", in a revision that uses sessions. The id of the request is
// 1.
func Call(tool, arguments string) Message {
	if arguments == "" {
		arguments = "{}"
	}
	return Message{Server: "files", Body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `}}`}
}

// Plain returns a request to the server named "files", in a revision that uses sessions. The id of the request is 1.
func Plain(method, params string) Message {
	return Message{Server: "files", Body: `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`}
}

// Modern returns a request of revision 2026-07-28 to the server named "files", with matching headers. The id of the
// request is 7. The name may be empty. params contains members of the params object without braces, and may be empty.
func Modern(method, name, params string) Message {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + Capabilities +
		`,"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}}`
	if params != "" {
		meta += ","
	}
	head := http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}}
	if name != "" {
		head["Mcp-Name"] = []string{name}
	}
	return Message{Server: "files", Header: head, Body: `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + meta + params + `}}`}
}

// ModernCall returns a call to a tool in revision 2026-07-28. arguments contains those members of the params object
// that follow the name, without braces, and may be empty.
func ModernCall(tool, arguments string) Message {
	params := `"name":"` + tool + `"`
	if arguments != "" {
		params += "," + arguments
	}
	return Modern("tools/call", tool, params)
}

// Connect opens a session with a server and returns the session header, which later messages in that session must have.
// If the server name is empty, the session is for all servers.
func (g *Gateway) Connect(server string) http.Header {
	g.t.Helper()
	return g.ConnectAs(Message{Server: server, Body: Initialize})
}

// ConnectAs opens a session with the given initialize request. It returns the session header, which later messages in
// that session must have.
func (g *Gateway) ConnectAs(initialize Message) http.Header {
	g.t.Helper()
	got := g.Do(initialize)
	id := got.Header.Get("Mcp-Session-Id")
	if got.Status != http.StatusOK || id == "" {
		g.t.Fatalf("initialize: %d %s", got.Status, got.Text)
	}
	return http.Header{"Mcp-Session-Id": {id}}
}

// In returns a copy of the message that belongs to the session with the given header.
func (m Message) In(session http.Header) Message {
	return m.With("Mcp-Session-Id", session["Mcp-Session-Id"]...)
}
