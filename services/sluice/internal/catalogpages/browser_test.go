package catalogpages_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// checkNoBrowserErrors fails the test if the browser reported a script error, a violation of the
// Content-Security-Policy, or a request for a URL other than a file.
func checkNoBrowserErrors(t *testing.T, b *browser) {
	t.Helper()
	for _, complaint := range b.reportedErrors() {
		t.Error(complaint)
	}
}

// searchResults is a JavaScript expression that returns the names of the tools in the search results.
const searchResults = `[...document.querySelectorAll("[data-results] .row-name")].map((n) => n.textContent)`

func (b *browser) names() []string {
	b.t.Helper()
	var out []string
	b.eval(searchResults, &out)
	return out
}

// waitUntil waits until an expression is true, because opening and leaving pages takes a moment.
func (b *browser) waitUntil(expression string) {
	b.t.Helper()
	eventually.Holds(b.t, expression, func() bool { return b.text("document.readyState === 'complete' && ("+expression+")") == "true" })
}

// A user can find a tool, open its page, and go back with the keyboard alone.
func TestBrowser_SearchWorksByKeyboard(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	b.setWindow(1280, "light")
	b.navigate(filepath.Join(writeSite(t, claudeFlowCatalog(t)), "index.html"))
	if got := b.text(`document.querySelector("[data-found]").textContent`); got != "All 355 tools" {
		t.Errorf("it says %q", got)
	}
	b.pressKeys("/")
	if got := b.text(`document.activeElement.id + document.activeElement.value`); got != "q" {
		t.Fatalf("/ leads to %q", got)
	}
	b.typeText("wasm export")
	if got := b.names(); len(got) == 0 || got[0] != "wasm_agent_export" {
		t.Errorf("it finds %q", got)
	}
	b.pressKeys("ArrowDown", "ArrowDown", "ArrowUp")
	if got := b.text(`document.activeElement.querySelector(".row-name").textContent`); got != "wasm_agent_export" {
		t.Errorf("the arrows lead to %q", got)
	}
	if got := b.text(`getComputedStyle(document.activeElement).outlineStyle + parseFloat(getComputedStyle(document.activeElement).outlineWidth)`); got != "solid3" {
		t.Errorf("the focus is shown by %q", got)
	}
	b.pressKeys("ArrowUp")
	if got := b.text("document.activeElement.id"); got != "q" {
		t.Errorf("above the first tool is %q", got)
	}
	b.pressKeys("ArrowDown", "Enter")
	b.waitUntil(`document.querySelector("h1").textContent === "wasm_agent_export"`)
	b.call("Page.navigateToHistoryEntry", map[string]any{"entryId": b.historyEntry(-1)}, nil)
	b.waitUntil(`document.getElementById("q")?.value === "wasm export"`)
	if got := b.names(); len(got) == 0 || got[0] != "wasm_agent_export" {
		t.Errorf("back at the search it finds %q", got)
	}
	b.pressKeys("Escape")
	if got := b.text(`document.getElementById("q").value + location.hash`); got != "" {
		t.Errorf("after Escape the search is %q", got)
	}
	b.typeText("nothing-is-called-so")
	if got := b.text(`document.querySelector("[data-found]").textContent`); !strings.HasPrefix(got, "No tool fits.") {
		t.Errorf("it says %q", got)
	}
	checkNoBrowserErrors(t, b)
}

// historyEntry returns the id of an entry of the browser's history. The parameter steps is the number of steps from the
// current entry.
func (b *browser) historyEntry(steps int) int {
	b.t.Helper()
	var history struct {
		CurrentIndex int `json:"currentIndex"`
		Entries      []struct {
			ID int `json:"id"`
		} `json:"entries"`
	}
	b.call("Page.getNavigationHistory", nil, &history)
	return history.Entries[history.CurrentIndex+steps].ID
}

// On every page, the key / opens the search, and the first press of Tab selects the link to the content.
func TestBrowser_SlashOpensTheSearch(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	dir := writeSite(t, goldenCatalog(t))
	b.navigate(filepath.Join(dir, "tool", "shop", "refund.html"))
	b.pressKeys("Tab")
	if got := b.text("document.activeElement.textContent"); got != "Skip to the content" {
		t.Errorf("Tab leads to %q", got)
	}
	b.pressKeys("Enter")
	b.waitUntil(`document.activeElement.id === "content"`)
	b.pressKeys("/")
	b.waitUntil(`document.activeElement.id === "q"`)
	b.typeText("refund")
	b.pressKeys("Enter")
	b.waitUntil(`document.querySelector("h1").textContent === "refund"`)
	checkNoBrowserErrors(t, b)
}

