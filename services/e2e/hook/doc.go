// Package hook tests the hooks of MCP clients with the program that people run. Each test has a home directory and a
// mesh of its own.
package hook
