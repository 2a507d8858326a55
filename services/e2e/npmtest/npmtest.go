// Package npmtest provides the programs of package npm to tests: Node, MCP servers and MCP clients. It installs missing
// programs. If an install fails, the test fails and is not skipped. The error describes what to do.
package npmtest

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

// Install returns the directory of a set, and installs the set if necessary.
func Install(t testing.TB, set npm.Set) npm.Dir {
	t.Helper()
	dir, err := cache(t).Install(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Node returns the path of Node 22.
func Node(t testing.TB) string {
	t.Helper()
	node, err := cache(t).NodeBinary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// ClaudeFlow returns the command that starts Claude Flow's MCP server over stdio. The server must run in a writable
// directory of its own. Its environment must contain only PATH and HOME, because the server refuses to create agents if
// it finds a model provider's key.
func ClaudeFlow(t testing.TB) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ClaudeFlow).Module("claude-flow/bin/cli.js"), "mcp", "start"}
}

// Conformance returns the command that runs the official conformance suite for servers, in the version that the set
// contains. The caller appends `--url` and the server's URL.
func Conformance(t testing.TB, set npm.Set) []string {
	t.Helper()
	return []string{Node(t), Install(t, set).Module("@modelcontextprotocol/conformance/dist/index.js"), "server"}
}

// ConformanceOfClients returns the command that runs the official conformance suite for clients. The caller appends
// `--scenario` with a scenario, and `--command` with the client's command.
func ConformanceOfClients(t testing.TB, set npm.Set) []string {
	t.Helper()
	return append(Conformance(t, set)[:2], "client")
}

// ServerMemory returns the command that starts the official memory server.
func ServerMemory(t testing.TB) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ServerMemory).Module("@modelcontextprotocol/server-memory/dist/index.js")}
}

// ServerSequentialThinking returns the command that starts the official server for step-by-step thinking over stdio.
func ServerSequentialThinking(t testing.TB) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ServerSequentialThinking).Module("@modelcontextprotocol/server-sequential-thinking/dist/index.js")}
}

// ServerFilesystem returns the command that starts the official file system server over stdio. The server serves only
// the given directories. At least one is required.
func ServerFilesystem(t testing.TB, dirs ...string) []string {
	t.Helper()
	script := Install(t, npm.ServerFilesystem).Module("@modelcontextprotocol/server-filesystem/dist/index.js")
	return append([]string{Node(t), script}, dirs...)
}

func cache(t testing.TB) npm.Cache {
	t.Helper()
	c, err := npm.Open()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
