package mcp

// Headers of Streamable HTTP (MCP 2025-11-25 and 2026-07-28, Transports), in the form in which net/http stores them.
const (
	HeaderSession = "Mcp-Session-Id"
	HeaderVersion = "Mcp-Protocol-Version"
	// HeaderMethod and HeaderName say the method of a request, and the tool, prompt or resource that it names
	// (MCP 2026-07-28, Transports, Request Headers).
	HeaderMethod = "Mcp-Method"
	HeaderName   = "Mcp-Name"
)
