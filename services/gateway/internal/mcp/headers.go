package mcp

// Headers of Streamable HTTP (MCP 2025-11-25 and 2026-07-28, Transports), in the canonical form of net/http.
const (
	HeaderSession = "Mcp-Session-Id"
	HeaderVersion = "Mcp-Protocol-Version"
	// HeaderMethod is the header with the method of a request. HeaderName is the header with the tool, prompt or resource
	// that the request names (MCP 2026-07-28, Transports, Request Headers).
	HeaderMethod = "Mcp-Method"
	HeaderName   = "Mcp-Name"
)
