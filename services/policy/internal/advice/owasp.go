package advice

// These are entries of the OWASP MCP Top 10, version 0.1 (2025 beta), from the repository OWASP/www-project-mcp-top-10.
// An earlier version of the list calls MCP06 "Prompt Injection via Contextual Payloads".
const (
	mcp01 = "OWASP MCP01:2025 Token Mismanagement & Secret Exposure"
	mcp03 = "OWASP MCP03:2025 Tool Poisoning"
	mcp04 = "OWASP MCP04:2025 Software Supply Chain Attacks & Dependency Tampering"
	mcp05 = "OWASP MCP05:2025 Command Injection & Execution"
	mcp06 = "OWASP MCP06:2025 Intent Flow Subversion"
	mcp07 = "OWASP MCP07:2025 Insufficient Authentication & Authorization"
	mcp10 = "OWASP MCP10:2025 Context Injection & Over-Sharing"
)

// These are entries of the OWASP Top 10 for Agentic Applications 2026, which was announced on 9 December 2025.
const (
	asi01 = "OWASP ASI01 Agent Goal Hijack"
	asi02 = "OWASP ASI02 Tool Misuse and Exploitation"
	asi03 = "OWASP ASI03 Identity and Privilege Abuse"
	asi04 = "OWASP ASI04 Agentic Supply Chain Vulnerabilities"
	asi05 = "OWASP ASI05 Unexpected Code Execution (RCE)"
	asi06 = "OWASP ASI06 Memory & Context Poisoning"
	asi08 = "OWASP ASI08 Cascading Failures"
	asi09 = "OWASP ASI09 Human-Agent Trust Exploitation"
	asi10 = "OWASP ASI10 Rogue Agents"
)
