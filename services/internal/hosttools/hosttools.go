// Package hosttools contains the definitions of the tools that are built into MCP clients, such as a shell. The gateway
// evaluates calls to these tools if Sluice's hook is installed in the client. In policies and records, each client
// appears as a server.
package hosttools

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

//go:embed tools/*.json
var files embed.FS

// Prefix begins the server name of every client. The names of configured servers must not begin with it.
const Prefix = "host-"

// Other is the tool that stands for all tools of a client that are not defined here. Its arguments are the name and the
// input of the actual tool.
const Other = "other"

// Codex is the id of the client Codex. This client calls the hook a second time when it is about to ask its user for
// permission.
const Codex = "codex"

// names maps the ids of clients to their names.
var names = map[string]string{"claude-code": "Claude Code", Codex: "Codex", "gemini": "Gemini CLI"}

// Clients returns the ids of the clients that have hooks, sorted.
func Clients() []string { return slices.Sorted(maps.Keys(names)) }

// Name returns the name of a client in the form that is shown to people, or "" if the client has no hooks.
func Name(client string) string { return names[client] }

// ServerName returns the name of the server that stands for a client.
func ServerName(client string) string { return Prefix + client }

// A Tool is a tool that is built into a client.
type Tool struct {
	Name string `json:"name"`
	// Definition is the whole definition of the tool, as in an MCP tools/list result.
	Definition jsontext.Value `json:"-"`
}

// Knows reports whether a client has a tool with this name. It returns false for [Other].
func Knows(client, tool string) bool {
	return tool != Other && known()[client][tool]
}

// ReadsServers reports whether a tool lists or reads the resources of MCP servers. Such a tool can reach servers that are
// not behind the mesh.
func ReadsServers(tool string) bool { return slices.Contains(resourceTools, tool) }

// resourceTools lists the tools of all clients that list or read resources of MCP servers.
var resourceTools = []string{
	"ListMcpResourcesTool", "ReadMcpResourceTool", "ReadMcpResourceDirTool",
	"list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource",
}

// ProtectedFile is the name of an argument that the hook adds to a call that would change a protected file, or that
// would read one of Sluice's own files with tokens or secrets. A protected file configures Sluice, the hook or a
// client. The argument's value is the path of the file. If the arguments of a call do not show which file the call
// affects, the hook also adds this argument, with a value that says so.
const ProtectedFile = "protected_file"

// WritesFiles reports whether a tool changes files that its arguments name. The definition of such a tool contains the
// argument [ProtectedFile] in addition to the tool's own arguments.
func WritesFiles(tool string) bool { return slices.Contains(fileTools, tool) }

// ReadsFiles reports whether a tool reads or searches files that its arguments name. The definition of such a tool
// contains the argument [ProtectedFile] in addition to the tool's own arguments.
func ReadsFiles(tool string) bool {
	return slices.Contains(readTools, tool) || SearchesFiles(tool)
}

// SearchesFiles reports whether a tool searches the working directory if its arguments do not name another directory.
func SearchesFiles(tool string) bool { return slices.Contains(searchTools, tool) }

// fileTools lists the tools of all clients that change files.
var fileTools = []string{"Write", "Edit", "MultiEdit", "NotebookEdit", "apply_patch", "write_file", "replace"}

// readTools lists the tools of all clients that read files. searchTools lists the tools of all clients that search
// files.
var (
	readTools   = []string{"Read", "LSP", "read_file", "read_many_files", "view_image"}
	searchTools = []string{"Glob", "Grep", "glob", "grep_search", "list_directory"}
)

// known returns the names of the tools of each client.
var known = sync.OnceValue(func() map[string]map[string]bool {
	out := make(map[string]map[string]bool)
	for _, client := range Clients() {
		tools, err := Tools(client)
		if err != nil { // this can't happen, because a test reads all files
			continue
		}
		out[client] = make(map[string]bool)
		for _, tool := range tools {
			out[client][tool.Name] = true
		}
	}
	return out
})

// Tools returns the tools of a client. It returns an error if the client has no hooks.
func Tools(client string) ([]Tool, error) {
	if names[client] == "" {
		return nil, fmt.Errorf("%q is not a client with hooks: use one of %v", client, Clients())
	}
	raw, err := files.ReadFile("tools/" + client + ".json")
	if err != nil {
		return nil, fmt.Errorf("read the tools of %s: %w", client, err)
	}
	var file struct {
		Source string           `json:"source"`
		Tools  []jsontext.Value `json:"tools"`
	}
	if err := json.Unmarshal(raw, &file, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("read the tools of %s: %w", client, err)
	}
	out := make([]Tool, len(file.Tools))
	for i, definition := range file.Tools {
		if err := json.Unmarshal(definition, &out[i]); err != nil {
			return nil, fmt.Errorf("read the tools of %s: %w", client, err)
		}
		if err := definition.Compact(); err != nil {
			return nil, fmt.Errorf("read the tools of %s: %w", client, err)
		}
		out[i].Definition = definition
	}
	return out, nil
}
