// Package hook tests the hooks of MCP clients with the same program that users run. Each test has its own home
// directory and its own mesh.
package hook
