package guest

import "encoding/json"

// The envelopes of ABI 1, as JSON: each step gets one and returns one.

// received is an envelope of the host.
type received struct {
	Kind string `json:"kind"`
	// Instructions, MaxTurns and Model come with start.
	Instructions string `json:"instructions"`
	MaxTurns     int    `json:"max_turns"`
	Model        string `json:"model"`
	// Messages and Todos come with start to a guest that takes over from another module.
	Messages []Message `json:"messages"`
	Todos    []Todo    `json:"todos"`
	// Input comes with prompt.
	Input string `json:"input"`
	// Result or Error come with effect_result.
	Result json.RawMessage `json:"result"`
	Error  *Error          `json:"error"`
	// Reason comes with cancel.
	Reason string `json:"reason"`
}

// The kinds of what is received.
const (
	kindStart  = "start"
	kindPrompt = "prompt"
	kindResult = "effect_result"
	kindCancel = "cancel"
)

// sent is an envelope of the guest: an effect that it asks for, or the end of a turn.
type sent struct {
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence"`

	// Of model.
	Model    string     `json:"model,omitempty"`
	Messages []Message  `json:"messages,omitempty"`
	Tools    []ToolInfo `json:"tools,omitempty"`
	// Of tool.
	Server    string          `json:"server,omitempty"`
	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Of fs.
	Op         string `json:"op,omitempty"`
	Path       string `json:"path,omitempty"`
	Content    string `json:"content,omitempty"`
	OldString  string `json:"old_string,omitempty"`
	NewString  string `json:"new_string,omitempty"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	Offset     int    `json:"offset,omitempty"`
	Limit      int    `json:"limit,omitempty"`
	// Of todo; never absent there.
	Todos *[]Todo `json:"todos,omitempty"`
	// Of emit, finish and fail.
	Text string `json:"text,omitempty"`
	// Of sleep.
	Milliseconds int64 `json:"milliseconds,omitempty"`
	// Done, of finish, says that the agent has reached its goal and wants no more prompts.
	Done bool `json:"done,omitempty"`
}

// Message is one message of a conversation with a model.
type Message struct {
	// Role is system, user, assistant or tool.
	Role    string `json:"role"`
	Content string `json:"content"`
	// Calls are what an assistant wants to have called.
	Calls []ModelCall `json:"calls,omitempty"`
	// CallID says which call a message of a tool answers.
	CallID string `json:"call_id,omitempty"`
}

// ModelCall is a call that a model wants.
type ModelCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// ToolInfo tells a model of a tool.
type ToolInfo struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// ModelAnswer is what a model said.
type ModelAnswer struct {
	Content string      `json:"content"`
	Calls   []ModelCall `json:"calls"`
}

// A ServerTool is a tool of a server that the agent may call.
type ServerTool struct {
	Server      string          `json:"server"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// ToolAnswer is what a tool of a server answered.
type ToolAnswer struct {
	// Text is its content as text, and IsError whether the tool says that it failed.
	Text    string `json:"text"`
	IsError bool   `json:"is_error"`
	// Structured is its structured content; empty where it has none.
	Structured json.RawMessage `json:"structured"`
}

// Todo is an entry of the agent's todo list.
type Todo struct {
	Content string `json:"content"`
	// Status is pending, in_progress or completed.
	Status string `json:"status"`
}

// Error is why an effect was not done.
type Error struct {
	// Code is a word that does not change, for example denied_by_rule.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Message }
