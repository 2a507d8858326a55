package mcp

// These are names of HTTP headers of the Streamable HTTP transport (MCP 2025-11-25 and 2026-07-28, Transports), in the
// canonical form of net/http.
const (
	HeaderSession = "Mcp-Session-Id"
	HeaderVersion = "Mcp-Protocol-Version"
	// HeaderMethod contains the method of a request. HeaderName contains the name of the requested tool, prompt or
	// resource (MCP 2026-07-28, Transports, Request Headers).
	HeaderMethod = "Mcp-Method"
	HeaderName   = "Mcp-Name"
)
