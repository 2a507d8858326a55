// Command agent is a guest that has a model decide: it asks its model, does what that asks for
// with the agent's own files and todos and with tools of servers, and asks again, until the model
// answers without asking for more.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-mesh/sluice/sdk/guest"
)

const (
	// maxAsks is how often the model is asked in a turn.
	maxAsks = 64
	// maxTalk is how long the conversation may be that the model is told, in bytes: what was
	// said first goes.
	maxTalk = 256 << 10
	// maxTold is how much of what a tool answers the model is told, in bytes.
	maxTold = 32 << 10
	// maxTools is how many tools a model is told of, and maxDescription and maxSchema how long
	// what it is told of each may be, in bytes.
	maxTools       = 128
	maxDescription = 4096
	maxSchema      = 64 << 10
	// maxName is how long a tool's name may be for a model.
	maxName = 64
)

func init() { guest.Serve(new(talk).run) }

func main() {}

// talk is what lasts from prompt to prompt.
type talk struct{ messages []guest.Message }

func (t *talk) run(a *guest.Agent, prompt string) (string, error) {
	if t.messages == nil {
		t.messages, a.Conversation = a.Conversation, nil
	}
	tools, err := t.tools(a)
	if err != nil {
		return "", err
	}
	infos := make([]guest.ToolInfo, 0, len(tools))
	for _, tool := range tools {
		infos = append(infos, tool.ToolInfo)
	}
	answer, err := t.work(a, tools, infos, prompt)
	if err != nil {
		t.settle(err)
	}
	return answer, err
}

// work asks the model, and does what it wants, until that wants nothing more.
func (t *talk) work(a *guest.Agent, tools []tool, infos []guest.ToolInfo, prompt string) (string, error) {
	t.messages = append(t.messages, guest.Message{Role: "user", Content: prompt})
	for range maxAsks {
		t.trim()
		answer, err := a.Ask("", t.told(a), infos...)
		if err != nil {
			return "", err
		}
		if answer.Content != "" || len(answer.Calls) > 0 {
			t.messages = append(t.messages, guest.Message{Role: "assistant", Content: answer.Content, Calls: answer.Calls})
		}
		if len(answer.Calls) == 0 {
			return answer.Content, nil
		}
		if answer.Content != "" {
			if err := a.Emit(answer.Content); err != nil {
				return "", err
			}
		}
		for _, call := range answer.Calls {
			said, err := do(a, tools, call)
			if errors.Is(err, guest.ErrCancelled) {
				return "", err
			}
			if err != nil {
				said = "error: " + err.Error()
			}
			if len(said) > maxTold {
				said = strings.ToValidUTF8(said[:maxTold], "") + " … (cut)"
			}
			t.messages = append(t.messages, guest.Message{Role: "tool", Content: said, CallID: call.ID})
		}
	}
	return "", fmt.Errorf("the model was asked %d times and wants more", maxAsks)
}

// told is what the model is told: instructions first.
func (t *talk) told(a *guest.Agent) []guest.Message {
	if a.Instructions == "" {
		return t.messages
	}
	return append([]guest.Message{{Role: "system", Content: a.Instructions}}, t.messages...)
}

// trim forgets the oldest prompts, with all that followed each, while the conversation is too
// long; but never the newest.
func (t *talk) trim() {
	for {
		size, next := 0, 0
		for i, m := range t.messages {
			size += len(m.Content)
			for _, c := range m.Calls {
				size += len(c.Arguments)
			}
			if i > 0 && next == 0 && m.Role == "user" {
				next = i
			}
		}
		if size <= maxTalk || next == 0 {
			return
		}
		t.messages = append([]guest.Message(nil), t.messages[next:]...)
	}
}

// tool is one that the model may ask for: of a server, or of the agent's own where that is empty.
type tool struct {
	guest.ToolInfo
	server, name string
}

