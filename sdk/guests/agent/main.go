// Command agent is a guest that a model controls. It sends the conversation to its model, makes the tool calls that the
// model requests, and sends the results to the model. It repeats this until the model responds without calls. The model
// can use the tools of servers, and built-in tools for the agent's files and todos.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-mesh/sluice/sdk/guest"
)

const (
	// maxQuestions is the maximum number of requests to the model in one turn.
	maxQuestions = 64
	// maxConversation is the maximum size in bytes of the conversation that is sent to the model. If the conversation
	// is larger, its oldest messages are dropped.
	maxConversation = 256 << 10
	// maxToolResult is the maximum size in bytes of a tool result that is sent to the model. A larger result is
	// truncated.
	maxToolResult = 32 << 10
	// maxTools is the maximum number of tools that the model can use. maxDescription and maxSchema are the maximum
	// sizes in bytes of each tool's description and input schema.
	maxTools       = 128
	maxDescription = 4096
	maxSchema      = 64 << 10
	// maxName is the maximum length of a tool name that models accept, in bytes.
	maxName = 64
)

func init() { guest.Serve(new(conversation).run) }

func main() {}

// conversation is the conversation with the model, which continues from one prompt to the next.
type conversation struct{ messages []guest.Message }

func (t *conversation) run(a *guest.Agent, prompt string) (string, error) {
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
	answer, err := t.askUntilAnswered(a, tools, infos, prompt)
	if err != nil {
		t.endFailedTurn(err)
	}
	return answer, err
}

// askUntilAnswered asks the model and makes the calls that the model requests, until the model responds without calls.
func (t *conversation) askUntilAnswered(a *guest.Agent, tools []tool, infos []guest.ToolInfo, prompt string) (string, error) {
	t.messages = append(t.messages, guest.Message{Role: "user", Content: prompt})
	for range maxQuestions {
		t.trim()
		answer, err := a.Ask("", t.requestMessages(a), infos...)
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
			result, err := callTool(a, tools, call)
			if errors.Is(err, guest.ErrCancelled) {
				return "", err
			}
			if err != nil {
				result = "error: " + err.Error()
			}
			if len(result) > maxToolResult {
				result = strings.ToValidUTF8(result[:maxToolResult], "") + " … (cut)"
			}
			t.messages = append(t.messages, guest.Message{Role: "tool", Content: result, CallID: call.ID})
		}
	}
	return "", fmt.Errorf("the model was asked %d times, and still asks for calls", maxQuestions)
}

// requestMessages returns the messages for the model, which are the instructions followed by the conversation.
func (t *conversation) requestMessages(a *guest.Agent) []guest.Message {
	if a.Instructions == "" {
		return t.messages
	}
	return append([]guest.Message{{Role: "system", Content: a.Instructions}}, t.messages...)
}

// trim shortens a conversation that is too long. It drops the oldest prompts, each with all messages up to the next
// prompt. It never drops the newest prompt.
func (t *conversation) trim() {
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
		if size <= maxConversation || next == 0 {
			return
		}
		t.messages = append([]guest.Message(nil), t.messages[next:]...)
	}
}

// tool is a tool that the model may call. If server is empty, it is a built-in tool.
type tool struct {
	guest.ToolInfo
	server, name string
}

func (t *conversation) tools(a *guest.Agent) ([]tool, error) {
	var out []tool
	for _, builtin := range builtinTools {
		out = append(out, tool{ToolInfo: builtin})
	}
	list, err := a.Tools()
	var refused *guest.Error
	if err != nil && !errors.As(err, &refused) { // if the list is refused, the model still has the built-in tools
		return nil, err
	}
	taken := map[string]bool{}
	for _, builtin := range builtinTools {
		taken[builtin.Name] = true
	}
	for _, serverTool := range list {
		if len(out) == maxTools || len(serverTool.InputSchema) > maxSchema {
			continue
		}
		if len(serverTool.Description) > maxDescription {
			serverTool.Description = strings.ToValidUTF8(serverTool.Description[:maxDescription], "")
		}
		name := uniqueName(taken, serverTool.Server+"__"+serverTool.Name)
		out = append(out, tool{guest.ToolInfo{Name: name, Description: serverTool.Description, InputSchema: serverTool.InputSchema}, serverTool.Server, serverTool.Name})
	}
	return out, nil
}

// uniqueName converts a name to a tool name that models accept and that is not taken yet. It adds the result to the
// taken names.
func uniqueName(taken map[string]bool, name string) string {
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

var builtinTools = []guest.ToolInfo{
	{Name: "read_file", Description: "Read one of your files.", InputSchema: json.RawMessage(`{"type":"object","required":["path"],"properties":{"path":{"type":"string"},"offset":{"type":"integer","description":"the first line to read, from 0"},"limit":{"type":"integer","description":"the number of lines to read; 0 means all"}}}`)},
	{Name: "write_file", Description: "Write one of your files.", InputSchema: json.RawMessage(`{"type":"object","required":["path","content"],"properties":{"path":{"type":"string"},"content":{"type":"string"}}}`)},
	{Name: "edit_file", Description: "Replace a text by another in one of your files. Unless replace_all is true, the text must occur exactly once.", InputSchema: json.RawMessage(`{"type":"object","required":["path","old_string","new_string"],"properties":{"path":{"type":"string"},"old_string":{"type":"string"},"new_string":{"type":"string"},"replace_all":{"type":"boolean"}}}`)},
	{Name: "list_files", Description: "List your files.", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)},
	{Name: "write_todos", Description: "Replace your todo list.", InputSchema: json.RawMessage(`{"type":"object","required":["todos"],"properties":{"todos":{"type":"array","items":{"type":"object","required":["content","status"],"properties":{"content":{"type":"string"},"status":{"type":"string","enum":["pending","in_progress","completed"]}}}}}}`)},
}

// builtinArguments contains the arguments of all built-in tools.
type builtinArguments struct {
	Path       string       `json:"path"`
	Offset     int          `json:"offset"`
	Limit      int          `json:"limit"`
	Content    string       `json:"content"`
	OldString  string       `json:"old_string"`
	NewString  string       `json:"new_string"`
	ReplaceAll bool         `json:"replace_all"`
	Todos      []guest.Todo `json:"todos"`
}

// callTool makes a call and returns the tool message for the model.
func callTool(a *guest.Agent, tools []tool, call guest.ModelCall) (string, error) {
	for _, candidate := range tools {
		switch {
		case candidate.Name != call.Name:
		case candidate.server == "":
			return callBuiltin(a, call)
		default:
			answer, err := a.Call(candidate.server, candidate.name, call.Arguments)
			if err == nil && answer.IsError {
				err = errors.New(answer.Text)
			}
			return answer.Text, err
		}
	}
	return "", fmt.Errorf("there is no tool %q", call.Name)
}

func callBuiltin(a *guest.Agent, call guest.ModelCall) (string, error) {
	var in builtinArguments
	if err := json.Unmarshal(call.Arguments, &in); err != nil {
		return "", fmt.Errorf("parse the arguments: %w", err)
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
