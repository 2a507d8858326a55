package catalogpages_test

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

// largeCatalog returns a catalog of servers with 100 tools each. The tools are copies of real tools.
func largeCatalog(t testing.TB, servers int) catalogpages.Catalogue {
	t.Helper()
	models := seedTools(t)
	c := catalogpages.Catalogue{Made: readAt}
	for s := range servers {
		server := fmt.Sprintf("server-%d", s)
		for n := range 100 {
			model := models[n%len(models)]
			c.Tools = append(c.Tools, &policyv1.CatalogTool{
				Server: server, Name: fmt.Sprintf("%s_%d", model.GetName(), n), Description: model.GetDescription(), Classification: model.GetClassification(),
				Parameters: model.GetParameters(), ParameterCount: 1, DefinitionJson: model.GetDefinitionJson(), DefinitionDigest: model.GetDefinitionDigest(),
				Pin: model.GetPin(), History: model.GetHistory(), Advice: model.GetAdvice(), ListedNow: true,
			})
		}
	}
	return c
}

func BenchmarkHTML(b *testing.B) {
	for name, c := range map[string]catalogpages.Catalogue{"353_tools": claudeFlowCatalog(b), "100000_tools": largeCatalog(b, 1000)} {
		b.Run(name, func(b *testing.B) {
			dir, n := b.TempDir(), 0
			for b.Loop() {
				n++ // each export has its own directory, because some file systems are slow after many removals
				if err := catalogpages.HTML(filepath.Join(dir, fmt.Sprint(n)), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMarkdown(b *testing.B) {
	c := claudeFlowCatalog(b)
	dir, n := b.TempDir(), 0
	for b.Loop() {
		n++
		if err := catalogpages.Markdown(filepath.Join(dir, fmt.Sprint(n)), c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	c := claudeFlowCatalog(b)
	for b.Loop() {
		if err := catalogpages.JSON(io.Discard, c); err != nil {
			b.Fatal(err)
		}
	}
}
