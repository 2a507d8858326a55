// Package hookevent reads the events that MCP clients send to their hooks, and writes the outputs that the clients
// expect from the hooks. The formats are those of Claude Code 2.1.332, Codex 0.171.0 and Gemini CLI 0.61.0.
package hookevent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// A Kind is the kind of an event.
type Kind int

const (
	// Unknown is an event that could not be read.
	Unknown Kind = iota
	// Call is an event before a call to a tool, or before a skill runs a shell command. A shell command in a skill counts
	// as a call to a shell.
	Call
	// Permission is an event that a client sends when it is about to ask the person whether to allow a call.
	Permission
	// Ignored is an event of any other kind. The hook makes no decision on it.
	Ignored
)

// events maps the names of events to their kinds.
var events = map[string]Kind{"PreToolUse": Call, "BeforeTool": Call, "PreSkillShellCommand": Call, "PermissionRequest": Permission}

// An Event is an event that a client sends to the hook.
type Event struct {
	Client string
	Kind   Kind
	// Name is the name of the event.
	Name string
	// Tool is the name of the tool. Input is a JSON object with the arguments of the call.
	Tool  string
	Input jsontext.Value
	// ID identifies the call. It is empty if the client does not assign ids to calls.
	ID string
	// Session and Turn identify the conversation. Dir is the working directory.
	Session, Turn, Dir string
	// MCP describes the MCP server of the tool. It is nil for the client's own tools. The exception is a tool that reads
	// resources of a server, if the arguments name this server.
	MCP *Server
}

// A Server is an MCP server of the client. It contains only the information in the event.
type Server struct {
	// Name is the name of the server's entry. It is empty if the event contains only the tool's name, which includes the
	// server's name.
	Name string
	// Command and Args start the server. They are empty if the event does not contain them.
	Command string
	Args    []string
	// Resource is true for a client's own tool that reads resources of the server. In that case, the event contains only
	// the server's name.
	Resource bool
}

