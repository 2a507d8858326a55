package document_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

func parse(file string, text []byte) (engine.Document, error) {
	set, err := document.ParseSet([]document.File{{Path: file, Text: text}}, nil, testNow)
	if err != nil {
		return engine.Document{}, err
	}
	return set.Documents[0], nil
}

func TestParse_ReadsEveryKey(t *testing.T) {
	t.Parallel()
	const text = `
version: 1
name: everyday
server: claude-flow*
default: deny
tools:
  a.b/c: {rate_limit: {max: 10, window: 60}}
  held:
    action: require_approval
    reason: |
      two
      lines
    rate_limit:
      - {max: 1, window: 90s, per: [tool, session]}
      - {max: 1000000000, window: 366d, per: [tenant]}
    approvers: [finance, legal]
    quorum: 2
    decide_within: 1h
    execute_within: 90
    grant: {calls: 10, within: 7d, critical: true, where: decimal(args.sum) < decimal("100")}
    idempotent: true
  self: {action: require_approval, self_confirm: true, needs_scope: github.write}
  stepped: {action: require_approval, approve_with: {max_age: 5m, acr: [phrh, phr]}}
rules:
  - name: r1
    match:
      tool: [create_*, drop]
      server: claude-flow-1
      agent: ci-?
      principal: ["*@example.com", 'a\*b']
      groups: [ops]
      tenant: acme
    action: hide
  - name: r2
    rate_limit: {max: 5, window: 1ms}
    action: deny
`
	got, err := parse("policies/x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := engine.Document{
		Name: "everyday", Server: "claude-flow*", Default: engine.DefaultDeny,
		Rules: []engine.Rule{
			{
				Tool: "a.b/c", Action: engine.ActionAllow, Limits: []engine.RateLimit{{
					Max: 10, Window: time.Minute,
					Per: []engine.Dimension{engine.PerSession, engine.PerServer, engine.PerTool},
				}},
			},
			{
				Tool: "held", Action: engine.ActionRequireApproval, Reason: "two\nlines\n",
				Limits: []engine.RateLimit{
					{Max: 1, Window: 90 * time.Second, Per: []engine.Dimension{engine.PerTool, engine.PerSession}},
					{Max: engine.MaxLimit, Window: engine.MaxWindow, Per: []engine.Dimension{engine.PerTenant}},
				},
				Approvers: []string{"finance", "legal"}, Quorum: 2, DecideWithin: time.Hour, ExecuteWithin: 90 * time.Second,
				Grant:      engine.Grant{Calls: 10, Within: 7 * 24 * time.Hour, Critical: true, Where: `decimal(args.sum) < decimal("100")`},
				Idempotent: true,
			},
			{Tool: "self", Action: engine.ActionRequireApproval, SelfConfirm: true, NeedsScope: []string{"github.write"}},
			{Tool: "stepped", Action: engine.ActionRequireApproval, ApproveWith: engine.StepUp{MaxAge: 5 * time.Minute, ACR: []string{"phrh", "phr"}}},
			{
				Name: "r1", Action: engine.ActionHide,
				Match: engine.Match{
					Tool: []string{"create_*", "drop"}, Server: []string{"claude-flow-1"}, Agent: []string{"ci-?"},
					Principal: []string{"*@example.com", `a\*b`}, Groups: []string{"ops"}, Tenant: []string{"acme"},
				},
			},
			{
				Name: "r2", Action: engine.ActionDeny,
				Limits: []engine.RateLimit{{Max: 5, Window: time.Millisecond, Per: []engine.Dimension{engine.PerSession}}},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
}

func TestParse_NamesTheDocumentAfterItsFile(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"claude-flow.yaml": "claude-flow", "/etc/sluice/policies/a.b.yml": "a.b", "base": "base",
	} {
		d, err := parse(file, []byte("version: 1\ndefault: deny"))
		if err != nil || d.Name != want {
			t.Errorf("Parse(%q) = %q, %v, want %q", file, d.Name, err, want)
		}
	}
}

func TestParse_ReadsEveryFormOfAWindow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"60": time.Minute, "60s": time.Minute, `"1h"`: time.Hour, "1d": 24 * time.Hour, "366d": engine.MaxWindow,
		"31622400": engine.MaxWindow, "1ms": time.Millisecond, "1h30m": 90 * time.Minute, "0.5s": 500 * time.Millisecond,
	} {
		d, err := parse("p.yaml", []byte("version: 1\ntools: {t: {rate_limit: {max: 1, window: "+text+"}}}"))
		if err != nil {
			t.Errorf("window: %s: %v", text, err)
			continue
		}
		if got := d.Rules[0].Limits[0].Window; got != want {
			t.Errorf("window: %s = %v, want %v", text, got, want)
		}
	}
}

