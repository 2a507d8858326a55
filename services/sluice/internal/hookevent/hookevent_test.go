package hookevent_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
)

var update = flag.Bool("update", false, "write the golden file")

// The inputs have the formats of the clients' events. The golden file contains the parsed events, and the outputs for
// each verdict.
func TestOutputs_AreThoseOfTheClients(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*.json")
	if err != nil || len(inputs) == 0 {
		t.Fatal(len(inputs), err)
	}
	var got strings.Builder
	for _, path := range inputs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		client := map[byte]string{'l': "claude-code", 'o': "codex", 'e': "gemini"}[name[1]]
		e, err := hookevent.Parse(client, raw)
		fmt.Fprintf(&got, "== %s\nkind %d tool %q input %s id %q session %q turn %q dir %q mcp %+v err %v\n", name, e.Kind, e.Tool, e.Input, e.ID, e.Session, e.Turn, e.Dir, e.MCP, err)
		for verdict, out := range []hookevent.Output{e.Passed(), e.Allowed("a person approved this call"), e.Denied("Denied by policy: \"no\" <b>.\n"), e.Denied(" "), e.Failed("the mesh is away")} {
			fmt.Fprintf(&got, "%s: code %d stdout %q stderr %q\n", []string{"passed", "allowed", "denied", "no reason", "failed"}[verdict], out.Code, out.Stdout, out.Stderr)
		}
	}
	const golden = "testdata/outputs.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_RefusesMalformedEvents(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "{", "[]", "null", "text {}",
		`{"tool_name":"Bash","tool_input":{}}`,
		`{"hook_event_name":"PreToolUse","tool_input":{}}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Bash"}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":[]}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_name":"Read","tool_input":{}}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"a","command":"b"}}`,
		`{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{}} {}`,
		"{\"hook_event_name\":\"PreToolUse\",\"tool_name\":\"\xff\",\"tool_input\":{}}",
	} {
		for _, client := range []string{"claude-code", "codex", "gemini"} {
			e, err := hookevent.Parse(client, []byte(text))
			if err == nil {
				t.Errorf("%s: %q was accepted", client, text)
			}
			out := e.Failed("x")
			if client == "gemini" && !strings.HasPrefix(out.Stdout, `{"decision":"deny"`) || client != "gemini" && (out.Code != 2 || out.Stdout != "" || out.Stderr == "") {
				t.Errorf("%s: %q lets the call run: %+v", client, text, out)
			}
		}
	}
}

func TestBelongs_ComparesNamesAsClientsWriteThem(t *testing.T) {
	t.Parallel()
	named := hookevent.Event{Tool: "mcp_notes_list", MCP: &hookevent.Server{Name: "notes"}}
	byTool := hookevent.Event{Tool: "mcp__my_notes__list", MCP: &hookevent.Server{}}
	for _, tt := range []struct {
		event  hookevent.Event
		server string
		want   bool
	}{
		{named, "notes", true}, {named, "note", false}, {named, "", false},
		{byTool, "my notes", true}, {byTool, "my_notes", true}, {byTool, "my", false}, {byTool, "notes", false},
		{hookevent.Event{Tool: "mcp__notes__x"}, "notes", false},
	} {
		if got := tt.event.Belongs(tt.server); got != tt.want {
			t.Errorf("%s of %q: %t", tt.event.Tool, tt.server, got)
		}
	}
}
