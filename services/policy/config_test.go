package policy_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	oneText   = "n3Vq8LrT2xWz7JkP5sYc9DfG4hMbA6uE"
	otherText = "k7Rw2NpX9vBt4QzS6gHj3LmC8yFdU5aE"
)

// load writes files to a new directory, and then loads a configuration from this directory. tokens is the YAML of the
// configuration's tokens.
func load(t *testing.T, tokens string, files map[string]string) *config.File {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, dir, name, text)
	}
	write(t, dir, "sluice.yaml", "policies: [policies/, /etc/sluice/p.yaml]\nsession: {cap: 7}\nauth:\n  tokens:\n"+tokens)
	f, err := config.Load(filepath.Join(dir, "sluice.yaml"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func noEnv(string) (string, bool) { return "", false }

func TestFromFile_ReadsPathsAndSessionCap(t *testing.T) {
	t.Parallel()
	f := load(t, "    - {name: a, token: "+oneText+", role: agent}\n", nil)
	cfg, err := policy.FromFile(f, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(filepath.Dir(f.Name()), "policies"), "/etc/sluice/p.yaml"}
	if diff := cmp.Diff(want, cfg.Paths); diff != "" || cfg.SessionCap != 7 {
		t.Errorf("the cap is %d; paths (-want +got):\n%s", cfg.SessionCap, diff)
	}
}

// Definitions from people's accounts are not stored if each person uses her own account of the server.
func TestFromFile_ReadsWhoseAccountIsUsed(t *testing.T) {
	t.Parallel()
	f := load(t, "    - {name: a, token: "+oneText+", role: agent}\n", nil)
	f.Servers = map[string]config.Server{
		"people": {Credentials: &config.Credentials{As: config.AsPerson}}, "team": {Credentials: &config.Credentials{As: config.AsShared}}, "files": {},
	}
	cfg, err := policy.FromFile(f, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for name := range f.Servers {
		if got := cfg.Servers[name].ForEachPerson; got != (name == "people") {
			t.Errorf("each person has an account of %s: %t", name, got)
		}
	}
}

func TestFromFile_ConvertsEveryTokenRole(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]authv1.TokenRole{
		"agent": authv1.TokenRole_TOKEN_ROLE_AGENT, "operator": authv1.TokenRole_TOKEN_ROLE_OPERATOR,
		"approver": authv1.TokenRole_TOKEN_ROLE_APPROVER, "viewer": authv1.TokenRole_TOKEN_ROLE_VIEWER,
	} {
		cfg, err := policy.FromFile(load(t, "    - {name: a, token: "+oneText+", role: "+role+"}\n", nil), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.Tokens[0]; got.GetRole() != want || got.GetTenant() != "default" || got.GetSubject() != "a" {
			t.Errorf("%s is read as %v", role, got)
		}
	}
}

func TestNew_FailsForInvalidConfigurations(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	good := func(t *testing.T) policy.Config {
		t.Helper()
		return policy.Config{Paths: []string{folder(t, document)}, SessionCap: 1, Decide: time.Minute, Execute: time.Minute, TestsWithin: time.Minute, People: holdersOf(records()), Source: "sqlite", Data: t.TempDir()}
	}
	tests := []struct {
		name   string
		change func(*policy.Config, *policy.Deps)
		want   string
	}{
		{"no paths", func(c *policy.Config, _ *policy.Deps) { c.Paths = nil }, "no policy document"},
		{"an empty folder", func(c *policy.Config, _ *policy.Deps) { c.Paths = []string{t.TempDir()} }, "no policy document"},
		{"a path that is not there", func(c *policy.Config, _ *policy.Deps) { c.Paths = append(c.Paths, "gone.yaml") }, "gone.yaml"},
		{"a document that does not load", func(c *policy.Config, _ *policy.Deps) { c.Paths = []string{folder(t, invalidDocument)} }, "policy.yaml:3:24"},
		{"no time to decide", func(c *policy.Config, _ *policy.Deps) { c.Decide = 0 }, "times"},
		{"no time to execute", func(c *policy.Config, _ *policy.Deps) { c.Execute = 0 }, "times"},
		{"no cap", func(c *policy.Config, _ *policy.Deps) { c.SessionCap = 0 }, "cap"},
		{"no store", func(c *policy.Config, _ *policy.Deps) { c.Data = "" }, "a store"},
		{"no store of that kind", func(c *policy.Config, _ *policy.Deps) { c.Source = "redis://x" }, "no store is called"},
		{"no tokens to fill", func(_ *policy.Config, d *policy.Deps) { d.Tokens = nil }, "dependency"},
		{"no log", func(_ *policy.Config, d *policy.Deps) { d.Log = nil }, "dependency"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg, deps := good(t), policy.Deps{Tokens: new(authn.Tokens), Signer: signer(t), Log: log}
			svc, err := policy.New(t.Context(), cfg, deps)
			if err != nil {
				t.Fatalf("with the valid configuration: %v", err)
			}
			if err := svc.Close(); err != nil {
				t.Fatal(err)
			}
			c.change(&cfg, &deps)
			if _, err := policy.New(t.Context(), cfg, deps); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The directory for policies contains no document yet. The error says what to put there.
func TestReadDocuments_SuggestsAFirstDocument(t *testing.T) {
	t.Parallel()
	_, err := policy.ReadDocuments([]string{t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "`sluice policy suggest` prints, or `{version: 1, default: deny}`") {
		t.Errorf("the error is %v", err)
	}
}
