package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-mesh/sluice/sdk/guest"
)

// maxSummaryText is the maximum length of each string that the function shorten returns, in bytes, not including the
// truncation mark.
const maxSummaryText = 1 << 10

// endFailedTurn completes the conversation after a failed turn. The tool calls of the turn stay in the conversation
// with their results, so that the model does not repeat them. If the provider might have rejected the conversation
// itself, endFailedTurn replaces the turn with a short summary of the turn's calls. If the turn consists only of its
// prompt, endFailedTurn removes the prompt, because the provider might reject the prompt again in every later turn.
func (t *conversation) endFailedTurn(err error) {
	first := len(t.messages) - 1
	for first >= 0 && t.messages[first].Role != "user" {
		first--
	}
	if first < 0 {
		return
	}
	turn := t.messages[first:]
	if len(turn) == 1 {
		t.messages = t.messages[:first]
		return
	}
	turn = append(turn, missingResults(turn)...)
	note := "[The turn ended here without an answer: " + shorten(err.Error()) + ". The calls above were made, and their results are valid.]"
	if mayBeRejected(err) {
		note += "\n" + summary(turn)
		turn = []guest.Message{{Role: "user", Content: shorten(turn[0].Content)}}
	}
	t.messages = append(t.messages[:first:first], append(turn, guest.Message{Role: "assistant", Content: note})...)
}

// missingResults returns results for the calls that a turn requested but did not make, because providers reject a call
// without a result. Calls are made in order, so the missing results belong to the last calls of the newest message with
// calls.
func missingResults(turn []guest.Message) (out []guest.Message) {
	at := len(turn) - 1
	for turn[at].Role == "tool" {
		at--
	}
	for _, call := range turn[at].Calls[min(len(turn)-1-at, len(turn[at].Calls)):] {
		out = append(out, guest.Message{Role: "tool", Content: "error: the turn ended before this call was made", CallID: call.ID})
	}
	return out
}

// mayBeRejected reports whether the provider might have rejected the conversation itself.
func mayBeRejected(err error) bool {
	var failure *guest.Error
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Code {
	case "model_rejected", "question_invalid", "too_large", "arguments_invalid":
		return true
	}
	return false
}

func summary(turn []guest.Message) string {
	var lines []string
	var calls []guest.ModelCall
	for _, m := range turn {
		calls = append(calls, m.Calls...)
		if m.Role == "tool" {
			lines = append(lines, fmt.Sprintf("%s %s: %s", calls[0].Name, shorten(string(calls[0].Arguments)), shorten(m.Content)))
			calls = calls[1:]
		}
	}
	return strings.Join(lines, "\n")
}

// shorten truncates a string to maxSummaryText bytes and marks it as truncated.
func shorten(text string) string {
	if len(text) <= maxSummaryText {
		return text
	}
	return strings.ToValidUTF8(text[:maxSummaryText], "") + " … (cut)"
}
