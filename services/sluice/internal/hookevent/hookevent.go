// Package hookevent reads the events that the hooks of MCP clients receive, and writes the outputs that the clients
// expect. The forms are those of Claude Code 2.1.332, Codex 0.171.0 and Gemini CLI 0.61.0.
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
	// Call comes before a call to a tool, or before a command of a skill, which is a call to a shell.
	Call
	// Permission comes when the client would ask the person about a call.
	Permission
	// Ignored is an event for which there is no decision.
	Ignored
)

// events maps the names of events to kinds.
var events = map[string]Kind{"PreToolUse": Call, "BeforeTool": Call, "PreSkillShellCommand": Call, "PermissionRequest": Permission}

// An Event is an event of a client.
type Event struct {
	Client string
	Kind   Kind
	// Name is the name of the event.
	Name string
	// Tool is the name of the tool, and Input its arguments, an object.
	Tool  string
	Input jsontext.Value
	// ID identifies the call. It is empty if the client has no ids for calls.
	ID string
	// Session and Turn identify the conversation. Dir is the working directory.
	Session, Turn, Dir string
	// MCP describes the server if the tool belongs to an MCP server. It is nil for a tool of the client.
	MCP *Server
}

// A Server is an MCP server of the client, as far as the event names it.
type Server struct {
	// Name is the name of the server's entry. It is empty if only the name of the tool is known, which contains the name
	// of the server.
	Name string
	// Command and Args start the server. They are empty if the event does not contain them.
	Command string
	Args    []string
	// Resource is true if the tool is the client's own and reads resources of the server. The event then contains only the
	// name of the server.
	Resource bool
}

// input is the form of the events of all clients.
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

// Parse reads an event. If it returns an error, the event is still good for [Event.Failed].
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

// resourceServer returns the server that a tool for resources names in its arguments. It returns nil if they name none,
// because then the tool may reach all servers of the client.
func resourceServer(arguments jsontext.Value) *Server {
	var named struct {
		Server string `json:"server"`
	}
	if err := json.Unmarshal(arguments, &named); err != nil || named.Server == "" {
		return nil
	}
	return &Server{Name: named.Server, Resource: true}
}

// toolPrefix is the prefix of the names of MCP servers' tools in Claude Code and Codex: mcp__SERVER__TOOL.
const toolPrefix = "mcp__"

// Belongs reports whether the tool of an event may belong to the server with this name.
func (e Event) Belongs(server string) bool {
	if e.MCP == nil {
		return false
	}
	if e.MCP.Name != "" {
		return e.MCP.Name == server
	}
	return e.isToolOf(server)
}

// broughtBy contains, by client, the prefixes of the names of servers that are in no file of the user: those of
// plugins, of accounts at the vendor, and of the client itself. An entry with such a name in a file is another server.
var broughtBy = map[string][]string{
	"claude-code": {"plugin_", "claude_ai_", "ide__", "claude-in-chrome__", "computer-use__"},
	"codex":       {"codex_apps__"},
}

// BroughtByClient reports whether the tool of an event belongs to a server that is in no file of the user.
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

// normalized returns the name of a server as it is in the names of its tools.
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

// Passed returns the output that leaves the decision to the rules of the client.
func (Event) Passed() Output { return Output{} }

// Allowed returns the output for a call that a person has approved. Codex has such an output only for [Permission], and
// Gemini CLI has none, so they get the output of [Event.Passed] otherwise.
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

// Denied returns the output that refuses a call. The model reads the reason.
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

// Failed returns the output that refuses a call although the event may not be understood. Exit code 2 with a reason on
// standard error blocks in Claude Code and Codex. Gemini CLI gets JSON, because it takes other output for consent if the
// exit code is 0 or 1.
func (e Event) Failed(reason string) Output {
	reason = "Sluice denies this call, because it can't be evaluated: " + strings.TrimSpace(reason)
	if e.Client == "gemini" {
		return printed(object{{"decision", "deny"}, {"reason", reason}})
	}
	return Output{Stderr: reason + "\n", Code: 2}
}

// decision returns the output for an event before a call.
func (e Event) decision(decision, reason string) object {
	return object{{"hookSpecificOutput", object{{"hookEventName", e.Name}, {"permissionDecision", decision}, {"permissionDecisionReason", reason}}}}
}

// object is a JSON object whose members are written in this order.
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

// printed returns the output with a JSON document. Reasons with invalid UTF-8 are repaired.
func printed(document any) Output {
	raw, err := json.Marshal(document, jsontext.AllowInvalidUTF8(true))
	if err != nil { // the documents above have no such values
		return Output{Stderr: "Sluice denies this call, because its answer can't be written: " + err.Error() + "\n", Code: 2}
	}
	return Output{Stdout: string(raw) + "\n"}
}
