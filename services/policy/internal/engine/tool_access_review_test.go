package engine_test

import (
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

func TestToolAccess_OfStrictToolsAndObservedServers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	o := options
	strict := engine.Rule{Tool: "read", Action: engine.ActionAllow}
	strict.Strict = true
	documents := []engine.Document{{Name: "d", Default: engine.DefaultDeny, Rules: []engine.Rule{
		strict, {Tool: "write", When: `args.path == "/a"`, Action: engine.ActionDeny},
	}}}
	for _, observed := range []bool{false, true} {
		o.Now, o.Observe = now, engine.Observe{}
		if observed {
			o.Observe.Servers = map[string]time.Time{"s": now.Add(time.Hour)}
		}
		set, err := engine.Compile(documents, o)
		if err != nil {
			t.Fatal(err)
		}
		for tool, want := range map[string][2]string{
			"read":  {"allow  d/tools.read\ndeny type_error d/tools.read", "allow  d/tools.read\nallow"},
			"write": {"deny denied_by_default\ndeny denied_by_rule d/tools.write if args.path == \"/a\" is true\ndeny type_error d/tools.write", "allow"},
			"other": {"deny denied_by_default", "allow"},
		} {
			at := 0
			if observed {
				at = 1
			}
			if got := accessText(set.ToolAccess(person("ana"), "s", tool, callable)); got != want[at] {
				d := set.Decide(engine.Call{Server: "s", Tool: tool, Subject: person("ana"), Facts: callable, CheckArguments: func(string) error { return nil }})
				t.Errorf("observed %t, %s: got\n%s\nwant\n%s\nDecide: %v %v", observed, tool, got, want[at], d.Effect, d.Code)
			}
		}
	}
}
