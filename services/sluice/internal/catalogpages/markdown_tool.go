package catalogpages

import (
	"fmt"
	"strings"
)

// toolMarkdown writes the page of a tool, in the same order as the HTML page.
func toolMarkdown(m *markdown, v *view) {
	m.line("[Catalogue](../../index.md) / %s", link{v.GetServer(), "../../server/" + v.ServerStem() + ".md"})
	m.line("# %s", v.GetName())
	if title := v.Title(); title != "" {
		m.line("*%s*", title)
	}
	if v.GetDescription() == "" {
		m.line("The server gives no description.")
	}
	m.quote(v.GetDescription())
	m.head("", "")
	m.row(text("Server"), link{v.GetServer(), "../../server/" + v.ServerStem() + ".md"})
	m.row(text("Category"), text(v.Category.Label))
	m.row(text("Risk class"), text(v.Risk.Label))
	m.row(text("Parameters"), text(fmt.Sprintf("%d, %d required", v.GetParameterCount(), v.GetRequiredParameterCount())))
	m.end()
	m.notices(v.Notices)
	m.line("## What %s does on %s", inCode(v.headName()), inCode(v.GetServer()))
	m.line("%s", v.Does)
	m.line("## Why %s needs a policy", inCode(v.headName()))
	for _, p := range v.Why {
		m.line("%s", p)
	}
	evidenceMarkdown(m, v)
	attacksMarkdown(m, v)
	m.line("## Questions about %s", inCode(v.headName()))
	for _, q := range v.Questions {
		m.line("### %s", q.Title)
		for _, p := range q.Answer {
			m.line("%s", p)
		}
		m.fence("yaml", q.Rule)
	}
	parametersMarkdown(m, v)
	glanceMarkdown(m, v)
	historyMarkdown(m, v)
	m.line("## The definition")
	m.line("As the server sent it, except for the white space between its parts.")
	if v.Cut {
		m.line("It is long: the rest is omitted here.")
	}
	m.fence("json", v.Definition)
}

func evidenceMarkdown(m *markdown, v *view) {
	m.line("### From the tool's definition")
	if len(v.Evidence) == 0 {
		m.line("Nothing in the definition says what the tool does.")
		return
	}
	m.head("Words", "Meaning", "Place", "For", "Weight")
	for _, e := range v.Evidence {
		speaks := "a degree"
		if e.For != nil {
			speaks = e.For.Label
		}
		m.row(inCode(e.Quote), text(e.Meaning), say(e.Place, fmt.Sprintf(", from byte %d: ", e.Offset), code(e.Pointer)), text(speaks), text(e.Weight))
	}
	m.end()
}

func attacksMarkdown(m *markdown, v *view) {
	m.line("## Attacks that exploit this kind of access")
	if len(v.Attacks) == 0 {
		m.line("The catalogue knows of none.")
	}
	for _, a := range v.Attacks {
		m.line("### %s", a.GetName())
		m.line("%s", a.GetDescription())
		entries := say(code(a.GetId()))
		for _, r := range a.GetReferences() {
			entries = say(entries, ", ", quote(r))
		}
		m.line("Entries: %s", entries)
	}
}

func parametersMarkdown(m *markdown, v *view) {
	m.line("## Parameters")
	if len(v.GetParameters()) == 0 {
		m.line("It takes no parameters.")
		return
	}
	m.head("Name", "Type", "Required", "What the server says about it")
	for _, p := range v.GetParameters() {
		required := "no"
		if p.GetRequired() {
			required = "yes"
		}
		m.row(inCode(p.GetName()), text(typesOf(p.GetTypes())), text(required), text(p.GetDescription()))
	}
	m.end()
	if shown := len(v.GetParameters()); shown < int(v.GetParameterCount()) {
		m.line("These are the first %s of %s.", fmt.Sprint(shown), fmt.Sprint(v.GetParameterCount()))
	}
}

func typesOf(types []string) string {
	if len(types) == 0 {
		return "any"
	}
	return strings.Join(types, ", ")
}

func glanceMarkdown(m *markdown, v *view) {
	m.line("## At a glance")
	m.head("", "", "")
	m.row(text("Confidence"), text(v.Sure), text("how sure the category and the risk are"))
	for _, d := range v.Degrees {
		m.row(text(d.Name), text(d.Level), text(d.About))
	}
	m.row(text("Newest definition"), text(v.Pin.Label), inCode(digest(v.GetDefinitionDigest())))
	if tags := v.GetClassification().GetTags(); len(tags) > 0 {
		m.row(text("Tags"), text(typesOf(tags)), text(""))
	}
	m.row(text("Last listed"), text(orNever(v.LastListed())), text(typesOf(v.GetProtocolVersions())))
	m.end()
}

func historyMarkdown(m *markdown, v *view) {
	m.line("## Definitions seen")
	if n := len(v.GetWaiting()); n > 0 {
		m.line("%s for a person.", count(n, "definition waits", "definitions wait"))
	}
	if len(v.History) == 0 {
		m.line("None is known.")
		return
	}
	m.head("Definition", "State", "First seen", "Last seen", "Decided", "First by", "MCP")
	for _, d := range v.History {
		settled := d.Settled
		if settled == nil {
			settled = say(quote(d.Reason))
		}
		m.row(inCode(d.Digest), text(d.Pin.Label), text(d.First), text(d.Last), settled, text(d.SeenBy), text(d.Versions))
	}
	m.end()
}
