package policy_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/policy"
)

const slowTests = `version: 1
name: p
tools: {read: {action: deny}}
tests:
  - {call: {tool: read, server: demo}, want: {action: deny}}
  - {call: {tool: read, server: demo}, want: {action: deny}}
`

const slowTestsProblem = "policy.yaml:4:1: tests: the tests of all documents take longer than 1ns: 1 of 2 ran"

func TestNew_FailsWhenTestsTakeTooLong(t *testing.T) {
	t.Parallel()
	cfg := policy.Config{Paths: []string{folder(t, slowTests)}, SessionCap: 1, Decide: time.Minute, Execute: time.Minute, TestsWithin: 1, People: holdersOf(records()), Source: "sqlite", Data: t.TempDir()}
	_, err := policy.New(t.Context(), cfg, policy.Deps{Tokens: new(authn.Tokens), Signer: signer(t), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), slowTestsProblem) {
		t.Errorf("got %v\nwant %s", err, slowTestsProblem)
	}
}

// A new version of a document denies a tool, but has tests that take too long. The old version, which allows the tool,
// stays active. The revision contains the reason why the new version was rejected.
func TestReload_KeepsTheRevisionWhenTestsTakeTooLong(t *testing.T) {
	t.Parallel()
	dir := folder(t, allowDocument)
	svc, _ := build(t, options{paths: []string{dir}, testsWithin: 1})
	go func() {
		if err := svc.Run(t.Context()); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	r := &reloadFixture{T: t, svc: svc, dir: dir}
	r.write("policy.yaml", slowTests)
	eventually.Holds(t, "the document is rejected", func() bool { return len(r.revision().GetRevision().GetRejected()) > 0 })
	found := r.revision().GetRevision().GetRejected()[0]
	if text := found.GetMessage(); filepath.Base(found.GetPath()) != "policy.yaml" || found.GetLine() != 4 || !strings.Contains(text, "take longer than 1ns: 1 of 2 ran") || found.GetSuggestion() == "" {
		t.Errorf("the finding is %v", found)
	}
	if got := r.effect("read"); got != policyv1.Effect_EFFECT_ALLOW {
		t.Errorf("the decision is %v, want that of the old document", got)
	}
}
