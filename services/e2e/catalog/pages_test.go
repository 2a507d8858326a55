package catalog_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// The generated pages about Claude Flow's tools contain the statements of the handwritten pages. The files in
// testdata/pages list these statements, and mark those that were wrong or that a reader can't know from the tool's
// definition.
func TestCatalogPages_HaveTheStatementsOfTheHandwrittenOnes(t *testing.T) {
	t.Parallel()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: stack.ClaudeFlowEntry(t), Policy: classPolicy, GRPC: stack.FreeAddr(t)}))
	catalog := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"catalog", "--config", p.Config}, args...), Dir: p.Dir, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	}
	eventually.Within(t, 3*time.Minute, "the gateway has listed the server", func() bool { return catalog("list", "claude-flow").Code == 0 })
	out := filepath.Join(p.Dir, "pages")
	stack.CheckCommand(t, catalog("export", "--format", "md", "--out", out), 0, "")
	if pages, err := os.ReadDir(filepath.Join(out, "tool", "claude-flow")); err != nil || len(pages) != 353 {
		t.Errorf("%d pages: %v", len(pages), err)
	}
	files, err := filepath.Glob(filepath.Join("testdata", "pages", "*.txt"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		said, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tool := strings.TrimSuffix(filepath.Base(file), ".txt")
		page, err := os.ReadFile(filepath.Join(out, "tool", "claude-flow", tool+".md"))
		if err != nil {
			t.Fatal(err)
		}
		for statement := range strings.SplitSeq(strings.TrimSpace(string(said)), "\n\n") {
			answers := 0
			for i, line := range strings.Split(statement, "\n") {
				key, text, _ := strings.Cut(line, ": ")
				switch {
				case i == 0 && key == "says" && text != "":
				case i > 0 && (key == "wrong" || key == "unknown") && text != "":
					answers++
				case i > 0 && key == "ours" && text != "":
					answers++
					if !strings.Contains(string(page), text) {
						t.Errorf("%s: %q is not on the page", tool, text)
					}
				default:
					t.Errorf("%s: %q is not a line of a statement", file, line)
				}
			}
			if answers == 0 {
				t.Errorf("%s: there is no answer to the statement %q", file, statement)
			}
		}
	}
}
