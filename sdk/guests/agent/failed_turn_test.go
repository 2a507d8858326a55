package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/sdk/guest"
)

// failedTurn returns a conversation with an earlier turn and the current turn. In the current turn, the model has
// requested two calls, and the guest has made the first one.
func failedTurn() conversation {
	return conversation{messages: []guest.Message{
		{Role: "user", Content: "before"}, {Role: "assistant", Content: "done"},
		{Role: "user", Content: "both"},
		{Role: "assistant", Calls: []guest.ModelCall{{ID: "c", Name: "pay", Arguments: json.RawMessage(`{"n":1}`)}, {ID: "c", Name: "pay", Arguments: json.RawMessage(`{"n":2}`)}}},
		{Role: "tool", Content: "paid", CallID: "c"},
	}}
}

func TestEndFailedTurn_KeepsMadeCalls(t *testing.T) {
	t.Parallel()
	k := failedTurn()
	k.endFailedTurn(&guest.Error{Code: "model_overloaded", Message: "status 529"})
	if len(k.messages) != 7 || k.messages[4].Content != "paid" || !strings.Contains(k.messages[5].Content, "before this call was made") || k.messages[5].CallID != "c" {
		t.Fatalf("the conversation is %+v", k.messages)
	}
	if last := k.messages[6]; last.Role != "assistant" || !strings.Contains(last.Content, "model_overloaded: status 529") {
		t.Errorf("the last message is %+v", last)
	}
}

func TestEndFailedTurn_SummarizesCallsWhenConversationIsRejected(t *testing.T) {
	t.Parallel()
	k := failedTurn()
	k.messages[4].Content = strings.Repeat("x", 1<<20)
	k.endFailedTurn(&guest.Error{Code: "model_rejected", Message: "too long"})
	if len(k.messages) != 4 || len(k.messages[3].Calls) > 0 || !strings.Contains(k.messages[3].Content, `pay {"n":1}: xxx`) || len(k.messages[3].Content) > 8<<10 {
		t.Errorf("the conversation is %+v", k.messages)
	}
}

func TestEndFailedTurn_DropsPromptWithoutCalls(t *testing.T) {
	t.Parallel()
	k := conversation{messages: []guest.Message{{Role: "user", Content: "before"}, {Role: "assistant", Content: "done"}, {Role: "user", Content: "bad"}}}
	k.endFailedTurn(errors.New("no"))
	if len(k.messages) != 2 {
		t.Errorf("the conversation is %+v", k.messages)
	}
	new(conversation).endFailedTurn(errors.New("no")) // an empty conversation
}
