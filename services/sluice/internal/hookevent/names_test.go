package hookevent_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
)

// Codex also replaces hyphens, so a tool of the server my-notes has the same name as a tool of the server my_notes. If
// the entry my_notes goes through the mesh, this must not cause calls to my-notes to be allowed. Claude Code does not
// replace hyphens.
func TestBelongs_IncludesNamesWithHyphensInCodex(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		client, tool, server string
		want                 bool
	}{
		{"codex", "mcp__my_notes__list", "my-notes", true},
		{"codex", "mcp__my_notes__list", "my_notes", true},
		{"codex", "mcp__my_notes__list", "my.notes", true},
		{"codex", "mcp__my-notes__list", "my-notes", true}, // as earlier versions write it
		{"codex", "mcp__my_notes__list", "my", false},
		{"codex", "mcp__my_notes__list", "your-notes", false},
		{"codex", "my_notes__list", "my-notes", false},
		{"claude-code", "mcp__my-notes__list", "my-notes", true},
		{"claude-code", "mcp__my_notes__list", "my-notes", false},
	} {
		e := hookevent.Event{Client: tt.client, Tool: tt.tool, MCP: &hookevent.Server{}}
		if got := e.Belongs(tt.server); got != tt.want {
			t.Errorf("%s: %s of %q: %t", tt.client, tt.tool, tt.server, got)
		}
	}
}
