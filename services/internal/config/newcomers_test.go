package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestNewcomers_LearnWhatToWriteInstead checks the error messages for the files of testdata/newcomers.txtar. Each
// message has a line, a column and a suggestion. The flag -update rewrites the expected messages.
func TestNewcomers_LearnWhatToWriteInstead(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "newcomers.txtar")
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(archive.Files) < 40 {
		t.Fatalf("the archive has %d files", len(archive.Files))
	}
	complete := regexp.MustCompile(`^sluice\.yaml:[1-9]\d*:[1-9]\d*: .*(; |"\S+" is not a name of 1 to 32 )`)
	for i := 0; i+1 < len(archive.Files); i += 2 {
		name, want := archive.Files[i].Name, &archive.Files[i+1]
		text := strings.NewReplacer("␍", "\r", "␂", "\ufeff").Replace(string(archive.Files[i].Data))
		_, err := config.Parse("sluice.yaml", []byte(text), func(string) (string, bool) { return "", false })
		if err == nil {
			t.Errorf("%s loads", name)
			continue
		}
		got := err.Error() + "\n"
		for line := range strings.Lines(got) {
			if !complete.MatchString(line) {
				t.Errorf("%s: no place or no suggestion in %s", name, line)
			}
		}
		if *update {
			want.Data = []byte(got)
		}
		if got != string(want.Data) {
			t.Errorf("%s gives\n%swant\n%s", name, got, want.Data)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
