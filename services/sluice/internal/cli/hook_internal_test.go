package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
)

func TestOutputOf_DeniesUnknownVerdicts(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"claude-code", "codex", "gemini"} {
		e := hookevent.Event{Client: client, Kind: hookevent.Call, Name: "PreToolUse", Tool: "Bash"}
		if diff := cmp.Diff(e.Passed(), outputOf(e, meshVerdict{Verdict: "pass"})); diff != "" {
			t.Errorf("%s: pass (-want +got):\n%s", client, diff)
		}
		want := e.Denied("")
		for _, verdict := range []string{"", "deny", "ALLOW", "passed", "observe"} {
			if diff := cmp.Diff(want, outputOf(e, meshVerdict{Verdict: verdict})); diff != "" {
				t.Errorf("%s: %q (-want +got):\n%s", client, verdict, diff)
			}
		}
	}
}