func TestBrowser_FiltersSelectTools(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	b.navigate(filepath.Join(writeSite(t, goldenCatalog(t)), "index.html"))
	press := func(value string) {
		t.Helper()
		b.eval(`document.querySelector('[data-value="`+value+`"]').click()`, nil)
	}
	press("read")
	if got, want := b.names(), []string{"wasm_agent_is_stopped", "wasm_agent_todos"}; !slices.Equal(got, want) {
		t.Errorf("Read: %q", got)
	}
	press("financial")
	if got := b.names(); len(got) != 3 {
		t.Errorf("Read or Financial: %q", got)
	}
	press("critical")
	if got, want := b.names(), []string{"refund"}; !slices.Equal(got, want) {
		t.Errorf("Critical, too: %q", got)
	}
	if got := b.text("decodeURIComponent(location.hash)"); got != "#category=read,financial&risk=critical" {
		t.Errorf("the address keeps %q", got)
	}
	press("waits")
	press("read")
	if got, want := b.names(), []string{"refund"}; !slices.Equal(got, want) {
		t.Errorf("what waits: %q", got)
	}
	checkNoBrowserErrors(t, b)
}

// Pages use the system's color scheme until the reader chooses another one. After that, every page uses the chosen
// scheme.
func TestBrowser_ColorSchemeIsStored(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	dir := writeSite(t, goldenCatalog(t))
	b.setWindow(1280, "dark")
	b.navigate(filepath.Join(dir, "index.html"))
	ground := `getComputedStyle(document.body).backgroundColor`
	dark := b.text(ground)
	b.eval(`document.querySelector("[data-theme-switch]").click()`, nil)
	light := b.text(ground)
	b.navigate(filepath.Join(dir, "tool", "shop", "refund.html"))
	if got := b.text(ground); dark == light || got != light {
		t.Errorf("dark is %s, light is %s, the next page is %s", dark, light, got)
	}
	checkNoBrowserErrors(t, b)
}

