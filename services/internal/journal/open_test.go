package journal_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func TestOpen_CreatesPrivateFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "journal")
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	writeRefusal(t, j, "b")
	closeJournal(t, j)
	modes := map[string]fs.FileMode{}
	for _, root := range []string{dir, keysOf(dir)} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			modes[filepath.Base(path)] = info.Mode().Perm()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]fs.FileMode{
		"journal": 0o700, "head.json": 0o600, "journal.keys": 0o700, "hmac.key": 0o600, "seal.key": 0o600,
		"calls-00000000000000000001.jsonl": 0o600, "refusals-00000000000000000001.jsonl": 0o600,
	}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Error(diff)
	}
}

func TestHMAC_IsStableAcrossRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	first := j.HMAC([]byte("arguments"))
	if first == j.HMAC([]byte("other")) || first != j.HMAC([]byte("arguments")) {
		t.Error("equal arguments must have equal digests, others not")
	}
	closeJournal(t, j)
	text, err := os.ReadFile(filepath.Join(keysOf(dir), "hmac.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("arguments"))
	if want := hex.EncodeToString(mac.Sum(nil)); first != want {
		t.Errorf("the digest is %s, want %s", first, want)
	}
	if got := open(t, config(dir)).HMAC([]byte("arguments")); got != first {
		t.Errorf("after a restart the digest is %s, want %s", got, first)
	}
	if got := open(t, config(t.TempDir())).HMAC([]byte("arguments")); got == first {
		t.Error("another journal has the same key")
	}
}

func TestOpen_RefusesInvalidConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*journal.Config)
		want   string
	}{
		"no folder":             {func(c *journal.Config) { c.Dir = "" }, "no folder"},
		"no logger":             {func(c *journal.Config) { c.Log = nil }, "no logger"},
		"no way to sync":        {func(c *journal.Config) { c.Sync = "" }, "set never or always"},
		"an unknown sync":       {func(c *journal.Config) { c.Sync = "often" }, "set never or always"},
		"tiny segments":         {func(c *journal.Config) { c.SegmentBytes = 1 }, "too small"},
		"no room for calls":     {func(c *journal.Config) { c.Calls.Bytes = 0 }, "calls may take 0 bytes"},
		"no age for refusals":   {func(c *journal.Config) { c.Refusals.Age = 0 }, "refusals may be 0s old"},
		"a folder that is one":  {func(c *journal.Config) { c.Dir = filepath.Join(c.Dir, "hmac.key") }, "not a directory"},
		"keys in it":            {func(c *journal.Config) { c.Keys = filepath.Join(c.Dir, "keys") }, "outside of the journal's"},
		"keys with the records": {func(c *journal.Config) { c.Keys = c.Dir }, "outside of the journal's"},
		"no place for keys":     {func(c *journal.Config) { c.Keys = "" }, "outside of the journal's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t.TempDir())
			if err := os.WriteFile(filepath.Join(cfg.Dir, "hmac.key"), []byte("short\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.change(&cfg)
			if _, err := journal.Open(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want one with %q", err, c.want)
			}
		})
	}
	cfg := config(t.TempDir())
	if err := os.WriteFile(filepath.Join(cfg.Dir, "hmac.key"), []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(cfg); err == nil || !strings.Contains(err.Error(), "remove it to get a new one") {
		t.Errorf("a damaged key returns %v", err)
	}
}
