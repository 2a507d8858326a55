// Package npmtest gives tests the programs of package npm: Node, MCP servers to put behind the gateway,
// and the official TypeScript client to put before it. What is missing is installed; where that can't
// be, the test fails and says what to do. Nothing is skipped.
package npmtest

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

// Install returns the folder of an installed set.
func Install(t testing.TB, set npm.Set) npm.Dir {
	t.Helper()
	dir, err := cache(t).Install(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Node returns the path of a Node 22 that needs nothing else.
func Node(t testing.TB) string {
	t.Helper()
	node, err := cache(t).NodeBinary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// ClaudeFlow returns the command that starts Claude Flow's MCP server over stdio. Start it in a
// writable folder of its own, with PATH and HOME as its whole environment: a provider's key makes it
// refuse to create agents.
func ClaudeFlow(t testing.TB) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ClaudeFlow).Module("claude-flow/bin/cli.js"), "mcp", "start"}
}

// Conformance is the command that runs the official conformance suite, of which set is a version,
// against the server whose URL follows as `--url`.
func Conformance(t testing.TB, set npm.Set) []string {
	t.Helper()
	return []string{Node(t), Install(t, set).Module("@modelcontextprotocol/conformance/dist/index.js"), "server"}
}

// ConformanceOfClients is the command that runs a scenario of the suite for clients, which follows as
// `--scenario`, against the client whose command follows as `--command`.
func ConformanceOfClients(t testing.TB, set npm.Set) []string {
	t.Helper()
	return append(Conformance(t, set)[:2], "client")
}

// ServerMemory is the command that starts the official memory server.
func ServerMemory(t testing.TB) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ServerMemory).Module("@modelcontextprotocol/server-memory/dist/index.js")}
}

// ServerFilesystem returns the command that starts the official file system server over stdio. It
// serves the given folders, at least one, and nothing outside them.
func ServerFilesystem(t testing.TB, folders ...string) []string {
	t.Helper()
	script := Install(t, npm.ServerFilesystem).Module("@modelcontextprotocol/server-filesystem/dist/index.js")
	return append([]string{Node(t), script}, folders...)
}

func cache(t testing.TB) npm.Cache {
	t.Helper()
	c, err := npm.Open()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