// readabilityScript finds text with too little contrast (WCAG 2.2, 1.4.3: 4.5 to 1, and 3 to 1 for large text), and
// elements wider than the window.
const readabilityScript = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
	const rgb = (color) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
		return {r, g, b, a: a / 255};
	};
	const light = ({r, g, b}) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (element) => {
		for (let e = element; e; e = e.parentElement) {
			const color = rgb(getComputedStyle(e).backgroundColor);
			if (color.a === 1) { return color; }
			if (color.a > 0) { throw new Error("a ground that is half transparent"); }
		}
		return {r: 255, g: 255, b: 255};
	};
	const wrong = [], seen = new Set();
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const element = walker.currentNode.parentElement;
		if (!walker.currentNode.data.trim() || seen.has(element) || !element.checkVisibility() || element.closest("noscript, .vh, .skip")) { continue; }
		seen.add(element);
		const style = getComputedStyle(element);
		const [a, b] = [light(rgb(style.color)), light(behind(element))].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
		if (ratio < (size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5)) {
			wrong.push(ratio.toFixed(2) + ": <" + element.tagName + " class=" + element.className + "> " + element.textContent.slice(0, 40));
		}
	}
	if (document.documentElement.scrollWidth > innerWidth) { wrong.push("wider than the window: " + document.documentElement.scrollWidth); }
	return {wrong, seen: seen.size};
})()`

// All kinds of pages are readable in both color schemes, in a wide window and on a phone.
func TestBrowser_PagesAreReadable(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	b.setWindow(1280, "light")
	few, bad := writeSite(t, goldenCatalog(t)), writeSite(t, hostileCatalog())
	pages := []string{
		filepath.Join(few, "index.html"), filepath.Join(few, "servers.html"), filepath.Join(few, "server", "shop.html"), filepath.Join(few, "category", "read.html"),
		filepath.Join(few, "tool", "shop", "refund.html"), filepath.Join(few, "tool", "claude-flow", "wasm_agent_export.html"), filepath.Join(bad, "index.html"),
	}
	long, err := filepath.Glob(filepath.Join(bad, "tool", "*", "xxxxxxxxxx*.html"))
	if err != nil || len(long) == 0 {
		t.Fatal("no page of a tool with a long name", err)
	}
	for _, page := range append(pages, long[0]) {
		b.navigate(page)
		b.eval(`for (const d of document.querySelectorAll("details")) { d.open = true; }
			for (const c of document.querySelectorAll(".chip:nth-of-type(odd)")) { c.setAttribute("aria-pressed", "true"); }`, nil)
		for _, width := range []int{1280, 390, 320} {
			for _, scheme := range []string{"light", "dark"} {
				b.setWindow(width, scheme)
				var got struct {
					Wrong []string `json:"wrong"`
					Seen  int      `json:"seen"`
				}
				b.eval(readabilityScript, &got)
				for _, wrong := range got.Wrong {
					t.Errorf("%s, %d wide, %s: %s", filepath.Base(page), width, scheme, wrong)
				}
				if got.Seen < 10 {
					t.Errorf("%s: only %d texts were seen", page, got.Seen)
				}
			}
		}
	}
	checkNoBrowserErrors(t, b)
}

// A printed page shows the answers to all questions, and no controls.
func TestBrowser_PrintedPageHasNoControls(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	b.setWindow(1280, "dark")
	b.navigate(filepath.Join(writeSite(t, goldenCatalog(t)), "tool", "shop", "refund.html"))
	b.call("Emulation.setEmulatedMedia", map[string]any{"media": "print", "features": []map[string]any{{"name": "prefers-color-scheme", "value": "dark"}}}, nil)
	b.eval(`dispatchEvent(new Event("beforeprint"))`, nil)
	for expression, want := range map[string]string{
		`getComputedStyle(document.body).backgroundColor`:                      "rgb(255, 255, 255)",
		`document.querySelector(".top").checkVisibility()`:                     "false",
		`document.querySelector(".copy").checkVisibility()`:                    "false",
		`document.querySelector("#question-block .answer").checkVisibility()`:  "true",
		`document.querySelector("#question-server .answer").checkVisibility()`: "true",
	} {
		if got := b.text(expression); got != want {
			t.Errorf("%s is %s", expression, got)
		}
	}
	b.eval(`dispatchEvent(new Event("afterprint"))`, nil)
	if got := b.text(`document.querySelectorAll("details.question[open]").length`); got != "1" {
		t.Errorf("%s answers stay open", got)
	}
	checkNoBrowserErrors(t, b)
}

// No untrusted string runs as code, neither on the site's pages, nor in the search, nor when a browser opens an export
// in another format.
func TestBrowser_HostileTextsDoNotRun(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	c := hostileCatalog()
	dir, md := writeSite(t, c), writeMarkdown(t, c)
	files := []string{}
	for _, file := range filesIn(t, dir) {
		if filepath.Ext(file) == ".html" {
			files = append(files, filepath.Join(dir, file))
		}
	}
	for i, file := range filesIn(t, md) {
		if i%10 == 0 { // the browser shows them unescaped
			files = append(files, filepath.Join(md, file))
		}
	}
	text := writeJSON(t, c)
	writeText(t, text, dir, "catalogue.json")
	writeText(t, text, dir, "as-a-page.html")
	writeText(t, "<!doctype html><title>A catalogue</title><script type='application/json'>"+text+"</script>", dir, "in-a-page.html")
	for _, name := range []string{"catalogue.json", "as-a-page.html", "in-a-page.html"} {
		files = append(files, filepath.Join(dir, name))
	}
	for _, file := range files {
		b.navigate(file)
		if got := b.text("document.title"); got == "broken" {
			t.Errorf("%s ran what a stranger wrote", file)
		}
	}
	b.navigate(filepath.Join(dir, "index.html"))
	for _, word := range []string{"script", "img", "onload", "emoji", "\u05d0"} {
		b.eval(`document.getElementById("q").value = "`+word+`"; document.getElementById("q").dispatchEvent(new Event("input"))`, nil)
		if got := b.text(`document.title + document.querySelectorAll("main script, main img, [onload], [onerror]").length`); got != "Tools · Sluice catalogue0" {
			t.Errorf("%q: %s", word, got)
		}
		if len(b.names()) == 0 {
			t.Errorf("%q is not found", word)
		}
	}
	checkNoBrowserErrors(t, b)
}
