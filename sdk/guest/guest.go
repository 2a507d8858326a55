// Package guest is the SDK for guests. A guest is the WebAssembly module of an agent. It gets prompts, and requests
// each effect from its host, for example a file access, a tool call or a question to a model. A guest is ordinary Go
// code that waits for the results:
//
//	func init() {
//		guest.Serve(func(a *guest.Agent, prompt string) (string, error) {
//			return strings.ToUpper(prompt), a.WriteFile("prompt.txt", prompt)
//		})
//	}
//
//	func main() {}
//
// Build it with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -o agent.wasm .
//
// While a guest waits for a result, and between two prompts, the host may store the guest, restore it on another
// machine, or run it again from its journal. Therefore the output of a guest must depend only on what it gets from its
// host. Goroutines, the clock and random numbers behave in the same way in each run.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// maxEnvelope is the maximum size of an envelope's JSON in bytes, not including the sequence number.
const maxEnvelope = 1<<20 - 64

// ErrCancelled is returned by all methods that request effects after the caller has cancelled the prompt. The [Handle]
// should then return without delay.
var ErrCancelled = errors.New("the prompt was cancelled")

// A Handle answers a prompt. The turn ends when the Handle returns. If the Handle returns an error, the caller of the
// prompt gets the error.
type Handle func(a *Agent, prompt string) (answer string, err error)

// Agent is the agent that runs the guest. Its methods request effects from the host. Only the goroutine of the [Handle]
// may use it.
type Agent struct {
	// Instructions contains the instructions with which the agent was created. It may be empty.
	Instructions string
	// MaxTurns is the maximum number of the agent's turns.
	MaxTurns int
	// Model is the agent's default model. It is empty if no model is configured.
	Model string
	// Conversation and Todos are set if the agent was migrated to this guest from another module with sluice agents
	// migrate. They contain the previous messages of the user and the assistant, and the todo list. Otherwise both are
	// empty. They do not change after the guest has started.
	Conversation []Message
	Todos        []Todo

	sequence  int64
	done      bool
	cancelled bool
	fromHost  chan hostEnvelope
	toHost    chan guestEnvelope
}

var agent = &Agent{fromHost: make(chan hostEnvelope), toHost: make(chan guestEnvelope)}

// gcPercent is the GOGC percentage of guests. It is lower than Go's default, because the host stores the guest's
// memory, including its garbage, after each turn.
const gcPercent = 25

// Serve sets the function that answers prompts. It must be called once, in an init function.
func Serve(handle Handle) {
	debug.SetGCPercent(gcPercent)
	go agent.serve(handle)
}

func (a *Agent) serve(handle Handle) {
	for {
		switch e := <-a.fromHost; e.Kind {
		case kindStart:
			a.Instructions, a.MaxTurns, a.Model = e.Instructions, e.MaxTurns, e.Model
			a.Conversation, a.Todos = e.Messages, e.Todos
			a.toHost <- a.numbered(guestEnvelope{Kind: "finish"})
		case kindPrompt:
			a.cancelled, a.done = false, false
			answer, err := handle(a, e.Input)
			if err != nil {
				a.toHost <- a.numbered(guestEnvelope{Kind: "fail", Text: err.Error()})
				continue
			}
			a.toHost <- a.numbered(guestEnvelope{Kind: "finish", Text: answer, Done: a.done})
		default: // a cancellation that arrives after the end of the turn
			a.toHost <- a.numbered(guestEnvelope{Kind: "finish"})
		}
	}
}

func (a *Agent) numbered(e guestEnvelope) guestEnvelope {
	a.sequence++
	e.Sequence = a.sequence
	return e
}

