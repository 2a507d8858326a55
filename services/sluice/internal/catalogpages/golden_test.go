package catalogpages_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, file), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", name, diff)
	}
}

// goldenPages lists the pages that are compared completely, without their extension.
var goldenPages = []string{
	"index", "server/claude-flow", "server/shop", "tool/claude-flow/wasm_agent_export", "tool/claude-flow/wasm_agent_todos", "tool/claude-flow/wasm_agent_is_stopped", "tool/shop/refund",
}

func TestHTML_MatchesTheGoldenFiles(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, goldenCatalog(t))
	for _, name := range append(goldenPages, "servers", "category/read", "category/unknown") {
		golden(t, filepath.Join("html", name+".html"), read(t, dir, name+".html"))
	}
	golden(t, filepath.Join("html", "assets", "index.js"), read(t, dir, "assets", "index.js"))
}

func TestMarkdown_MatchesTheGoldenFiles(t *testing.T) {
	t.Parallel()
	dir := writeMarkdown(t, goldenCatalog(t))
	for _, name := range goldenPages {
		golden(t, filepath.Join("md", name+".md"), read(t, dir, name+".md"))
	}
}

func TestJSON_MatchesTheGoldenFile(t *testing.T) {
	t.Parallel()
	golden(t, "catalogue.json", writeJSON(t, goldenCatalog(t)))
}

// Equal catalogs result in equal bytes, whatever the order of their servers and tools.
func TestExport_EqualCatalogsGiveEqualBytes(t *testing.T) {
	t.Parallel()
	c := goldenCatalog(t)
	one := writeSite(t, c)
	c.Servers[0], c.Servers[1] = c.Servers[1], c.Servers[0]
	c.Tools[0], c.Tools[3] = c.Tools[3], c.Tools[0]
	two := writeSite(t, c)
	if diff := cmp.Diff(filesIn(t, one), filesIn(t, two)); diff != "" {
		t.Fatalf("other files:\n%s", diff)
	}
	for _, name := range append(filesIn(t, one), ".sluice-catalogue") {
		if diff := cmp.Diff(read(t, one, name), read(t, two, name)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	if writeJSON(t, c) != writeJSON(t, goldenCatalog(t)) {
		t.Error("the JSON document is another")
	}
}