func TestParse_FailsWhenTheFileNameIsNoDocumentName(t *testing.T) {
	t.Parallel()
	_, err := parse("my policy.yaml", []byte("version: 1\ndefault: deny"))
	const want = "my policy.yaml:1:1: name: is not a name; the document can't have the file's name: add name"
	if err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

func TestParseSet_ReportsTheProblemsOfEveryFile(t *testing.T) {
	t.Parallel()
	good := "version: 1\ndefault: deny"
	_, err := document.ParseSet([]document.File{
		{Path: "a/x.yaml", Text: []byte(good)},
		{Path: "b/bad.yaml", Text: []byte("version: 1\ndefault: maybe")},
		{Path: "c/x.yaml", Text: []byte(good)},
		{Path: "d/y.yaml", Text: []byte("version: 1\nname: x\ndefault: deny")},
	}, nil, testNow)
	const want = `b/bad.yaml:2:10: default: unknown default "maybe"; known are: deny, allow, by_risk
c/x.yaml:1:1: name: another document has the name "x": a/x.yaml; give each document a different name
d/y.yaml:2:7: name: another document has the name "x": a/x.yaml; give each document a different name`
	if err == nil {
		t.Fatal("ParseSet succeeded")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("ParseSet (-want +got):\n%s", diff)
	}
	set, err := document.ParseSet(nil, nil, testNow)
	if err != nil || len(set.Documents) != 0 {
		t.Errorf("ParseSet of nothing = %v, %v", set, err)
	}
}

func TestParse_LimitsTheNumberOfProblems(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("version: 1\nrules:\n")
	for range 50_000 {
		text.WriteString("  - {action: deny}\n")
	}
	_, err := parse("p.yaml", []byte(text.String()))
	if err == nil || strings.Count(err.Error(), "\n") != 99 {
		t.Errorf("50,000 problems give %d lines, want 100", strings.Count(fmt.Sprint(err), "\n")+1)
	}
	text.Reset()
	text.WriteString("version: 1\ntools: {t: {rate_limit: [{max: 1, window: 1}")
	for i := range 50_000 {
		fmt.Fprintf(&text, ", {max: 1, window: %d}", i+2)
	}
	text.WriteString("]}}")
	expect(t, text.String(), "p.yaml:2:13: tools.t.rate_limit: has more than 16 limits")
}

func expect(t *testing.T, text, want string) {
	t.Helper()
	d, err := parse("p.yaml", []byte(text))
	if err == nil {
		t.Fatalf("Parse succeeded with %+v, want\n%s", d, want)
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("Parse of\n%s\n(-want +got):\n%s", text, diff)
	}
}

// FuzzParse checks that every document that the function parse accepts can be compiled, and that every error has a
// position.
func FuzzParse(f *testing.F) {
	f.Add([]byte("version: 1\nserver: s*\ndefault: allow\ntools: {t: {action: deny, reason: r, rate_limit: {max: 1, window: 60}}}"))
	f.Add([]byte(`{"version":1,"rules":[{"name":"r","match":{"tool":["a*"],"groups":"x"},"action":"require_approval","approvers":["g"],"quorum":2}]}`))
	for _, m := range messages(f) {
		f.Add(m.text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parse("p.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "p.yaml:") {
				t.Errorf("%q names no place", err)
			}
			return
		}
		set, err := engine.Compile([]engine.Document{d}, engine.Options{SessionCap: 10, Times: engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}})
		if err != nil {
			t.Fatalf("accepted, but does not compile: %v", err)
		}
		subject := engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "x"}}
		for _, r := range d.Rules {
			if r.Tool != "" && r.Action == engine.ActionDeny && d.Server == "" {
				if got := set.Decide(engine.Call{Server: "s", Tool: r.Tool, Subject: subject, Facts: engine.Facts{Status: engine.Callable}}); got.Effect != engine.Deny {
					t.Errorf("an entry denies %q, and it is let through: %+v", r.Tool, got)
				}
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("version: 1\ntools:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  tool_%d: {action: allow, rate_limit: {max: 10, window: 60}}\n", i)
	}
	for b.Loop() {
		if _, err := parse("p.yaml", []byte(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}
