package cli

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/localconfig"
)

func TestParseExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"90d": 90 * 24 * time.Hour, "12h": 12 * time.Hour, "1m": time.Minute, "365d": 365 * 24 * time.Hour, "2026-03-02T12:00:00Z": 24 * time.Hour,
		"": 0, "0d": 0, "-1d": 0, "59s": 0, "366d": 0, "forever": 0, "d": 0, "99999999d": 0, "2026-02-01T12:00:00Z": 0, "2028-01-01T00:00:00Z": 0,
	} {
		at, err := parseExpiry(text, now)
		if (err != nil) != (want == 0) || err == nil && at.Sub(now) != want {
			t.Errorf("%q: %v, %v", text, at, err)
		}
	}
}

func TestNewTokenID_FitsTheContract(t *testing.T) {
	t.Parallel()
	for agent, want := range map[string]string{"cursor": "cursor-", "Claude Code/é": "Claude-Code---", strings.Repeat("x", 300): strings.Repeat("x", 100) + "-"} {
		if id := newTokenID(agent); !strings.HasPrefix(id, want) || len(id) != len(want)+6 {
			t.Errorf("%q gets the id %q", agent, id)
		}
	}
	if first := newTokenID("a"); first == newTokenID("a") {
		t.Error("two ids are the same")
	}
}

func TestEndingTokens_OmitsReplacedTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	one := func(id, agent string, life, left time.Duration) tokenRecord {
		return tokenRecord{ID: id, Agent: agent, Owner: "ana", Created: now.Add(left - life), Expires: now.Add(left)}
	}
	const day = 24 * time.Hour
	revoked := one("revoked", "b", 90*day, day)
	revoked.Revoked = now
	all := []tokenRecord{
		one("fresh", "a", 90*day, 60*day), one("old", "a", 90*day, day), // replaced by fresh
		one("soon", "b", 90*day, 13*day), one("expired", "c", 90*day, -6*day), one("long ago", "d", 90*day, -8*day), revoked,
		one("short", "e", 4*time.Hour, 2*time.Hour), one("short and soon", "f", 4*time.Hour, 30*time.Minute), {ID: "never", Agent: "g"},
	}
	var got []string
	for _, found := range endingTokens(slices.Clone(all), now) {
		got = append(got, found.ID)
	}
	if want := []string{"soon", "expired", "short and soon"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The file in the working directory changes while the mesh is running. The mesh does not use content to which the
// person has not agreed, because it may come from a program that can write to the file.
func TestReader_ReturnsOnlyAgreedContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, localconfig.Name)
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "data: one\n", "data: two\n"
	write(first)
	f, err := config.Parse(path, []byte(first), app.Env)
	if err != nil {
		t.Fatal(err)
	}
	read := (&localFile{file: f, content: []byte(first), folder: dir}).reader()
	if raw, err := read(); err != nil || string(raw) != first {
		t.Fatalf("%q, %v", raw, err)
	}
	write(second)
	if raw, err := read(); err == nil || !strings.Contains(err.Error(), "not agreed") {
		t.Errorf("%q, %v", raw, err)
	}
	if (*localFile)(nil).reader() != nil {
		t.Error("without a file there is a reader")
	}
}

// The file for a new token already exists. No token is created, and the file is not changed.
func TestTokenCreate_DoesNotReplaceAFile(t *testing.T) {
	t.Parallel()
	dir := hostileMesh(t)
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	var errOut strings.Builder
	code := newTool("sluice", io.Discard, &errOut).run(t.Context(), []string{"token", "create", "cursor", "--file", file, "--config", filepath.Join(dir, "sluice.yaml")})
	if raw, err := os.ReadFile(file); code != 1 || err != nil || string(raw) != "mine" || !strings.Contains(errOut.String(), "no token was created") {
		t.Errorf("exit code %d, %q, %v: %s", code, raw, err, errOut.String())
	}
	// The mesh refuses the request. No file is left behind.
	file = filepath.Join(dir, "other")
	code = newTool("sluice", io.Discard, io.Discard).run(t.Context(), []string{"token", "create", "cursor", "--file", file, "--config", filepath.Join(dir, "sluice-fails.yaml")})
	if _, err := os.Stat(file); code != 1 || !os.IsNotExist(err) {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// The command asks for the connections of its caller only with --use-my-connections, never together with another owner.
func TestTokenCreate_AsksForConnectionsOnlyWithTheFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags         newTokenFlags
		isOwned, uses bool
	}{
		{newTokenFlags{}, true, false},
		{newTokenFlags{owner: "ana"}, false, false},
		{newTokenFlags{noOwner: true}, false, false},
		{newTokenFlags{useMyConnections: true}, true, true},
	} {
		c.flags.expires = "1h"
		req, err := c.flags.request("cursor", time.Now())
		if err != nil || req.GetOwnedByCaller() != c.isOwned || req.GetToken().GetUsesConnections() != c.uses {
			t.Errorf("%+v: %v, %v", c.flags, req, err)
		}
	}
	for _, owner := range [][]string{{"--owner", "ana"}, {"--no-owner"}} {
		var out, errOut strings.Builder
		code := newTool("sluice", &out, &errOut).run(t.Context(), append([]string{"token", "create", "cursor", "--use-my-connections"}, owner...))
		if code != 2 || !strings.Contains(errOut.String(), "use-my-connections") {
			t.Errorf("with %v: exit code %d, %s", owner, code, errOut.String())
		}
	}
	uses, owned := tokenRecord{Role: agentToken, Owner: "ana", UsesConnections: true}, tokenRecord{Role: agentToken, Owner: "ana"}
	if uses.personText() != "ana, with connections" || owned.personText() != "ana" {
		t.Errorf("listed as %q and %q", uses.personText(), owned.personText())
	}
}
