// Package abi defines the messages between a guest and its host: JSON envelopes, one in and one out for each step (ABI
// 1). The guest's side is the SDK, sdk/guest.
package abi

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Kinds of envelopes for a guest.
const (
	Start  = "start"
	Prompt = "prompt"
	Result = "effect_result"
	Cancel = "cancel"
)

// Kinds of envelopes of a guest: effects that it asks for, and the ends of a turn.
const (
	Model  = "model"
	Tool   = "tool"
	Tools  = "tools"
	FS     = "fs"
	Todo   = "todo"
	Emit   = "emit"
	Sleep  = "sleep"
	Finish = "finish"
	Fail   = "fail"
)

// In is an envelope for a guest. Fields that do not belong to its kind are left out.
type In struct {
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence"`
	// Instructions, MaxTurns and Model belong to Start.
	Instructions string `json:"instructions,omitzero"`
	MaxTurns     int    `json:"max_turns,omitzero"`
	Model        string `json:"model,omitzero"`
	// Messages and Todos belong to Start, for a guest that continues after another module: the conversation and the
	// todos.
	Messages []Said     `json:"messages,omitempty"`
	Todos    []TodoItem `json:"todos,omitempty"`
	// Input belongs to Prompt.
	Input string `json:"input,omitzero"`
	// Result or Error belong to Result: a JSON value, or the reason why there is none.
	Result jsontext.Value `json:"result,omitzero"`
	Error  *Error         `json:"error,omitzero"`
	// Reason belongs to Cancel.
	Reason string `json:"reason,omitzero"`
}

// Said is a message of a conversation.
type Said struct {
	// Role is user or assistant.
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Error is the reason why an effect was not carried out.
type Error struct {
	// Code is a stable code, for example file_unknown.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Out is an envelope of a guest: untrusted input.
type Out struct {
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence"`

	// Of Model. The field Model is the name of the model.
	Model    string         `json:"model"`
	Messages jsontext.Value `json:"messages"`
	Tools    jsontext.Value `json:"tools"`
	// Of Tool.
	Server    string         `json:"server"`
	Tool      string         `json:"tool"`
	Arguments jsontext.Value `json:"arguments"`
	// Of FS.
	Op         string `json:"op"`
	Path       string `json:"path"`
	Content    string `json:"content"`
	OldString  string `json:"old_string"`
	NewString  string `json:"new_string"`
	ReplaceAll bool   `json:"replace_all"`
	Offset     int    `json:"offset"`
	Limit      int    `json:"limit"`
	// Of Todo.
	Todos []TodoItem `json:"todos"`
	// Of Emit, Finish and Fail.
	Text string `json:"text"`
	// Of Sleep.
	Milliseconds int64 `json:"milliseconds"`
	// Done, of Finish, is true if the agent takes no more prompts.
	Done bool `json:"done"`
}

// TodoItem is an entry of a todo list.
type TodoItem struct {
	Content string `json:"content"`
	// Status is pending, in_progress or completed.
	Status string `json:"status"`
}

// Wrong returns what is wrong with a JSON text that can't be parsed, and where, without names of this program.
func Wrong(err error) string {
	own, ok := errors.AsType[*json.SemanticError](err)
	switch {
	case !ok:
		return err.Error()
	case errors.Is(own.Err, json.ErrUnknownName):
		return fmt.Sprintf("at %s: such a field is not known", own.JSONPointer)
	default:
		return fmt.Sprintf("at %q: a JSON %s does not fit", own.JSONPointer, own.JSONKind)
	}
}

var kinds = map[string]bool{Model: true, Tool: true, Tools: true, FS: true, Todo: true, Emit: true, Sleep: true, Finish: true, Fail: true}

// Write encodes an envelope for a guest.
func Write(e In) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write an envelope: %w", err)
	}
	return text, nil
}

// Read parses an envelope of a guest. Unknown and duplicate keys are refused.
func Read(text []byte) (Out, error) {
	var e Out
	if err := json.Unmarshal(text, &e, json.RejectUnknownMembers(true)); err != nil {
		return Out{}, fmt.Errorf("it returned no envelope: %s", Wrong(err))
	}
	if !kinds[e.Kind] {
		return Out{}, errors.New("it returned an envelope of no kind that is known")
	}
	return e, nil
}

// ReadIn parses an envelope that was written for a guest.
func ReadIn(text []byte) (In, error) {
	var e In
	if err := json.Unmarshal(text, &e); err != nil {
		return In{}, fmt.Errorf("read an envelope: %w", err)
	}
	return e, nil
}
