package mcpserver

import (
	"strconv"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
)

// A caller with many calls displaces neither the calls nor the approvals that are remembered for other callers.
func TestHookMemories_CallersHaveTheirOwn(t *testing.T) {
	t.Parallel()
	m := newHookMemories()
	ana, bob := httpserver.Caller{Principal: &identityv1.Principal{Subject: "ana"}}, httpserver.Caller{Principal: &identityv1.Principal{Subject: "bob"}}
	event := hookEvent{Event: "call", Tool: "Bash", Input: []byte("{}"), ID: "u1"}
	judged := 0
	judge := func() hookVerdict { judged++; return hookVerdict{Verdict: verdictPass} }
	m.of(ana).putApproved(approvedKey(ana, "codex", event))
	m.of(ana).once(t.Context(), ana, "codex", event, judge)
	for i := range 2 * maxHookCalls {
		other := event
		other.ID, other.Turn = "u"+strconv.Itoa(i), strconv.Itoa(i)
		m.of(bob).putApproved(approvedKey(bob, "codex", other))
		m.of(bob).once(t.Context(), bob, "codex", other, func() hookVerdict { return hookVerdict{Verdict: verdictPass} })
	}
	if m.of(ana).once(t.Context(), ana, "codex", event, judge); judged != 1 {
		t.Errorf("the call of ana was evaluated %d times", judged)
	}
	if !m.of(ana).takeApproved(approvedKey(ana, "codex", event)) {
		t.Error("the approval of ana is lost")
	}
	if m.of(bob).takeApproved(approvedKey(ana, "codex", event)) {
		t.Error("bob has the approval of ana")
	}
}
