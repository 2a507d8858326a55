package forms_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
)

var ana = forms.Client{Tenant: "default", Subject: "ana", Agent: "claude", Name: "claude-code", Version: "2.1"}

func open(t *testing.T, path string) *forms.Memory {
	t.Helper()
	return forms.Open(t.Context(), path, slog.New(slog.DiscardHandler))
}

func newMemory(t *testing.T) (*forms.Memory, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "forms.json")
	return open(t, path), path
}

func expect(t *testing.T, m *forms.Memory, of forms.Client, want forms.State) {
	t.Helper()
	if got := m.State(of); got != want {
		t.Errorf("the state of %+v is %v, want %v", of, got, want)
	}
}

func TestMemory_SilentClientIsRememberedAcrossARestart(t *testing.T) {
	t.Parallel()
	m, path := newMemory(t)
	expect(t, m, ana, forms.Unknown)
	m.RecordUnanswered(t.Context(), ana)
	m = open(t, path)
	expect(t, m, ana, forms.Silent)
	if got := m.Silent(); len(got) != 1 || got[0].Client != ana {
		t.Errorf("silent are %+v", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A client has not answered a form. Only a client with the same principal, name and version counts as silent.
func TestMemory_OtherPrincipalsAndVersionsAreNotAffected(t *testing.T) {
	t.Parallel()
	m, _ := newMemory(t)
	m.RecordUnanswered(t.Context(), ana)
	for _, change := range []func(c *forms.Client){
		func(c *forms.Client) { c.Tenant = "other" }, func(c *forms.Client) { c.Subject = "ben" }, func(c *forms.Client) { c.Agent = "" },
		func(c *forms.Client) { c.Name = "cursor" }, func(c *forms.Client) { c.Version = "2.2" },
	} {
		other := ana
		change(&other)
		expect(t, m, other, forms.Unknown)
	}
}

// After a client's first unanswered form, no form is sent to it for an hour. With each further unanswered form this
// time doubles, up to a day.
func TestMemory_SilenceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _ := newMemory(t)
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 24, 24} {
			m.RecordUnanswered(t.Context(), ana)
			time.Sleep(want*time.Hour - 1)
			expect(t, m, ana, forms.Silent)
			time.Sleep(time.Nanosecond)
			expect(t, m, ana, forms.Unknown)
		}
		m.RecordAnswered(t.Context(), ana)
		expect(t, m, ana, forms.Answers)
	})
}

// If a client has ever answered a form, it is never silent: an unanswered form then means that its user was away.
func TestMemory_ClientThatHasAnsweredIsNeverSilent(t *testing.T) {
	t.Parallel()
	m, path := newMemory(t)
	m.RecordUnanswered(t.Context(), ana)
	m.RecordAnswered(t.Context(), ana)
	m.RecordUnanswered(t.Context(), ana)
	expect(t, open(t, path), ana, forms.Answers)
	if got := m.Silent(); len(got) != 0 {
		t.Errorf("silent are %+v", got)
	}
}

// A principal that uses many client names removes only its own entries from the memory, and the file stays small.
func TestMemory_IsBounded(t *testing.T) {
	t.Parallel()
	m, path := newMemory(t)
	m.RecordUnanswered(t.Context(), ana)
	eve := forms.Client{Tenant: "default", Subject: "eve"}
	for i := range 20 {
		eve.Name = fmt.Sprint(i, strings.Repeat("\xff<é", 1000))
		m.RecordUnanswered(t.Context(), eve)
	}
	expect(t, m, ana, forms.Silent)
	if got := m.Silent(); len(got) != 9 {
		t.Errorf("%d clients are remembered, want 9", len(got))
	}
	var full []string
	for i := range 512 {
		full = append(full, fmt.Sprintf(`{"tenant":"default","subject":"%d","unanswered":1,"until":"2100-01-01T00:00:00Z","changed":%q}`, i, time.Now().Format(time.RFC3339)))
	}
	if err := os.WriteFile(path, []byte("["+strings.Join(full, ",")+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = open(t, path)
	m.RecordUnanswered(t.Context(), ana)
	expect(t, m, ana, forms.Silent)
	if got := m.Silent(); len(got) != 512 {
		t.Errorf("%d clients are remembered, want 512", len(got))
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestMemory_StartsEmptyIfTheFileIsDamaged(t *testing.T) {
	t.Parallel()
	_, path := newMemory(t)
	if err := os.WriteFile(path, []byte(`[{"tenant":`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := open(t, path)
	expect(t, m, ana, forms.Unknown)
	m.RecordUnanswered(t.Context(), ana)
	expect(t, open(t, path), ana, forms.Silent)
}
