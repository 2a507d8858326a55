package catalogpages

import (
	"io"
	"path"
)

// Markdown writes the catalog as Markdown (CommonMark with GitHub's tables) into a directory. It writes index.md, and
// one file for each server and each tool. The conditions for the directory and the errors are the same as for [HTML].
func Markdown(dir string, c Catalogue) error {
	in, err := sortCatalog(c)
	if err != nil {
		return err
	}
	return export(dir, "md", (&markdownPages{in}).pages)
}

type markdownPages struct{ *sortedCatalog }

func (b *markdownPages) pages(yield func(page) bool) {
	for t := range b.allTools {
		if !yield(b.page(path.Join("tool", t.server.stem, t.stem+".md"), func(m *markdown) { toolMarkdown(m, viewOf(t)) })) {
			return
		}
	}
	for _, s := range b.servers {
		if !yield(b.page(path.Join("server", s.stem+".md"), func(m *markdown) { serverMarkdown(m, s) })) {
			return
		}
	}
	yield(b.page("index.md", b.index))
}

func (b *markdownPages) page(file string, fill func(*markdown)) page {
	return page{file, func(w io.Writer) error {
		m := &markdown{to: w}
		fill(m)
		m.line("---")
		m.line("Made on %s by `sluice catalog export`. Servers write the definitions: what is said here about them is advice, and does not prove what a tool does.", clock(b.readAt))
		return m.err
	}}
}

func (b *markdownPages) index(m *markdown) {
	m.line("# What can these tools do?")
	m.line("%s of %s.", count(b.tools, "tool", "tools"), count(len(b.servers), "server", "servers"))
	m.head("Category", "Tools", "Which tools")
	for _, s := range sharesOf(b.allTools) {
		m.row(text(s.Label), number(s.Count), text(s.Meaning))
	}
	m.end()
	m.line("## Servers")
	m.head("Server", "Tools", "Waiting", "State")
	for _, s := range b.servers {
		state := ""
		if s.GetQuarantined() {
			state = "stopped"
		}
		m.row(link{s.GetName(), "server/" + s.stem + ".md"}, number(s.Count()), number(s.GetWaiting()), text(state))
	}
	m.end()
}

func serverMarkdown(m *markdown, s *server) {
	m.line("[Catalogue](../index.md)")
	m.line("# %s", s.GetName())
	m.head("", "")
	m.row(text("Tools"), number(s.GetTools()))
	m.row(text("Waiting for a person"), number(s.GetWaiting()))
	m.row(text("Last listed"), text(orNever(s.LastListed())))
	m.row(text("Trust"), text(trust(s)))
	m.row(text("At the gateway"), inCode(s.Gateway()))
	m.row(text("Pinning"), text(s.Pinning()))
	m.end()
	m.notices(s.Notices())
	m.line("## Tools")
	if len(s.tools) == 0 {
		m.line("It lists no tools.")
		return
	}
	m.head("Tool", "Category", "Risk", "Marks", "What the server says about it")
	for _, t := range s.tools {
		r := rowOf(t)
		m.row(link{short(t.GetName(), maxHeading), "../tool/" + s.stem + "/" + t.stem + ".md"}, text(r.Category.Label), text(r.Risk.Label), text(r.marks()), text(r.Summary))
	}
	m.end()
}

func orNever(moment string) string {
	if moment == "" {
		return "never"
	}
	return moment
}

func trust(s *server) string {
	if s.GetTrusted() {
		return "trusted by the configuration"
	}
	return "not trusted"
}

func (r row) marks() string {
	out := ""
	for _, m := range r.Marks {
		if out != "" {
			out += ", "
		}
		out += m.Label
	}
	return out
}
