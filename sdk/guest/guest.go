// Package guest is for writing guests: agents in WebAssembly that are given prompts and ask
// their host for everything that they want done. Write ordinary Go that waits for answers:
//
//	func init() {
//		guest.Serve(func(a *guest.Agent, prompt string) (string, error) {
//			return strings.ToUpper(prompt), a.WriteFile("prompt.txt", prompt)
//		})
//	}
//
//	func main() {}
//
// and build it by
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o agent.wasm .
//
// Between two prompts, and while it waits, a guest may be stopped, kept, moved to another
// machine or run again from a journal: what it computes may depend on nothing but what its
// host told it. Goroutines, the clock and random numbers are the same each time.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// maxEnvelope is how long an envelope may be, in bytes, but for its sequence.
const maxEnvelope = 1<<20 - 64

// ErrCancelled is what each effect returns once whoever prompted has given up: return soon.
var ErrCancelled = errors.New("the prompt was cancelled")

// A Handle answers a prompt. What it returns ends the turn.
type Handle func(a *Agent, prompt string) (answer string, err error)

// Agent is the guest's host. One goroutine at a time may use it: that of the [Handle].
type Agent struct {
	// Instructions are what the agent was made with; may be empty.
	Instructions string
	// MaxTurns is how many turns it may take.
	MaxTurns int
	// Model is what it asks where nothing else is said; empty: none is configured.
	Model string
	// Conversation is what was said, user and assistant in turn, and Todos are the agent's, where the guest takes
	// over from another module of its: sluice agents migrate. Both are empty otherwise, and as of the start.
	Conversation []Message
	Todos        []Todo

	sequence  int64
	done      bool
	cancelled bool
	in        chan received
	out       chan sent
}

var agent = &Agent{in: make(chan received), out: make(chan sent)}

// collectAt is how much garbage a guest gathers until that is collected, in percent of what it
// holds, of 4 MiB at the least: its memory is kept behind each turn, and garbage with it.
const collectAt = 25

// Serve says what answers prompts. It is to be called once, in an init function.
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
		default: // a cancellation that comes too late
			a.out <- a.next(sent{Kind: "finish"})
		}
	}
}

// next gives an envelope its place.
func (a *Agent) next(e sent) sent {
	a.sequence++
	e.Sequence = a.sequence
	return e
}

// effect asks for an effect and waits for what comes of it.
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

// Ask asks a model: the agent's own where model is empty.
func (a *Agent) Ask(model string, messages []Message, tools ...ToolInfo) (ModelAnswer, error) {
	var answer ModelAnswer
	return answer, a.effect(sent{Kind: "model", Model: model, Messages: messages, Tools: tools}, &answer)
}

// Call calls a tool of a server. What policy denies is an [*Error].
func (a *Agent) Call(server, tool string, arguments any) (ToolAnswer, error) {
	text, err := json.Marshal(arguments)
	if err != nil {
		return ToolAnswer{}, fmt.Errorf("guest: write the arguments of %s: %w", tool, err)
	}
	var answer ToolAnswer
	return answer, a.effect(sent{Kind: "tool", Server: server, Tool: tool, Arguments: text}, &answer)
}

// Tools returns the tools of servers that the agent may call, as far as policy lets it see them.
func (a *Agent) Tools() ([]ServerTool, error) {
	var all []ServerTool
	return all, a.effect(sent{Kind: "tools"}, &all)
}

// ReadFile returns lines of one of the agent's own files, from offset; limit 0 is all.
func (a *Agent) ReadFile(path string, offset, limit int) (string, error) {
	var content string
	return content, a.effect(sent{Kind: "fs", Op: "read_file", Path: path, Offset: offset, Limit: limit}, &content)
}

// WriteFile writes one of the agent's own files.
func (a *Agent) WriteFile(path, content string) error {
	return a.effect(sent{Kind: "fs", Op: "write_file", Path: path, Content: content}, nil)
}

// EditFile puts a text in place of another, which is there once, or everywhere for all.
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

// Emit tells whoever prompts what is being done.
func (a *Agent) Emit(text string) error { return a.effect(sent{Kind: "emit", Text: text}, nil) }

// Sleep waits; the agent may be kept elsewhere meanwhile.
func (a *Agent) Sleep(d time.Duration) error {
	return a.effect(sent{Kind: "sleep", Milliseconds: d.Milliseconds()}, nil)
}

// Done says that the agent has reached its goal: behind this turn it takes no prompts.
func (a *Agent) Done() { a.done = true }
