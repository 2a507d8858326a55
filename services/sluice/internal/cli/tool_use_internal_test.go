package cli

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

// The field Busiest is the maximum number of calls per minute in one session. The session may be that of the caller or
// of a principal in the caller's delegation chain.
func TestToolUses_CountsCallsAndBusiestMinute(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	session := func(subject, name string, chain ...*identityv1.Principal) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "default", Subject: subject, Session: name, Chain: chain}
	}
	calls := func(u toolUses, tool string, who *identityv1.Principal, at ...time.Duration) {
		for _, after := range at { // newest first
			u.add(&gatewayv1.Record{Method: "tools/call", Tool: tool, Principal: who, Time: timestamppb.New(start.Add(after))})
		}
	}
	seen := make(toolUses)
	for _, name := range []string{"1", "2", "3"} {
		calls(seen, "apart", session("bot", name), 20*time.Second, 10*time.Second)
	}
	calls(seen, "minutes", session("bot", "1"), 180*time.Second, 121*time.Second, 120*time.Second, 60*time.Second, 0)
	run := session("bot", "1")
	run.Run = "r"
	calls(seen, "run", run, time.Second)
	again := session("bot", "2")
	again.Run = "r"
	calls(seen, "run", again, 0)
	olga := session("olga", "")
	for _, name := range []string{"a", "b", "c"} {
		calls(seen, "behind", session(name, "1", olga), 0, 0)
	}
	seen.add(&gatewayv1.Record{Method: "prompts/get", Tool: "prompt", Principal: olga, Time: timestamppb.New(start)})
	want := map[string]policy.Use{
		"apart":   {Calls: 6, Callers: 1, Busiest: 2, Last: start.Add(20 * time.Second)},
		"minutes": {Calls: 5, Callers: 1, Busiest: 2, Last: start.Add(180 * time.Second)},
		"run":     {Calls: 2, Callers: 1, Busiest: 2, Last: start.Add(time.Second)},
		"behind":  {Calls: 6, Callers: 3, Busiest: 6, Last: start.Add(0)},
	}
	if diff := cmp.Diff(want, seen.byTool()); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}
