// Package guest is the SDK for guests: agents in WebAssembly that get prompts and ask their host for every effect.
// Write ordinary Go that waits for answers:
//
//	func init() {
//		guest.Serve(func(a *guest.Agent, prompt string) (string, error) {
//			return strings.ToUpper(prompt), a.WriteFile("prompt.txt", prompt)
//		})
//	}
//
//	func main() {}
//
// and build it with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o agent.wasm .
//
// Between two prompts, and while it waits, a guest may be stopped, stored, moved to another machine, or run again from
// its journal. Its results may therefore depend only on what its host sent. Goroutines, the clock and random numbers
// are the same in each run.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// maxEnvelope bounds an envelope, in bytes, without its sequence.
const maxEnvelope = 1<<20 - 64

// ErrCancelled is the error of every effect after the caller of the prompt gave up. Return soon.
var ErrCancelled = errors.New("the prompt was cancelled")

// A Handle answers a prompt. Its return ends the turn.
type Handle func(a *Agent, prompt string) (answer string, err error)

// Agent is the agent and its host. Only the goroutine of the [Handle] may use it.
type Agent struct {
	// Instructions are those with which the agent was created; they may be empty.
	Instructions string
	// MaxTurns bounds the agent's turns.
	MaxTurns int
	// Model is the agent's default model; empty if none is configured.
	Model string
	// Conversation and Todos are set if the guest continues after another module (sluice agents migrate): the messages
	// of user and assistant so far, and the todo list. Otherwise both are empty. They do not change after the start.
	Conversation []Message
	Todos        []Todo

	sequence  int64
	done      bool
	cancelled bool
	in        chan received
	out       chan sent
}

var agent = &Agent{in: make(chan received), out: make(chan sent)}

// collectAt is the growth of memory, in percent of what the guest holds, at least 4 MiB, after which garbage is
// collected. It is low because the guest's memory is stored after each turn, including its garbage.
const collectAt = 25

// Serve sets the function that answers prompts. Call it once, in an init function.
func Serve(handle Handle) {
	debug.SetGCPercent(collectAt)
	go agent.serve(handle)
}

func (a *Agent) serve(handle Handle) {
	for {
		switch e := <-a.in; e.Kind {
		case kindStart:
			a.Instructions, a.MaxTurns, a.Model = e.Instructions, e.MaxTurns, e.Model
			a.Conversation, a.Todos = e.Messages, e.Todos
			a.out <- a.next(sent{Kind: "finish"})
		case kindPrompt:
			a.cancelled, a.done = false, false
			answer, err := handle(a, e.Input)
			if err != nil {
				a.out <- a.next(sent{Kind: "fail", Text: err.Error()})
				continue
			}
			a.out <- a.next(sent{Kind: "finish", Text: answer, Done: a.done})
		default: // a cancellation that arrived too late
			a.out <- a.next(sent{Kind: "finish"})
		}
	}
}

// next sets the sequence of an envelope.
func (a *Agent) next(e sent) sent {
	a.sequence++
	e.Sequence = a.sequence
	return e
}

// effect asks for an effect and waits for its result.
func (a *Agent) effect(e sent, into any) error {
	if a.cancelled {
		return ErrCancelled
	}
	if text, err := json.Marshal(e); err != nil || len(text) > maxEnvelope {
		return &Error{Code: "too_large", Message: "what is asked for is no JSON, or has more than a mebibyte"}
	}
	a.out <- a.next(e)
	answer := <-a.in
	switch {
	case answer.Kind == kindCancel:
		a.cancelled = true
		return ErrCancelled
	case answer.Kind != kindResult:
		return fmt.Errorf("guest: an envelope %q in place of a result", answer.Kind)
	case answer.Error != nil:
		return answer.Error
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(answer.Result, into); err != nil {
		return fmt.Errorf("guest: read the result of %s: %w", e.Kind, err)
	}
	return nil
}

// Ask asks a model. If model is empty, it asks the agent's own.
func (a *Agent) Ask(model string, messages []Message, tools ...ToolInfo) (ModelAnswer, error) {
	var answer ModelAnswer
	return answer, a.effect(sent{Kind: "model", Model: model, Messages: messages, Tools: tools}, &answer)
}

// Call calls a tool of a server. A refusal by policy is an [*Error].
func (a *Agent) Call(server, tool string, arguments any) (ToolAnswer, error) {
	text, err := json.Marshal(arguments)
	if err != nil {
		return ToolAnswer{}, fmt.Errorf("guest: write the arguments of %s: %w", tool, err)
	}
	var answer ToolAnswer
	return answer, a.effect(sent{Kind: "tool", Server: server, Tool: tool, Arguments: text}, &answer)
}

// Tools returns the tools of servers that the agent may call and that policy shows to it.
func (a *Agent) Tools() ([]ServerTool, error) {
	var all []ServerTool
	return all, a.effect(sent{Kind: "tools"}, &all)
}

// ReadFile returns limit lines of one of the agent's own files, from line offset, which counts from 0. A limit of 0
// means all lines that are left.
func (a *Agent) ReadFile(path string, offset, limit int) (string, error) {
	var content string
	return content, a.effect(sent{Kind: "fs", Op: "read_file", Path: path, Offset: offset, Limit: limit}, &content)
}

// WriteFile writes one of the agent's own files.
func (a *Agent) WriteFile(path, content string) error {
	return a.effect(sent{Kind: "fs", Op: "write_file", Path: path, Content: content}, nil)
}

// EditFile replaces the text from by to. from must be in the file exactly once; if all is set, each occurrence is
// replaced.
func (a *Agent) EditFile(path, from, to string, all bool) error {
	return a.effect(sent{Kind: "fs", Op: "edit_file", Path: path, OldString: from, NewString: to, ReplaceAll: all}, nil)
}

// ListFiles returns the paths of the agent's own files.
func (a *Agent) ListFiles() ([]string, error) {
	var paths []string
	return paths, a.effect(sent{Kind: "fs", Op: "list_files"}, &paths)
}

// SetTodos replaces the agent's todo list.
func (a *Agent) SetTodos(todos []Todo) error {
	if todos == nil {
		todos = []Todo{}
	}
	return a.effect(sent{Kind: "todo", Todos: &todos}, nil)
}

// Emit sends a text to the caller of the prompt, as progress.
func (a *Agent) Emit(text string) error { return a.effect(sent{Kind: "emit", Text: text}, nil) }

// Sleep waits. The agent may be stored and moved meanwhile.
func (a *Agent) Sleep(d time.Duration) error {
	return a.effect(sent{Kind: "sleep", Milliseconds: d.Milliseconds()}, nil)
}

// Done marks the agent's goal as reached: after this turn it takes no prompts.
func (a *Agent) Done() { a.done = true }
