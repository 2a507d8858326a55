package clientconfig

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Managed is a settings file with which a machine's administrator restricts the servers in a client. Users can't change
// this file.
type Managed struct {
	// Path is the path at which the client reads the file.
	Path    string
	Content []byte
	// Limits describes how users can bypass the file. It is empty if the client can use only the servers in the file.
	Limits string
}

// managedDirs contains the directories of the administrator's files, by client ID and [runtime.GOOS].
var managedDirs = map[string]map[string]string{
	"claude-code": {"linux": "/etc/claude-code", "darwin": "/Library/Application Support/ClaudeCode", "windows": `C:\Program Files\ClaudeCode`},
	"codex":       {"linux": "/etc/codex", "darwin": "/etc/codex"},
	"gemini":      {"linux": "/etc/gemini-cli", "darwin": "/Library/Application Support/GeminiCli", "windows": `C:\ProgramData\gemini-cli`},
}

// ManagedClients returns the sorted IDs of the clients that support an administrator's file.
func ManagedClients() []string { return []string{"claude-code", "codex", "gemini"} }

// Managed returns the administrator's settings file that restricts a client to the given entries of this client. It
// omits entries that are disabled, belong to a project, or do not go through the mesh. The file allows only the program
// with the given path. Managed returns an error if Sluice knows no such file for the client on the system, or if no
// entry remains.
func (c Client) Managed(goos, program string, entries []Entry) (Managed, error) {
	dir, ok := managedDirs[c.ID][goos]
	if !ok {
		return Managed{}, fmt.Errorf("%s has no file for administrators on %s that Sluice knows: use one of %s", c.Name, goos, strings.Join(ManagedClients(), ", "))
	}
	names := make(map[string]bool)
	var wrapped []Entry
	for _, e := range entries {
		if e.Wrapped && !e.Disabled && e.Scope != Project && !names[e.Name] {
			names[e.Name] = true
			r := *e.Relay
			if c.ID != "codex" { // Codex compares the arguments with those in the user's file
				r.Config = "" // the file is for all users of the machine
			}
			wrapped = append(wrapped, Entry{Name: e.Name, Command: program, Args: r.Args()})
		}
	}
	if len(wrapped) == 0 {
		return Managed{}, fmt.Errorf("no server of %s is behind the mesh: run `sluice init %s` first", c.Name, c.ID)
	}
	switch c.ID {
	case "codex":
		content, err := codexRequirements(wrapped)
		return Managed{Path: dir + "/requirements.toml", Content: content}, err
	case "gemini":
		content, err := managedJSON(wrapped, true)
		return Managed{
			Path: joinFor(goos, dir, "settings.json"), Content: content,
			Limits: "A user can name another file with GEMINI_CLI_SYSTEM_SETTINGS_PATH. If the file exists already, add these members to it.",
		}, err
	default:
		content, err := managedJSON(wrapped, false)
		return Managed{Path: joinFor(goos, dir, "managed-mcp.json"), Content: content}, err
	}
}

func joinFor(goos, dir, name string) string {
	if goos == "windows" {
		return dir + `\` + name
	}
	return dir + "/" + name
}

// managedJSON returns a settings file with the key mcpServers. If allowed is true, the file also lists the names of the
// servers. This is necessary if the client merges this file with the user's files.
func managedJSON(entries []Entry, allowed bool) ([]byte, error) {
	type server struct {
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	var file struct {
		MCP *struct {
			Allowed []string `json:"allowed"`
		} `json:"mcp,omitzero"`
		Servers map[string]server `json:"mcpServers"`
	}
	file.Servers = make(map[string]server)
	if allowed {
		file.MCP = &struct {
			Allowed []string `json:"allowed"`
		}{}
	}
	for _, e := range entries {
		file.Servers[e.Name] = server{e.Command, e.Args}
		if allowed {
			file.MCP.Allowed = append(file.MCP.Allowed, e.Name)
		}
	}
	raw, err := json.Marshal(&file, json.Deterministic(true), jsontext.WithIndent("  "))
	return append(raw, '\n'), err
}

// codexRequirements returns a settings file that allows only servers with the names and commands of the entries. Codex
// reads the entries themselves from the user's file.
func codexRequirements(entries []Entry) ([]byte, error) {
	var out []byte
	quote := func(text string) ([]byte, error) { return jsontext.AppendQuote(nil, text) } // a JSON string is a TOML string
	for _, e := range entries {
		name, err := quote(e.Name)
		if err != nil {
			return nil, err
		}
		command, err := quote(e.Command)
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, "[mcp_servers.%s.identity.command]\nexecutable = %s\nargs = [\n", name, command)
		for _, arg := range e.Args {
			value, err := quote(arg)
			if err != nil {
				return nil, err
			}
			out = fmt.Appendf(out, "  {match = \"exact\", value = %s},\n", value)
		}
		out = append(out, "]\n\n"...)
	}
	return out, nil
}
