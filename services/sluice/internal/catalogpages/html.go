package catalogpages

import (
	"embed"
	"html/template"
	"io"
	"iter"
	"path"
	"slices"
	"strings"
	"sync"
)

//go:embed templates assets
var files embed.FS

// assets are the files that every page of the site uses.
var assets = []string{"assets/style.css", "assets/theme.js", "assets/page.js", "assets/search.js", "assets/icon.svg"}

// templates returns the site's pages, which only an export needs.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"line":  func(text string) []run { return runs(text, false) },
		"lines": func(text string) []run { return runs(text, true) },
		"shown": shown,
		"short": func(text string) string { return short(text, maxHeading) },
		"count": count,
		"steps": steps,
		"list":  func(root string, rows []row, many bool) rowList { return rowList{root, rows, many} },
		"stop":  func(level string) bool { return level == "stop" },
	}).ParseFS(files, "templates/*.html"))
})

// rowList is a list of tools, and the way from its page to the site's first folder.
type rowList struct {
	Root string
	Rows []row
	// Many tells that they may be of several servers.
	Many bool
}

// layout is that of the search index, which the index and the script have to agree on.
const layout = "1"

// steps are those of a scale: true for each that is reached.
func steps(reached, all int) []bool {
	out := make([]bool, all)
	for i := range out {
		out[i] = i < reached
	}
	return out
}

// HTML writes the catalogue as a static site into a folder, which has to be empty, not there
// yet, or one that HTML wrote before ([ErrFolder], [ErrFormat]). The site begins at
// index.html and works from a disk: it asks no network, not even where it is opened from a
// server. Pages are written whole, one after the other.
func HTML(dir string, c Catalogue) error {
	in, err := arrange(c)
	if err != nil {
		return err
	}
	return export(dir, "html", (&site{in}).pages)
}

// site is the catalogue as HTML.
type site struct{ *contents }

// sheet is what each page's template is given.
type sheet struct {
	// Root is the way from the page to the site's first folder.
	Root string
	// Title is the page's, and Here the entry of the menu that leads to it.
	Title, Here string
	Made        string
	Body        any
	// Page is the number of the page in a list of Pages, and Stem the list's name.
	Page, Pages int
	Stem        string
}

// Others are the pages of a list, with their file names.
func (s sheet) Others() []other {
	var out []other
	for n := 1; n <= s.Pages && s.Pages > 1; n++ {
		out = append(out, other{n, paged(s.Stem, n) + ".html", n == s.Page})
	}
	return out
}

// other is a page of a list.
type other struct {
	Number int
	File   string
	Here   bool
}

// page is a page that a template makes of a sheet, when its turn comes.
func (s *site) page(file, template string, fill func() sheet) page {
	return page{file, func(w io.Writer) error {
		sheet := fill()
		sheet.Made = clock(s.made)
		sheet.Root = strings.Repeat("../", strings.Count(file, "/"))
		return templates().ExecuteTemplate(w, template, sheet)
	}}
}

// pages are all files of the site. The index comes last: where an export is stopped
// half-way, the one before it still leads to whole pages.
func (s *site) pages(yield func(page) bool) {
	for _, part := range []iter.Seq[page]{s.assets, s.toolPages, s.serverPages, s.categoryPages, s.indexPages} {
		for p := range part {
			if !yield(p) {
				return
			}
		}
	}
}

func (s *site) assets(yield func(page) bool) {
	for _, name := range assets {
		if !yield(page{name, func(w io.Writer) error {
			text, err := files.ReadFile(name)
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		}}) {
			return
		}
	}
}

func (s *site) toolPages(yield func(page) bool) {
	for t := range s.each {
		if !yield(s.page(path.Join("tool", t.of.stem, t.stem+".html"), "tool.html", func() sheet {
			return sheet{Title: t.GetName(), Here: "tools", Body: viewOf(t)}
		})) {
			return
		}
	}
}

// serverPage is what the page of a server shows.
type serverPage struct {
	*server

	Rows []row
}

func (s *site) serverPages(yield func(page) bool) {
	for _, of := range s.servers {
		for n, tools := range sheets(of.tools) {
			if !yield(s.page(path.Join("server", paged(of.stem, n)+".html"), "server.html", func() sheet {
				return sheet{Title: of.GetName(), Here: "servers", Body: serverPage{of, rowsOf(tools)}, Page: n, Pages: pagesOf(len(of.tools)), Stem: of.stem}
			})) {
				return
			}
		}
	}
}

// categoryPage is what the page of a category shows.
type categoryPage struct {
	*category

	UsualRisk *risk
	Total     int
	Rows      []row
}

func (s *site) categoryPages(yield func(page) bool) {
	for i := range categories {
		of := &categories[i]
		var tools []*tool
		for t := range s.each {
			if categoryOf(t.GetClassification().GetCategory()) == of {
				tools = append(tools, t)
			}
		}
		for n, part := range sheets(tools) {
			if !yield(s.page(path.Join("category", paged(of.Slug, n)+".html"), "category.html", func() sheet {
				return sheet{
					Title: of.Label, Here: "categories", Page: n, Pages: pagesOf(len(tools)), Stem: of.Slug,
					Body: categoryPage{of, riskOf(of.Usual), len(tools), rowsOf(part)},
				}
			})) {
				return
			}
		}
	}
}

// indexPage is what the first page shows.
type indexPage struct {
	Tools, Servers int
	Categories     []categoryCard
	Risks          []risk
	Marks          []mark
}

// categoryCard is a category on the first page.
type categoryCard struct {
	*category

	Count int
}

// indexPages are the list of servers, the search index and the first page.
func (s *site) indexPages(yield func(page) bool) {
	for n, part := range sheets(s.servers) {
		if !yield(s.page(paged("servers", n)+".html", "servers.html", func() sheet {
			return sheet{Title: "Servers", Here: "servers", Body: part, Page: n, Pages: pagesOf(len(s.servers)), Stem: "servers"}
		})) {
			return
		}
	}
	if !yield(page{"assets/index.js", s.writeIndex}) {
		return
	}
	yield(s.page("index.html", "index.html", func() sheet {
		return sheet{Title: "Tools", Here: "tools", Body: s.index()}
	}))
}

// index is what the first page shows. What is not classified is shown where there is such a tool.
func (s *site) index() indexPage {
	out := indexPage{Tools: s.tools, Servers: len(s.servers), Risks: risks[1:], Marks: markNames[:]}
	counted := sharesOf(s.each)
	for i := range categories {
		of := &categories[i]
		at := slices.IndexFunc(counted, func(c share) bool { return c.category == of })
		switch {
		case at >= 0:
			out.Categories = append(out.Categories, categoryCard{of, counted[at].Count})
		case i > 0:
			out.Categories = append(out.Categories, categoryCard{of, 0})
		}
	}
	if len(out.Categories) > 0 && out.Categories[0].Slug == "unknown" {
		out.Categories = append(out.Categories[1:], out.Categories[0])
		out.Risks = append(slices.Clone(out.Risks), risks[0])
	}
	return out
}
