package notices

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// On macOS and Windows, the programs get the text of the notice in an argument or a variable, and not as part of their
// scripts.
func TestPrograms_MatchTheGoldenFiles(t *testing.T) {
	t.Parallel()
	const body = "1 call waits for approval: `sluice approvals show f83835f6`"
	for name, p := range map[string]program{"darwin": appleScript(body), "windows": powerShell(`C:\Windows`, body)} {
		got := strings.Join(append(p.argv, p.env...), "\n") + "\n"
		file := filepath.Join("testdata", "desktop-"+name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("on %s, the program is\n%s\nwant\n%s", name, got, want)
		}
	}
}
