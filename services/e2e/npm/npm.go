// Package npm brings the programs from npm that end-to-end tests talk to: Node itself, an MCP client
// and MCP servers that nobody here wrote. Each set of packages is pinned by a lock file, installed once
// into a folder of the user's cache, without running any package's install scripts, and found there
// from then on with no network and no npm.
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

// Set names packages that are installed together, apart from all other sets. Its manifest and lock
// file are in the folder of the same name under sets.
type Set string

// The sets that there are.
const (
	// Node is Node 22 for the platform that runs.
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
	// ServerEverything is the official MCP server that has something of everything.
	ServerEverything Set = "server-everything"
	// Clients are MCP clients that programs are built on: Vercel's AI SDK, LangChain's adapters,
	// mcp-remote and mcporter.
	Clients Set = "clients"
	// ClaudeCode is Claude Code for the platform that runs.
	ClaudeCode Set = "claude-code"
	// ClaudeFlow is Claude Flow with the module that its WASM agents need.
	ClaudeFlow Set = "claude-flow"
	// AssemblyScript is the compiler of AssemblyScript.
	AssemblyScript Set = "assemblyscript"
	// Conformance is the official conformance suite, and Conformance2 its version 0.2, which
	// asks what each revision of the protocol requires.
	Conformance  Set = "conformance"
	Conformance2 Set = "conformance-2"
)

// Sets returns every set.
func Sets() []Set {
	return []Set{Node, TypeScriptSDK, TypeScriptSDK2, Inspector, ServerFilesystem, ServerMemory, ServerEverything, Clients, ClaudeCode, ClaudeFlow, AssemblyScript, Conformance, Conformance2}
}

//go:embed sets
var manifests embed.FS

//go:embed client.mjs typescript-sdk.mjs typescript-sdk-2.mjs clients.mjs
var scripts embed.FS

// ClientScripts returns a program for Node that drives the MCP client of a set, which is
// [TypeScriptSDK] or [TypeScriptSDK2], by JSON lines: client.mjs, and sdk.mjs that it imports, which
// holds what the versions differ in. How, is said in client.mjs; package npmtest speaks it.
func ClientScripts(s Set) (client, sdk []byte, err error) {
	if client, err = scripts.ReadFile("client.mjs"); err != nil {
		return nil, nil, err
	}
	if sdk, err = scripts.ReadFile(string(s) + ".mjs"); err != nil {
		return nil, nil, fmt.Errorf("npm set %q is no client: %w", s, err)
	}
	return client, sdk, nil
}

// ClientsScript returns a program for Node that drives a client of the sets [Clients], [TypeScriptSDK] or
// [TypeScriptSDK2] through what it can do. How, is said in it.
func ClientsScript() ([]byte, error) { return scripts.ReadFile("clients.mjs") }

// Dir is the folder of an installed set. It is shared by all tests on the machine: read it, run it,
// write nothing into it.
type Dir string

// Module returns the path of a file of a package, such as "claude-flow/bin/cli.js".
func (d Dir) Module(path string) string {
	return filepath.Join(string(d), "node_modules", filepath.FromSlash(path))
}

// files returns the set's manifest and lock file, and a digest of all that decides what an install
// leaves behind.
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

// install returns npm's arguments. Only the sets that are nothing but optional packages, one for each
// platform, want them.
func (s Set) install() []string {
	optional := "--omit=optional"
	if s == Node || s == ClaudeCode {
		optional = "--include=optional"
	}
	return []string{
		"ci", "--ignore-scripts", optional, "--no-audit", "--no-fund", "--loglevel=error",
		// npm's own patience with a registry that does not answer is above a minute.
		"--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000",
	}
}