// effect requests an effect and waits for the result. If into is not nil, effect decodes the result into it.
func (a *Agent) effect(e guestEnvelope, into any) error {
	if a.cancelled {
		return ErrCancelled
	}
	if text, err := json.Marshal(e); err != nil || len(text) > maxEnvelope {
		return &Error{Code: "too_large", Message: "the envelope is not valid JSON, or has more than 1 MiB"}
	}
	a.toHost <- a.numbered(e)
	answer := <-a.fromHost
	switch {
	case answer.Kind == kindCancel:
		a.cancelled = true
		return ErrCancelled
	case answer.Kind != kindResult:
		return fmt.Errorf("guest: got an envelope %q instead of a result", answer.Kind)
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

// Ask sends a conversation to a model and returns the response. model has the form `provider:name`. If model is empty,
// Ask uses the agent's default model. If the host did not send the request or the model did not respond, the error is
// an [*Error].
func (a *Agent) Ask(model string, messages []Message, tools ...ToolInfo) (ModelAnswer, error) {
	var answer ModelAnswer
	return answer, a.effect(guestEnvelope{Kind: "model", Model: model, Messages: messages, Tools: tools}, &answer)
}

// Call calls a tool of a server. arguments must encode to a JSON object. If the call was refused, or its outcome is
// unknown, the error is an [*Error].
func (a *Agent) Call(server, tool string, arguments any) (ToolAnswer, error) {
	text, err := json.Marshal(arguments)
	if err != nil {
		return ToolAnswer{}, fmt.Errorf("guest: write the arguments of %s: %w", tool, err)
	}
	var answer ToolAnswer
	return answer, a.effect(guestEnvelope{Kind: "tool", Server: server, Tool: tool, Arguments: text}, &answer)
}

// Tools returns the server tools that the agent has the right to call, except those that the policy service hides from
// the agent.
func (a *Agent) Tools() ([]ServerTool, error) {
	var all []ServerTool
	return all, a.effect(guestEnvelope{Kind: "tools"}, &all)
}

// ReadFile reads one of the agent's files. It returns at most limit lines, beginning at the given line number. The
// first line has the number 0. If limit is 0, ReadFile returns all lines from the given line on.
func (a *Agent) ReadFile(path string, offset, limit int) (string, error) {
	var content string
	return content, a.effect(guestEnvelope{Kind: "fs", Op: "read_file", Path: path, Offset: offset, Limit: limit}, &content)
}

// WriteFile writes one of the agent's files. It replaces the content if the file exists.
func (a *Agent) WriteFile(path, content string) error {
	return a.effect(guestEnvelope{Kind: "fs", Op: "write_file", Path: path, Content: content}, nil)
}

// EditFile replaces a string in one of the agent's files. If all is true, it replaces every occurrence. Otherwise, the
// replaced string must occur exactly once.
func (a *Agent) EditFile(path, from, to string, all bool) error {
	return a.effect(guestEnvelope{Kind: "fs", Op: "edit_file", Path: path, OldString: from, NewString: to, ReplaceAll: all}, nil)
}

// ListFiles returns the paths of the agent's files.
func (a *Agent) ListFiles() ([]string, error) {
	var paths []string
	return paths, a.effect(guestEnvelope{Kind: "fs", Op: "list_files"}, &paths)
}

// SetTodos replaces the agent's todo list.
func (a *Agent) SetTodos(todos []Todo) error {
	if todos == nil {
		todos = []Todo{}
	}
	return a.effect(guestEnvelope{Kind: "todo", Todos: &todos}, nil)
}

// Emit sends a progress message to the caller that sent the prompt.
func (a *Agent) Emit(text string) error {
	return a.effect(guestEnvelope{Kind: "emit", Text: text}, nil)
}

// Sleep waits for d. Meanwhile the host may store the guest and restore it on another machine.
func (a *Agent) Sleep(d time.Duration) error {
	return a.effect(guestEnvelope{Kind: "sleep", Milliseconds: d.Milliseconds()}, nil)
}

// Done marks the agent's goal as reached. After this turn the agent accepts no more prompts.
func (a *Agent) Done() { a.done = true }
