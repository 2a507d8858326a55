// Package npm installs the npm packages that end-to-end tests use: Node, and external MCP clients and servers. Each set
// of packages is pinned by a lock file. It is installed once into the user's cache directory, without install scripts.
// After that, a set needs neither a network nor npm.
package npm

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
)

// Set is the name of a group of packages that are installed together, separately from all other sets. The manifest and
// the lock file of a set are in the directory sets/NAME.
type Set string

const (
	// Node is Node 22 for the current platform.
	Node Set = "node"
	// TypeScriptSDK is the official MCP SDK for TypeScript, version 1.
	TypeScriptSDK Set = "typescript-sdk"
	// TypeScriptSDK2 is the official MCP SDK for TypeScript, version 2.
	TypeScriptSDK2 Set = "typescript-sdk-2"
	// Inspector is the official MCP inspector.
	Inspector Set = "inspector"
	// ServerFilesystem is the official MCP file system server.
	ServerFilesystem Set = "server-filesystem"
	// ServerMemory is the official MCP memory server.
	ServerMemory Set = "server-memory"
	// ServerSequentialThinking is the official MCP server for step-by-step thinking.
	ServerSequentialThinking Set = "server-sequential-thinking"
	// ServerEverything is the official MCP server that demonstrates all features.
	ServerEverything Set = "server-everything"
	// Clients are MCP client libraries and programs: Vercel's AI SDK, LangChain's adapters, mcp-remote and
	// mcporter.
	Clients Set = "clients"
	// ClaudeCode is Claude Code for the current platform.
	ClaudeCode Set = "claude-code"
	// ClaudeFlow is Claude Flow with the module that its WASM agents need.
	ClaudeFlow Set = "claude-flow"
	// OIDCProvider is an OpenID provider.
	OIDCProvider Set = "oidc-provider"
	// AssemblyScript is the AssemblyScript compiler.
	AssemblyScript Set = "assemblyscript"
	// Conformance is the official conformance suite.
	Conformance Set = "conformance"
	// Conformance2 is version 0.2 of the conformance suite. This version tests the requirements of each protocol revision.
	Conformance2 Set = "conformance-2"
)

// Sets returns every set.
func Sets() []Set {
	return []Set{Node, TypeScriptSDK, TypeScriptSDK2, Inspector, ServerFilesystem, ServerMemory, ServerSequentialThinking, ServerEverything, Clients, ClaudeCode, ClaudeFlow, OIDCProvider, AssemblyScript, Conformance, Conformance2}
}

//go:embed sets
var manifests embed.FS

//go:embed client.mjs typescript-sdk.mjs typescript-sdk-2.mjs clients.mjs oidc-provider.mjs
var scripts embed.FS

// ClientScripts returns a Node program that controls the MCP client of the set [TypeScriptSDK] or [TypeScriptSDK2]. The
// program reads its commands as JSON lines, which client.mjs describes. The first result is the content of client.mjs.
// The second result is the code that differs between the two versions of the SDK. The caller must save it as sdk.mjs,
// because client.mjs imports this file. Package npmtest sends the commands.
func ClientScripts(s Set) (client, sdk []byte, err error) {
	if client, err = scripts.ReadFile("client.mjs"); err != nil {
		return nil, nil, err
	}
	if sdk, err = scripts.ReadFile(string(s) + ".mjs"); err != nil {
		return nil, nil, fmt.Errorf("npm set %q is not a client: %w", s, err)
	}
	return client, sdk, nil
}

// ClientsScript returns a Node program that uses MCP features through a client from the set [Clients], [TypeScriptSDK]
// or [TypeScriptSDK2]. A comment in the program describes its arguments.
func ClientsScript() ([]byte, error) { return scripts.ReadFile("clients.mjs") }

// OIDCProviderScript returns a Node program that runs the OpenID provider of the set [OIDCProvider]. A comment in the
// program describes it.
func OIDCProviderScript() ([]byte, error) { return scripts.ReadFile("oidc-provider.mjs") }

// Dir is the directory of an installed set. All tests on the machine share the directory, so they may read and run its
// files, but not write to it.
type Dir string

// Module returns the path of a file in node_modules, such as "claude-flow/bin/cli.js".
func (d Dir) Module(path string) string {
	return filepath.Join(string(d), "node_modules", filepath.FromSlash(path))
}

// files returns the set's manifest and lock file, and a digest of all inputs of an install.
func (s Set) files() (files fs.FS, digest string, err error) {
	files, err = fs.Sub(manifests, "sets/"+string(s))
	if err != nil {
		return nil, "", fmt.Errorf("find npm set %q: %w", s, err)
	}
	sum := sha256.New()
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, "", fmt.Errorf("find npm set %q: %w", s, err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	fmt.Fprintf(sum, "%s/%s %q", runtime.GOOS, runtime.GOARCH, s.install())
	return files, hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// install returns npm's arguments. Optional packages are installed only for sets that consist of one optional package
// for each platform.
func (s Set) install() []string {
	optional := "--omit=optional"
	if s == Node || s == ClaudeCode {
		optional = "--include=optional"
	}
	return []string{
		"ci", "--ignore-scripts", optional, "--no-audit", "--no-fund", "--loglevel=error",
		// With npm's defaults, npm waits longer than a minute for a registry that does not respond.
		"--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000",
	}
}
