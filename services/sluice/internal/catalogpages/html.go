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

var assets = []string{"assets/style.css", "assets/theme.js", "assets/page.js", "assets/search.js", "assets/icon.svg"}

// templates returns the site's templates. It parses them on the first call, because only an export needs them.
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

type rowList struct {
	Root string
	Rows []row
	// Many is true if the tools may belong to several servers. In this case, each row contains the name of the tool's
	// server.
	Many bool
}

// indexVersion is the version of the search index. The site's script checks this version.
const indexVersion = "1"

// steps returns one element for each step of a scale. The elements of the reached steps come first and are true.
func steps(reached, all int) []bool {
	out := make([]bool, all)
	for i := range out {
		out[i] = i < reached
	}
	return out
}

// HTML writes the catalog as a static site into a directory. The directory must be missing or empty, or an earlier call
// to HTML must have written it. The site begins at index.html, works without a web server, and sends no network
// requests to other sites. A failed export leaves only complete pages. The error can be [ErrFolder], [ErrFormat] or
// [ErrTwice].
func HTML(dir string, c Catalogue) error {
	in, err := sortCatalog(c)
	if err != nil {
		return err
	}
	return export(dir, "html", (&site{in}).pages)
}

type site struct{ *sortedCatalog }

// sheet is the data for the template of a page.
type sheet struct {
	// Root is the path from the page to the site's root.
	Root string
	// Title is the title of the page. Here is the menu entry to which the page belongs.
	Title, Here string
	Made        string
	Body        any
	// Page is the number of the page in a list with Pages pages. Stem is the file name of the list's first page.
	Page, Pages int
	Stem        string
}

// Others returns all pages of a list, including this page. It returns nil if the list has only one page.
func (s sheet) Others() []other {
	var out []other
	for n := 1; n <= s.Pages && s.Pages > 1; n++ {
		out = append(out, other{n, pageName(s.Stem, n) + ".html", n == s.Page})
	}
	return out
}

type other struct {
	Number int
	File   string
	Here   bool
}

// page returns a page that a template renders with the data from fill when the page is written.
func (s *site) page(file, template string, fill func() sheet) page {
	return page{file, func(w io.Writer) error {
		sheet := fill()
		sheet.Made = clock(s.readAt)
		sheet.Root = strings.Repeat("../", strings.Count(file, "/"))
		return templates().ExecuteTemplate(w, template, sheet)
	}}
}

// pages yields all files of the site. index.html is the last file. Therefore, if an export is interrupted, index.html
// from an earlier export still links to complete pages.
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
	for t := range s.allTools {
		if !yield(s.page(path.Join("tool", t.server.stem, t.stem+".html"), "tool.html", func() sheet {
			return sheet{Title: t.GetName(), Here: "tools", Body: viewOf(t)}
		})) {
			return
		}
	}
}

type serverPage struct {
	*server

	Rows []row
}

func (s *site) serverPages(yield func(page) bool) {
	for _, server := range s.servers {
		for n, tools := range pagesOfRows(server.tools) {
			if !yield(s.page(path.Join("server", pageName(server.stem, n)+".html"), "server.html", func() sheet {
				return sheet{Title: server.GetName(), Here: "servers", Body: serverPage{server, rowsOf(tools)}, Page: n, Pages: pagesOf(len(server.tools)), Stem: server.stem}
			})) {
				return
			}
		}
	}
}

type categoryPage struct {
	*category

	UsualRisk *risk
	Total     int
	Rows      []row
}

func (s *site) categoryPages(yield func(page) bool) {
	for i := range categories {
		category := &categories[i]
		var tools []*tool
		for t := range s.allTools {
			if categoryOf(t.GetClassification().GetCategory()) == category {
				tools = append(tools, t)
			}
		}
		for n, part := range pagesOfRows(tools) {
			if !yield(s.page(path.Join("category", pageName(category.Slug, n)+".html"), "category.html", func() sheet {
				return sheet{
					Title: category.Label, Here: "categories", Page: n, Pages: pagesOf(len(tools)), Stem: category.Slug,
					Body: categoryPage{category, riskOf(category.Usual), len(tools), rowsOf(part)},
				}
			})) {
				return
			}
		}
	}
}

type indexPage struct {
	Tools, Servers int
	Categories     []categoryCard
	Risks          []risk
	Marks          []mark
}

type categoryCard struct {
	*category

	Count int
}

func (s *site) indexPages(yield func(page) bool) {
	for n, part := range pagesOfRows(s.servers) {
		if !yield(s.page(pageName("servers", n)+".html", "servers.html", func() sheet {
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

// index returns the data for index.html. The category "Not classified" is included only if it has tools.
func (s *site) index() indexPage {
	out := indexPage{Tools: s.tools, Servers: len(s.servers), Risks: risks[1:], Marks: markNames[:]}
	counted := sharesOf(s.allTools)
	for i := range categories {
		category := &categories[i]
		at := slices.IndexFunc(counted, func(c share) bool { return c.category == category })
		switch {
		case at >= 0:
			out.Categories = append(out.Categories, categoryCard{category, counted[at].Count})
		case i > 0:
			out.Categories = append(out.Categories, categoryCard{category, 0})
		}
	}
	if len(out.Categories) > 0 && out.Categories[0].Slug == "unknown" {
		out.Categories = append(out.Categories[1:], out.Categories[0])
		out.Risks = append(slices.Clone(out.Risks), risks[0])
	}
	return out
}
