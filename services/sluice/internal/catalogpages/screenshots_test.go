package catalogpages_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

var screenshotFolder = flag.String("screenshots", "", "the folder for pictures of pages")

// claudeFlowCatalog returns a catalog with the tools of goldenCatalog and the 353 tools that the Claude Flow server
// lists, as the classifier classifies them.
func claudeFlowCatalog(t testing.TB) catalogpages.Catalogue {
	t.Helper()
	list, err := os.ReadFile(filepath.Join("..", "..", "..", "policy", "internal", "classify", "testdata", "lists", "claude-flow.json"))
	if err != nil {
		t.Fatal(err)
	}
	classified, err := policy.ClassifyList(list, false)
	if err != nil {
		t.Fatal(err)
	}
	c := goldenCatalog(t)
	c.Servers[1].Tools = int32(len(classified))
	known := make(map[string]bool)
	for _, tool := range c.Tools {
		known[tool.GetName()] = true
	}
	descriptions := descriptionsIn(t, list)
	for _, tool := range classified {
		if known[tool.Name] {
			continue
		}
		c.Tools = append(c.Tools, &policyv1.CatalogTool{
			Server: "claude-flow", Name: tool.Name, Description: descriptions[tool.Name], Classification: tool.Classification,
			Pin: policyv1.PinState_PIN_STATE_ACCEPTED, ListedNow: true, Listed: daysBefore(0),
		})
	}
	return c
}

// TestScreenshots stores pictures of pages, for people to look at, in the directory that the flag -screenshots names.
func TestScreenshots(t *testing.T) {
	if *screenshotFolder == "" {
		t.Skip("no folder is given")
	}
	if err := os.MkdirAll(*screenshotFolder, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := writeSite(t, claudeFlowCatalog(t))
	b := startBrowser(t)
	for name, file := range map[string]string{
		"index": "index.html", "servers": "servers.html", "server": "server/claude-flow.html", "stopped-server": "server/shop.html", "category": "category/destructive.html",
		"tool": "tool/claude-flow/wasm_agent_export.html", "worst-tool": "tool/shop/refund.html", "search": "index.html#q=agent&risk=low",
	} {
		for _, width := range []int{1280, 390} {
			for _, scheme := range []string{"light", "dark"} {
				b.setWindow(width, scheme)
				b.navigate("about:blank") // a new hash does not reload a page
				b.navigate("file://" + filepath.Join(dir, file))
				b.screenshot(filepath.Join(*screenshotFolder, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), 2000, false)
				if strings.HasSuffix(name, "tool") {
					b.screenshot(filepath.Join(*screenshotFolder, fmt.Sprintf("%s-end-%d-%s.png", name, width, scheme)), 2000, true)
				}
			}
		}
	}
	for _, complaint := range b.reportedErrors() {
		t.Error(complaint)
	}
}

func descriptionsIn(t testing.TB, list []byte) map[string]string {
	t.Helper()
	var answer struct {
		Tools []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(list, &answer); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, tool := range answer.Tools {
		out[tool.Name] = tool.Description
	}
	return out
}
