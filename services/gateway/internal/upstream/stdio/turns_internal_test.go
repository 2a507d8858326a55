package stdio

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Case X1. The gateway acquires a processor slot before it parses a large message, and before it replaces the id in a
// large answer.
func TestReadAnswers_WaitForAProcessorSlot(t *testing.T) {
	t.Parallel()
	all, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	memory := all.Open(&limits.Owner{Accounts: principal.AccountsOfKey(principal.Key{Tenant: "acme", Subject: "ana"}), Server: "s"})
	disconnected, cancel := context.WithCancel(t.Context()) // the wait for a slot is cancelled
	cancel()
	for size, want := range map[int]error{100: nil, limits.UncountedBytes + 1: context.Canceled} {
		blanks := strings.Repeat(" ", size)
		a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`+blanks), jsonrpc.AnswerLimits())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&pendingCall{client: []byte("7"), room: memory}).withClientID(disconnected, a); !errors.Is(err, want) {
			t.Errorf("an answer of %d bytes: %v, want %v", size, err, want)
		}
	}
}
