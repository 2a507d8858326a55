// Package abi defines the messages that a guest and its host exchange (ABI 1). The messages are JSON envelopes. In each
// step, a guest receives one envelope and returns one envelope. Package sdk/guest implements the ABI for guests.
package abi

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// These are the kinds of envelopes that a guest receives.
const (
	Start  = "start"
	Prompt = "prompt"
	Result = "effect_result"
	Cancel = "cancel"
)

// These are the kinds of envelopes that a guest returns. Finish and Fail end the turn. All other kinds request an
// effect.
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

// HostEnvelope is an envelope for a guest. Only the fields that belong to its Kind are set.
type HostEnvelope struct {
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence"`
	// Instructions, MaxTurns and Model are set for the kind Start.
	Instructions string `json:"instructions,omitzero"`
	MaxTurns     int    `json:"max_turns,omitzero"`
	Model        string `json:"model,omitzero"`
	// Messages and Todos are set for the kind Start if the agent was migrated from another module. They contain the
	// agent's conversation and todos.
	Messages []Message  `json:"messages,omitempty"`
	Todos    []TodoItem `json:"todos,omitempty"`
	// Input is set for the kind Prompt.
	Input string `json:"input,omitzero"`
	// Result and Error are set for the kind Result. Exactly one of them is set. Result is the effect's result as a JSON
	// value. Error is the reason why the effect failed.
	Result jsontext.Value `json:"result,omitzero"`
	Error  *Error         `json:"error,omitzero"`
	// Reason is set for the kind Cancel.
	Reason string `json:"reason,omitzero"`
}

// Message is a message of a conversation.
type Message struct {
	// Role is "user" or "assistant".
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Error states why an effect failed.
type Error struct {
	// Code is a code that does not change in later versions, for example "file_unknown".
	Code    string `json:"code"`
	Message string `json:"message"`
}

// GuestEnvelope is an envelope from a guest, which is not trusted.
type GuestEnvelope struct {
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence"`

	// Model, Messages and Tools are used for the kind Model. The field Model is the name of the model to ask. If it is
	// empty, the agent's own model is asked.
	Model    string         `json:"model"`
	Messages jsontext.Value `json:"messages"`
	Tools    jsontext.Value `json:"tools"`
	// Server, Tool and Arguments are used for the kind Tool.
	Server    string         `json:"server"`
	Tool      string         `json:"tool"`
	Arguments jsontext.Value `json:"arguments"`
	// Op, Path, Content, OldString, NewString, ReplaceAll, Offset and Limit are used for the kind FS.
	Op         string `json:"op"`
	Path       string `json:"path"`
	Content    string `json:"content"`
	OldString  string `json:"old_string"`
	NewString  string `json:"new_string"`
	ReplaceAll bool   `json:"replace_all"`
	Offset     int    `json:"offset"`
	Limit      int    `json:"limit"`
	// Todos is used for the kind Todo.
	Todos []TodoItem `json:"todos"`
	// Text is used for the kinds Emit, Finish and Fail.
	Text string `json:"text"`
	// Milliseconds is used for the kind Sleep.
	Milliseconds int64 `json:"milliseconds"`
	// Done is used for the kind Finish. It is true if the agent has reached its goal and accepts no more prompts.
	Done bool `json:"done"`
}

// TodoItem is an entry of a todo list.
type TodoItem struct {
	Content string `json:"content"`
	// Status is "pending", "in_progress" or "completed".
	Status string `json:"status"`
}

// JSONError returns a description of a JSON error. The description contains the position of the error, but no names of
// Go types.
func JSONError(err error) string {
	own, ok := errors.AsType[*json.SemanticError](err)
	switch {
	case !ok:
		return err.Error()
	case errors.Is(own.Err, json.ErrUnknownName):
		return fmt.Sprintf("at %s: the field is not known", own.JSONPointer)
	default:
		return fmt.Sprintf("at %q: a JSON %s is not allowed here", own.JSONPointer, own.JSONKind)
	}
}

var kinds = map[string]bool{Model: true, Tool: true, Tools: true, FS: true, Todo: true, Emit: true, Sleep: true, Finish: true, Fail: true}

// Encode encodes an envelope for a guest.
func Encode(e HostEnvelope) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write an envelope: %w", err)
	}
	return text, nil
}

// Decode parses an envelope from a guest. It returns an error if a field is unknown or occurs twice, or if the kind is
// unknown.
func Decode(text []byte) (GuestEnvelope, error) {
	var e GuestEnvelope
	if err := json.Unmarshal(text, &e, json.RejectUnknownMembers(true)); err != nil {
		return GuestEnvelope{}, fmt.Errorf("the guest did not return a valid envelope: %s", JSONError(err))
	}
	if !kinds[e.Kind] {
		return GuestEnvelope{}, errors.New("the guest returned an envelope of an unknown kind")
	}
	return e, nil
}

// DecodeHost parses an envelope that [Encode] encoded.
func DecodeHost(text []byte) (HostEnvelope, error) {
	var e HostEnvelope
	if err := json.Unmarshal(text, &e); err != nil {
		return HostEnvelope{}, fmt.Errorf("read an envelope: %w", err)
	}
	return e, nil
}
