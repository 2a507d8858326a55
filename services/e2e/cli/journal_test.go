package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// verifyOutput is the JSON output of `sluice journal verify`.
type verifyOutput struct {
	Whole bool
	Wrong string
	Calls struct{ Records, Last int64 }
}

// Case X10. `sluice journal verify` detects changed journal files. It detects them both with the head that the journal
// stores itself and with a head that an operator has stored elsewhere.
func TestJournal_VerifyDetectsChangedFiles(t *testing.T) {
	t.Parallel()
	d := newCLIMesh(t)
	for range 3 {
		stack.CheckCommand(t, d.run(t, "call", "demo", "list_notes"), 0, "")
	}
	ran := d.run(t, "journal", "verify", "--output", "json")
	if v := stack.DecodeOutput[verifyOutput](t, ran); ran.Code != 0 || !v.Whole || v.Calls.Records != 6 {
		t.Errorf("while the mesh runs: exit code %d, %s%s", ran.Code, ran.Stdout, ran.Stderr)
	}
	if err := d.Stop(t); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(d.Dir, "state", "gateway", "journal")
	for _, name := range []string{"hmac.key", "seal.key"} {
		if info, err := os.Stat(filepath.Join(d.Dir, "state", "keys", "gateway", name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key %s is not in the folder of keys, or can be read by others: %v", name, err)
		}
	}
	head, err := os.ReadFile(filepath.Join(journal, "head.json"))
	if err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(d.Dir, "kept"), string(head))
	calls := filepath.Join(journal, "calls-00000000000000000001.jsonl")
	good, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(good, []byte("\n"))
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"nothing": {good, ""},
		"a flip":  {bytes.Replace(good, []byte(`"kind":"outcome"`), []byte(`"kind":"outcomf"`), 1), "calls-00000000000000000001.jsonl: line 2, record 2, is not a complete record"},
		"a drop":  {bytes.Join(append(lines[:1:1], lines[2:]...), nil), "line 2, record 2, has seq 3 instead of 2"},
		"a cut":   {bytes.Join(lines[:4], nil), "record 5, and what follows up to record 6 is missing"},
	} {
		stack.WriteFile(t, calls, string(c.text))
		for _, args := range [][]string{{journal}, {filepath.Join(d.Dir, "state")}, {journal, "--head", "kept"}} {
			ran := d.run(t, append([]string{"journal", "verify"}, args...)...)
			if (ran.Code == 0) != (c.want == "") || !strings.Contains(ran.Stderr, c.want) {
				t.Errorf("%s: verify %s: exit code %d\n%s%s", name, args, ran.Code, ran.Stdout, ran.Stderr)
			}
		}
	}
	stack.CheckCommand(t, d.run(t, "journal", "verify", filepath.Join(d.Dir, "nowhere")), 1, "")
	stack.CheckCommand(t, d.run(t, "journal", "verify", t.TempDir()), 1, "")
}