// input contains the members of the events of all clients.
type input struct {
	Session string         `json:"session_id"`
	Turn    string         `json:"turn_id"`
	Dir     string         `json:"cwd"`
	Name    string         `json:"hook_event_name"`
	Tool    string         `json:"tool_name"`
	Input   jsontext.Value `json:"tool_input"`
	ID      string         `json:"tool_use_id"`
	MCP     *struct {
		Name    string   `json:"server_name"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	} `json:"mcp_context"`
}

// Parse reads an event. Even if Parse returns an error, [Event.Failed] works with the returned event.
func Parse(client string, data []byte) (Event, error) {
	e := Event{Client: client}
	var in input
	if err := json.Unmarshal(data, &in); err != nil {
		return e, fmt.Errorf("the event on standard input is not understood: %w", err)
	}
	e.Name, e.Tool, e.ID, e.Session, e.Turn, e.Dir = in.Name, in.Tool, in.ID, in.Session, in.Turn, in.Dir
	if e.Name == "" {
		return e, errors.New("the event on standard input has no hook_event_name")
	}
	if e.Kind = events[e.Name]; e.Kind == Unknown {
		e.Kind = Ignored
		return e, nil
	}
	if e.Tool == "" {
		return e, errors.New("the event on standard input has no tool_name")
	}
	switch in.Input.Kind() { //nolint:exhaustive // the other kinds are refused
	case '{':
		e.Input = in.Input
	case '"': // Codex sends the arguments of some tools as one string
		e.Input = []byte(`{"input":` + string(in.Input) + `}`)
	default:
		return e, errors.New("the event on standard input has no tool_input")
	}
	switch {
	case in.MCP != nil:
		e.MCP = &Server{Name: in.MCP.Name, Command: in.MCP.Command, Args: in.MCP.Args}
	case strings.HasPrefix(e.Tool, toolPrefix):
		e.MCP = &Server{}
	case client != "gemini" && hosttools.ReadsServers(e.Tool): // Gemini CLI finds the server by the URI
		e.MCP = resourceServer(e.Input)
	}
	return e, nil
}

// resourceServer returns the server in the arguments of a tool for resources. It returns nil if the arguments contain
// no server, because the tool may then access all servers of the client.
func resourceServer(arguments jsontext.Value) *Server {
	var named struct {
		Server string `json:"server"`
	}
	if err := json.Unmarshal(arguments, &named); err != nil || named.Server == "" {
		return nil
	}
	return &Server{Name: named.Server, Resource: true}
}

// toolPrefix is the prefix of the names of MCP tools in Claude Code and Codex, as in mcp__SERVER__TOOL.
const toolPrefix = "mcp__"

// Belongs reports whether an event's tool may belong to the server with the given name.
func (e Event) Belongs(server string) bool {
	if e.MCP == nil {
		return false
	}
	if e.MCP.Name != "" {
		return e.MCP.Name == server
	}
	return e.isToolOf(server)
}

// broughtBy contains prefixes of server names, by client. A server with such a prefix is in none of the user's files.
// It belongs to a plugin, to an account at the vendor, or to the client itself. If a file contains an entry with such a
// name, the entry is for a different server.
var broughtBy = map[string][]string{
	"claude-code": {"plugin_", "claude_ai_", "ide__", "claude-in-chrome__", "computer-use__"},
	"codex":       {"codex_apps__"},
}

// BroughtByClient reports whether an event's tool belongs to a server that is in none of the user's files.
func (e Event) BroughtByClient() bool {
	if e.MCP == nil {
		return false
	}
	name := strings.TrimPrefix(e.Tool, toolPrefix)
	if e.MCP.Name != "" {
		name = normalized(e.MCP.Name) + "__"
	}
	return slices.ContainsFunc(broughtBy[e.Client], func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// normalized returns a server's name as it appears in tool names.
func normalized(server string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, server)
}

// An Output is what the hook prints, and its exit code.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// Passed returns the output that leaves the decision to the client's own rules.
func (Event) Passed() Output { return Output{} }

// Allowed returns the output for a call that a person has approved. Codex supports this output only for [Permission],
// and Gemini CLI does not support it. If it is not supported, Allowed returns the same output as [Event.Passed].
func (e Event) Allowed(reason string) Output {
	switch {
	case e.Kind == Permission:
		return printed(object{{"hookSpecificOutput", object{{"hookEventName", e.Name}, {"decision", object{{"behavior", "allow"}}}}}})
	case e.Client == "claude-code":
		return printed(e.decision("allow", reason))
	default:
		return e.Passed()
	}
}

// Denied returns the output that refuses a call. The reason is shown to the model.
func (e Event) Denied(reason string) Output {
	reason = strings.TrimSpace(reason)
	if reason == "" {
		reason = "Sluice denies this call."
	}
	switch {
	case e.Kind == Permission:
		return printed(object{{"hookSpecificOutput", object{{"hookEventName", e.Name}, {"decision", object{{"behavior", "deny"}, {"message", reason}}}}}})
	case e.Client == "gemini":
		return printed(object{{"decision", "deny"}, {"reason", reason}})
	default:
		return printed(e.decision("deny", reason))
	}
}

// Failed returns the output that refuses a call even if the event could not be parsed. In Claude Code and Codex, exit
// code 2 with a reason on standard error blocks the call. For Gemini CLI, the output is JSON, because Gemini CLI
// interprets other output as permission if the exit code is 0 or 1.
func (e Event) Failed(reason string) Output {
	reason = "Sluice denies this call, because it can't be evaluated: " + strings.TrimSpace(reason)
	if e.Client == "gemini" {
		return printed(object{{"decision", "deny"}, {"reason", reason}})
	}
	return Output{Stderr: reason + "\n", Code: 2}
}

// decision returns the JSON output for an event that comes before a call.
func (e Event) decision(decision, reason string) object {
	return object{{"hookSpecificOutput", object{{"hookEventName", e.Name}, {"permissionDecision", decision}, {"permissionDecisionReason", reason}}}}
}

// object is a JSON object whose members are written in the order of the slice.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSONTo implements json.MarshalerTo.
func (o object) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, m := range o {
		if err := enc.WriteToken(jsontext.String(m.name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, m.value); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// printed returns an output that prints a JSON document. Invalid UTF-8 in reasons is replaced.
func printed(document any) Output {
	raw, err := json.Marshal(document, jsontext.AllowInvalidUTF8(true))
	if err != nil { // can't happen with the documents of this package
		return Output{Stderr: "Sluice denies this call, because its answer can't be written: " + err.Error() + "\n", Code: 2}
	}
	return Output{Stdout: string(raw) + "\n"}
}
