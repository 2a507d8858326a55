package catalogpages_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"golang.org/x/net/html"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// Pages show untrusted strings unchanged, with escapes for hidden characters.
func TestHTML_HostileTextsStayText(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, hostileCatalog())
	var all strings.Builder
	for _, file := range filesIn(t, dir) {
		if filepath.Ext(file) == ".html" {
			all.WriteString(rawText(parse(t, dir, file)))
		}
		checkNoHiddenCharacters(t, file, read(t, dir, file))
	}
	for _, want := range []string{
		`<script>document.title="broken"</script>`, `"><img src=x onerror=document.title="broken">`, `</script><script>document.title='broken'//`,
		`\u2028document.title='broken'\u2029//`, `over\u202eride \u200b \u0000 \u001b[31m \u2066isolate \udb40\udc41 \xff end`, `{{.Made}}{{template "bottom"}}`,
		"emoji ⚠️ kept", `javascript:document.title="broken"`, strings.Repeat("x", 1024),
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("%q is on no page", want)
		}
	}
}

// rawText returns the text of a page, including its white space.
func rawText(page *html.Node) string {
	var out strings.Builder
	for n := range page.Descendants() {
		if n.Type == html.TextNode {
			out.WriteString(n.Data)
		}
	}
	return out.String()
}

// checkNoHiddenCharacters fails the test if a string has hidden characters other than line breaks and the emoji
// selector (U+FE0F).
func checkNoHiddenCharacters(t *testing.T, file, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s is no UTF-8", file)
	}
	for at, r := range text {
		if r != '\n' && r != 0xfe0f && safetext.IsHidden(r) {
			t.Errorf("%s has %U at %d", file, r, at)
			return
		}
	}
}

// The search index is a script. Untrusted strings in the index stay inside string literals, and can't end a line or the
// script.
func TestSearchIndex_HostileTextsStayStrings(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSuffix(read(t, writeSite(t, hostileCatalog()), "assets", "index.js"), "\n"), "\n")
	if want := len(lines) - 4; want != 2*len(hostileTexts) {
		t.Errorf("%d servers and tools, want %d", want, 2*len(hostileTexts))
	}
	for i, line := range lines {
		if i < 2 || !strings.HasPrefix(line, "[") {
			continue
		}
		var entry []any
		if err := json.Unmarshal([]byte(strings.TrimSuffix(line, ",")), &entry); err != nil {
			t.Errorf("line %d is no array: %v", i+1, err)
		}
		if strings.ContainsAny(line, "<>&\u2028\u2029") {
			t.Errorf("line %d: %s", i+1, line)
		}
	}
}

// Outside of code blocks, the only HTML element in the Markdown is <code>. No code block ends too early.
func TestMarkdown_HostileTextsStayText(t *testing.T) {
	t.Parallel()
	dir := writeMarkdown(t, hostileCatalog())
	for _, file := range filesIn(t, dir) {
		text := read(t, dir, file)
		checkNoHiddenCharacters(t, file, text)
		fence := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			ticks := line[:len(line)-len(strings.TrimLeft(line, "`"))]
			switch {
			case fence == "" && len(ticks) >= 3:
				if fence = ticks; line != ticks+"yaml" && line != ticks+"json" {
					t.Errorf("%s: a block begins with %q", file, line)
				}
			case fence != "" && line == fence:
				fence = ""
			case fence == "":
				if wrong := findMarkup(line); wrong != "" {
					t.Errorf("%s: %s in %s", file, wrong, line)
				}
			}
		}
		if fence != "" {
			t.Errorf("%s: a block of code does not end", file)
		}
	}
}

var (
	codeSpans = regexp.MustCompile("`[^`]*`|</?code>")
	escapes   = regexp.MustCompile(`\\[!-/:-@\[-` + "`" + `{-~]`)
	ownLinks  = regexp.MustCompile(`\[[^\]\[]*\]\((?:\.\./)*(?:index|server/[a-z0-9_.~-]+|tool/[a-z0-9_.~-]+/[a-z0-9_.~-]+)\.md\)`)
)

// findMarkup returns the first markup in a line of Markdown, except code and links to the export's own pages.
func findMarkup(line string) string {
	rest := ownLinks.ReplaceAllString(escapes.ReplaceAllString(codeSpans.ReplaceAllString(line, ""), ""), "")
	for _, sign := range []string{"<", "`", "[", "]", "://", "www.", "@", "~"} {
		if strings.Contains(rest, sign) {
			return sign
		}
	}
	return ""
}

// The JSON document contains the untrusted strings. No program can interpret the document as HTML.
func TestJSON_HostileTextsAreEscaped(t *testing.T) {
	t.Parallel()
	text := writeJSON(t, hostileCatalog())
	if strings.ContainsAny(text, "<>&") {
		t.Error("the document has characters that HTML knows")
	}
	checkNoHiddenCharacters(t, "the document", strings.ReplaceAll(text, "⚠️", ""))
	var got struct {
		Tools []struct {
			Name        string `json:"name"`
			Description string `json:"description"`
		} `json:"tools"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, tool := range got.Tools {
		names[tool.Name] = true
	}
	for _, name := range hostileTexts {
		if !names[strings.ToValidUTF8(name, "\ufffd")] {
			t.Errorf("no tool is called %q", name)
		}
	}
}
