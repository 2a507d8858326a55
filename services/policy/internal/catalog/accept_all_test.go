package catalog_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// AcceptAll does not accept flagged definitions, although the digest in the request covers all waiting definitions.
func TestAcceptAll_OmitsFlaggedDefinitions(t *testing.T) {
	t.Parallel()
	s := newFixture(t, catalog.Settings{})
	hidden := tool("hidden", "Reads\u200b a note.")
	s.report(whole, tool("plain", "Reads."), hidden, tool("read_file", "Reads."), tool("read-fi1e", "Reads."))
	next, n, err := s.server.AcceptAll(s.server.WaitingDigest(), catalog.ChangeInfo{Operator: "ana", Reason: "read"})
	if err != nil || n != 1 {
		t.Fatalf("accepted %d: %v", n, err)
	}
	s.server = next
	s.wantStatus(engine.Callable, tool("plain", "Reads."))
	for _, text := range []string{hidden, tool("read_file", "Reads."), tool("read-fi1e", "Reads.")} {
		s.wantStatus(engine.Changed, text)
		flagged := read(t, text)
		if s.server.Tools[flagged.Name].FindDefinition(flagged.Digest).Flag(flagged.Name, s.server.NamesBySkeleton()) == "" {
			t.Errorf("%s has no flag", flagged.Name)
		}
	}
	if second, n, err := next.AcceptAll(next.WaitingDigest(), catalog.ChangeInfo{Operator: "ana"}); err != nil || n != 0 || second != next {
		t.Errorf("flagged ones alone: %d, %v", n, err)
	}
	alone, err := next.Decide("hidden", read(t, hidden).Digest, catalog.Accepted, catalog.ChangeInfo{Operator: "ana"})
	if err != nil {
		t.Fatal(err)
	}
	s.server = alone
	s.wantStatus(engine.Callable, hidden)
}

// A tool is reported once, when the gateway itself first lists a definition of the tool that waits for an operator to
// accept it.
func TestNewlyWaiting(t *testing.T) {
	t.Parallel()
	s := newFixture(t, first)
	s.report(whole, tool("get", "Gets."), tool("put", "Puts."))
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"the same list", func() { s.report(whole, tool("get", "Gets."), tool("put", "Puts.")) }, ""},
		{"a session is shown another definition", func() { s.report(catalog.Report{To: "default/ana"}, tool("get", "Gets more.")) }, ""},
		{"the gateway lists it", func() { s.report(whole, tool("get", "Gets more."), tool("put", "Puts.")) }, "get"},
		{"the gateway lists it again", func() { s.report(whole, tool("get", "Gets more."), tool("put", "Puts.")) }, ""},
		{"a tool is new", func() { s.report(whole, tool("get", "Gets more."), tool("put", "Puts."), tool("new", "Reads.")) }, "new"},
	}
	for _, step := range steps {
		before := s.server
		step.do()
		if got := strings.Join(before.NewlyWaiting(s.server), " "); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
}
