package guest

import "encoding/json"

// hostEnvelope is an envelope from the host. In each step, the guest receives one envelope and returns one envelope.
// This file contains the JSON envelopes of ABI 1.

type hostEnvelope struct {
	Kind string `json:"kind"`
	// Instructions, MaxTurns and Model are set in envelopes of kind start.
	Instructions string `json:"instructions"`
	MaxTurns     int    `json:"max_turns"`
	Model        string `json:"model"`
	// Messages and Todos are set in envelopes of kind start, but only if the agent was migrated to this guest from
	// another module.
	Messages []Message `json:"messages"`
	Todos    []Todo    `json:"todos"`
	// Input is set in envelopes of kind prompt.
	Input string `json:"input"`
	// Result and Error are set in envelopes of kind effect_result. Exactly one of them is set.
	Result json.RawMessage `json:"result"`
	Error  *Error          `json:"error"`
	// Reason is set in envelopes of kind cancel.
	Reason string `json:"reason"`
}

const (
	kindStart  = "start"
	kindPrompt = "prompt"
	kindResult = "effect_result"
	kindCancel = "cancel"
)

// guestEnvelope is an envelope to the host. It requests an effect or ends a turn.
type guestEnvelope struct {
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence"`

	// Model, Messages and Tools are set in envelopes of kind model.
	Model    string     `json:"model,omitempty"`
	Messages []Message  `json:"messages,omitempty"`
	Tools    []ToolInfo `json:"tools,omitempty"`
	// Server, Tool and Arguments are set in envelopes of kind tool.
	Server    string          `json:"server,omitempty"`
	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Op, Path, Content, OldString, NewString, ReplaceAll, Offset and Limit are set in envelopes of kind fs.
	Op         string `json:"op,omitempty"`
	Path       string `json:"path,omitempty"`
	Content    string `json:"content,omitempty"`
	OldString  string `json:"old_string,omitempty"`
	NewString  string `json:"new_string,omitempty"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	Offset     int    `json:"offset,omitempty"`
	Limit      int    `json:"limit,omitempty"`
	// Todos is set in envelopes of kind todo, and is required there.
	Todos *[]Todo `json:"todos,omitempty"`
	// Text is set in envelopes of the kinds emit, finish and fail.
	Text string `json:"text,omitempty"`
	// Milliseconds is set in envelopes of kind sleep.
	Milliseconds int64 `json:"milliseconds,omitempty"`
	// Done is set in envelopes of kind finish. It is true if the agent has reached its goal and accepts no more
	// prompts.
	Done bool `json:"done,omitempty"`
}

// Message is a message of a conversation with a model.
type Message struct {
	// Role is system, user, assistant or tool.
	Role    string `json:"role"`
	Content string `json:"content"`
	// Calls contains the tool calls that the model requests. Only messages whose role is assistant have calls.
	Calls []ModelCall `json:"calls,omitempty"`
	// CallID is set in messages whose role is tool. It is the id of the call whose result the message contains.
	CallID string `json:"call_id,omitempty"`
}

// ModelCall is a tool call that a model requests.
type ModelCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// ToolInfo describes a tool to a model. InputSchema is a JSON Schema.
type ToolInfo struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// ModelAnswer is the response of a model: content, tool calls, or both.
type ModelAnswer struct {
	Content string      `json:"content"`
	Calls   []ModelCall `json:"calls"`
}

// A ServerTool describes a tool of an MCP server that the agent may call.
type ServerTool struct {
	Server      string          `json:"server"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// ToolAnswer is the result of a call to a tool of an MCP server.
type ToolAnswer struct {
	// Text is the text content of the result. IsError is true if the tool reports an error.
	Text    string `json:"text"`
	IsError bool   `json:"is_error"`
	// Structured is the structured content of the result. It is empty if the result has no structured content.
	Structured json.RawMessage `json:"structured"`
}

// Todo is an entry of the agent's todo list.
type Todo struct {
	Content string `json:"content"`
	// Status is pending, in_progress or completed.
	Status string `json:"status"`
}

// Error is the reason why the host did not carry out an effect.
type Error struct {
	// Code is a stable code, for example denied_by_rule.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Message }