// tools are those that the model may ask for.
func (t *talk) tools(a *guest.Agent) ([]tool, error) {
	var out []tool
	for _, own := range sandbox {
		out = append(out, tool{ToolInfo: own})
	}
	list, err := a.Tools()
	var refused *guest.Error
	if err != nil && !errors.As(err, &refused) { // without them it can do with its own
		return nil, err
	}
	taken := map[string]bool{}
	for _, own := range sandbox {
		taken[own.Name] = true
	}
	for _, one := range list {
		if len(out) == maxTools || len(one.InputSchema) > maxSchema {
			continue
		}
		if len(one.Description) > maxDescription {
			one.Description = strings.ToValidUTF8(one.Description[:maxDescription], "")
		}
		name := unique(taken, one.Server+"__"+one.Name)
		out = append(out, tool{guest.ToolInfo{Name: name, Description: one.Description, InputSchema: one.InputSchema}, one.Server, one.Name})
	}
	return out, nil
}

// unique is a name as models take it, that no other tool has.
func unique(taken map[string]bool, name string) string {
	clean := strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	out := clean[:min(len(clean), maxName)]
	for n := 2; taken[out]; n++ {
		end := fmt.Sprintf("_%d", n)
		out = clean[:min(len(clean), maxName-len(end))] + end
	}
	taken[out] = true
	return out
}

// sandbox are the tools of every agent.
var sandbox = []guest.ToolInfo{
	{Name: "read_file", Description: "Read one of your files.", InputSchema: json.RawMessage(`{"type":"object","required":["path"],"properties":{"path":{"type":"string"},"offset":{"type":"integer","description":"first line, from 0"},"limit":{"type":"integer","description":"how many lines; 0: all"}}}`)},
	{Name: "write_file", Description: "Write one of your files.", InputSchema: json.RawMessage(`{"type":"object","required":["path","content"],"properties":{"path":{"type":"string"},"content":{"type":"string"}}}`)},
	{Name: "edit_file", Description: "Put a text in place of another in one of your files; it has to be there once.", InputSchema: json.RawMessage(`{"type":"object","required":["path","old_string","new_string"],"properties":{"path":{"type":"string"},"old_string":{"type":"string"},"new_string":{"type":"string"},"replace_all":{"type":"boolean"}}}`)},
	{Name: "list_files", Description: "List your files.", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)},
	{Name: "write_todos", Description: "Replace your todo list.", InputSchema: json.RawMessage(`{"type":"object","required":["todos"],"properties":{"todos":{"type":"array","items":{"type":"object","required":["content","status"],"properties":{"content":{"type":"string"},"status":{"type":"string","enum":["pending","in_progress","completed"]}}}}}}`)},
}

// input is what the tools of the sandbox take.
type input struct {
	Path       string       `json:"path"`
	Offset     int          `json:"offset"`
	Limit      int          `json:"limit"`
	Content    string       `json:"content"`
	OldString  string       `json:"old_string"`
	NewString  string       `json:"new_string"`
	ReplaceAll bool         `json:"replace_all"`
	Todos      []guest.Todo `json:"todos"`
}

// do does what the model asks for, and returns what it is told.
func do(a *guest.Agent, tools []tool, call guest.ModelCall) (string, error) {
	for _, one := range tools {
		switch {
		case one.Name != call.Name:
		case one.server == "":
			return own(a, call)
		default:
			answer, err := a.Call(one.server, one.name, call.Arguments)
			if err == nil && answer.IsError {
				err = errors.New(answer.Text)
			}
			return answer.Text, err
		}
	}
	return "", fmt.Errorf("there is no tool %q", call.Name)
}

// own does what a tool of the sandbox does.
func own(a *guest.Agent, call guest.ModelCall) (string, error) {
	var in input
	if err := json.Unmarshal(call.Arguments, &in); err != nil {
		return "", fmt.Errorf("the arguments do not read: %w", err)
	}
	switch call.Name {
	case "read_file":
		return a.ReadFile(in.Path, in.Offset, in.Limit)
	case "write_file":
		return "written", a.WriteFile(in.Path, in.Content)
	case "edit_file":
		return "edited", a.EditFile(in.Path, in.OldString, in.NewString, in.ReplaceAll)
	case "list_files":
		paths, err := a.ListFiles()
		return strings.Join(paths, "\n"), err
	}
	return "written", a.SetTodos(in.Todos)
}
