package catalogpages_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

func parse(t *testing.T, path ...string) *html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(read(t, path...)))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func textOf(n *html.Node) string {
	var out strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			out.WriteString(d.Data)
		}
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

// The page of a tool has all blocks, in the right order.
func TestHTML_ToolPageHasItsBlocksInOrder(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, goldenCatalog(t))
	for name, want := range map[string]struct{ description, category, risk, does, wide string }{
		"wasm_agent_export": {
			"Export a WASM agent's full state", "Write", "Medium", "AI agents use wasm_agent_export to create or update something on claude-flow.",
			"which means that it creates or changes data. Limit its rate",
		},
		"wasm_agent_todos": {
			"Get the structured todo list of a WASM agent as JSON.", "Read", "Low", "AI agents call wasm_agent_todos to get information from claude-flow.",
			"which means that it retrieves data and changes nothing.",
		},
		"wasm_agent_is_stopped": {
			"Check whether a WASM agent has reached its stop condition", "Read", "Low", "AI agents call wasm_agent_is_stopped to get information from claude-flow.",
			"which means that it retrieves data and changes nothing.",
		},
	} {
		blocks := []string{
			name, want.description, "Server claude-flow", "Category " + want.category, "Risk class " + want.risk, "Parameters 1, 1 required",
			"What " + name + " does on claude-flow", want.does, "Why " + name + " needs a policy", "From the tool's definition", "Attacks that exploit this kind of access", "Runaway loop",
			"Questions about " + name, "What does the " + name + " tool do?", want.wide,
			"How do I enforce a policy on " + name + "?", "/mcp/claude-flow", "version: 1 name: claude-flow_" + name,
			"What risk level is " + name + "?", want.category + " tool of " + strings.ToLower(want.risk) + " risk",
			"Can I rate-limit " + name + "?", "rate_limit: {max: 10, window: 60}", "How do I block " + name + " completely?", "action: deny",
			"What MCP server provides " + name + "?", "It is a tool of the MCP server claude-flow.",
		}
		checkOrder(t, name, textOf(withSpaces(body(t, parse(t, dir, "tool", "claude-flow", name+".html")))), blocks)
	}
}

// checkOrder fails the test if a block is missing or not in this order.
func checkOrder(t *testing.T, name, text string, blocks []string) {
	t.Helper()
	for _, block := range blocks {
		_, after, found := strings.Cut(text, block)
		if !found {
			t.Fatalf("%s: %q is not where it belongs, in %q", name, block, text[:min(len(text), 600)])
		}
		text = after
	}
}

func body(t *testing.T, page *html.Node) *html.Node {
	t.Helper()
	for n := range page.Descendants() {
		if n.DataAtom == atom.Article {
			return n
		}
	}
	t.Fatal("the page has no article")
	return nil
}

// withSpaces adds spaces between blocks, because a browser shows blocks on separate lines.
func withSpaces(n *html.Node) *html.Node {
	blocks := []atom.Atom{atom.Dt, atom.Dd, atom.Div, atom.P, atom.H1, atom.H2, atom.H3, atom.Li, atom.Pre}
	for d := range n.Descendants() {
		if slices.Contains(blocks, d.DataAtom) && d.Parent != nil {
			d.AppendChild(&html.Node{Type: html.TextNode, Data: " "})
		}
	}
	return n
}

// No page sends a network request. Every page runs only the site's own scripts, and links only to existing pages.
func TestHTML_PagesMakeNoNetworkRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]catalogpages.Catalogue{"few": goldenCatalog(t), "hostile": hostileCatalog(), "empty": {Made: readAt}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := writeSite(t, c)
			for _, file := range filesIn(t, dir) {
				if filepath.Ext(file) != ".html" {
					continue
				}
				for _, wrong := range findPageErrors(t, dir, file) {
					t.Errorf("%s: %s", file, wrong)
				}
			}
		})
	}
}

// policyWords is the Content-Security-Policy of every page.
const policyWords = "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:; base-uri 'none'; form-action 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// allowedElements lists the elements that pages have. Any other element would come from an untrusted string.
var allowedElements = strings.Fields("html head body meta title link script a header div nav span button main footer p code article h1 h2 h3 dl dt dd section ol ul li blockquote " +
	"details summary pre table thead tbody tr th td aside bdi br em svg path rect i form label input kbd fieldset legend noscript")

// findPageErrors returns descriptions of the errors in a page.
func findPageErrors(t *testing.T, dir, file string) (wrong []string) {
	t.Helper()
	seen := struct {
		policies, scripts, heads int
		level                    int
		ids                      map[string]bool
	}{ids: make(map[string]bool)}
	for n := range parse(t, dir, file).Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if !slices.Contains(allowedElements, n.Data) {
			wrong = append(wrong, "an element <"+n.Data+">")
		}
		if attribute(n, "http-equiv") == "Content-Security-Policy" {
			seen.policies++
			if got := attribute(n, "content"); got != policyWords || seen.scripts > 0 {
				wrong = append(wrong, fmt.Sprintf("the policy is %q, after %d scripts", got, seen.scripts))
			}
		}
		for _, a := range n.Attr {
			switch key := strings.ToLower(a.Key); {
			case strings.HasPrefix(key, "on"), key == "style", key == "srcdoc", key == "action", key == "formaction":
				wrong = append(wrong, "an attribute "+a.Key)
			case key == "href", key == "src":
				wrong = append(wrong, checkLink(dir, file, a.Val)...)
			case key == "id":
				if seen.ids[a.Val] {
					wrong = append(wrong, "twice the id "+a.Val)
				}
				seen.ids[a.Val] = true
			}
		}
		switch n.DataAtom {
		case atom.Script:
			seen.scripts++
			if n.FirstChild != nil || attribute(n, "src") == "" {
				wrong = append(wrong, "a script that is no file")
			}
		case atom.H1, atom.H2, atom.H3:
			level := int(n.Data[1] - '0')
			if level > seen.level+1 {
				wrong = append(wrong, fmt.Sprintf("a heading of level %d after one of level %d", level, seen.level))
			}
			if seen.level = level; level == 1 {
				seen.heads++
			}
		}
	}
	if seen.policies != 1 || seen.heads != 1 {
		wrong = append(wrong, fmt.Sprintf("%d policies, %d headings of level 1", seen.policies, seen.heads))
	}
	return wrong
}

// checkLink returns descriptions of the errors in a link of a page.
func checkLink(dir, file, address string) []string {
	to, err := url.Parse(address)
	switch {
	case err != nil, to.Scheme != "", to.Host != "", to.User != nil, strings.HasPrefix(to.Path, "/"):
		return []string{"leads outside: " + address}
	case to.Path == "":
		return nil
	}
	path := filepath.Join(dir, filepath.Dir(file), filepath.FromSlash(to.Path))
	if rel, err := filepath.Rel(dir, path); err != nil || !filepath.IsLocal(rel) {
		return []string{"leads out of the folder: " + address}
	}
	if _, err := os.Stat(path); err != nil {
		return []string{"leads nowhere: " + address}
	}
	return nil
}

// No file of the site has a network address, except in strings from servers.
func TestHTML_FilesHaveNoNetworkAddress(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, goldenCatalog(t))
	for _, file := range filesIn(t, dir) {
		text := strings.ReplaceAll(read(t, dir, file), `xmlns="http://www.w3.org/2000/svg"`, "")
		for _, address := range []string{"http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttpRequest", "innerHTML", "eval("} {
			if strings.Contains(text, address) {
				t.Errorf("%s has %q", file, address)
			}
		}
	}
}
