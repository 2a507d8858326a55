package dialect_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/policy/internal/dialect"
)

var update = flag.Bool("update", false, "write the translations and reports to testdata")

// Each file in testdata contains a policy, its expected translation, and the expected report about the translation.
func TestTranslate_Golden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source := archive.Files[0]
			format := dialect.OperatorYAML
			if filepath.Ext(source.Name) == ".json" {
				format = dialect.HostedJSON
			}
			out, problems, err := dialect.Translate(t.Context(), &dialect.Source{File: source.Name, Text: source.Data, Format: format, Server: "pay"})
			if err != nil {
				t.Fatal(err)
			}
			if out != nil {
				load(t, string(out))
			}
			got := []txtar.File{source, {Name: "document.yaml", Data: out}, {Name: "report", Data: []byte(report(problems))}}
			if *update {
				if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: got}), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(txtar.Format(&txtar.Archive{Files: archive.Files})), string(txtar.Format(&txtar.Archive{Files: got}))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// report returns the problems as text, with one problem on each line.
func report(problems []dialect.Problem) string {
	var out strings.Builder
	for _, p := range problems {
		fmt.Fprintf(&out, "%s %s\n", []string{"error", "warning", "info"}[p.Severity], p.Error())
	}
	return out.String()
}
