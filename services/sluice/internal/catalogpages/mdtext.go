package catalogpages

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// markdown writes Markdown. Only the formats of its methods are Markdown: arguments are text, and stay text.
type markdown struct {
	to  io.Writer
	err error // the first error
}

// safe is text that a page may have unescaped. All other text is escaped.
type safe string

// Arguments that are more than text.
type (
	// text is shown as it is.
	text string
	// inCode is shown as code.
	inCode string
	// link is a text with a link to another page.
	link struct{ text, to string }
)

func number[N int | int32](n N) text { return text(strconv.Itoa(int(n))) }

// line writes a paragraph, a heading or similar.
func (m *markdown) line(format string, args ...any) {
	for i, arg := range args {
		args[i] = markdownOf(arg)
	}
	m.raw(fmt.Sprintf(format, args...) + "\n\n")
}

// raw writes Markdown.
func (m *markdown) raw(made string) {
	if m.err == nil {
		_, m.err = io.WriteString(m.to, made)
	}
}

// head begins a table.
func (m *markdown) head(names ...string) {
	m.raw("| " + strings.Join(names, " | ") + " |\n|" + strings.Repeat("---|", len(names)) + "\n")
}

func (m *markdown) row(cells ...any) {
	var out strings.Builder
	out.WriteByte('|')
	for _, cell := range cells {
		out.WriteString(" " + string(markdownOf(cell)) + " |")
	}
	m.raw(out.String() + "\n")
}

func (m *markdown) end() { m.raw("\n") }

// quote writes an untrusted text as a quotation, line by line.
func (m *markdown) quote(said string) {
	if said == "" {
		return
	}
	var out strings.Builder
	lines := strings.Split(shownLines(said), "\n")
	for i, line := range lines {
		line = strings.TrimSpace(line)
		end := ""
		if line != "" && i+1 < len(lines) && strings.TrimSpace(lines[i+1]) != "" {
			end = `\` // a hard line break
		}
		out.WriteString(strings.TrimRight("> "+escapeMarkdown(line)+end, " ") + "\n")
	}
	m.raw(out.String() + "\n")
}

// fence writes a block of code, between more backticks than the block has in a row.
func (m *markdown) fence(language, block string) {
	if block == "" {
		return
	}
	block = shownLines(block)
	ticks := strings.Repeat("`", max(3, longest(block)+1))
	m.raw(ticks + language + "\n" + strings.TrimRight(block, "\n") + "\n" + ticks + "\n\n")
}

// notices writes what a reader has to know first.
func (m *markdown) notices(all []notice) {
	for _, n := range all {
		m.raw("> **" + escapeMarkdown(n.Title) + "**\n")
		for _, p := range n.Text {
			m.raw(">\n> " + string(proseOf(p)) + "\n")
		}
		m.raw("\n")
	}
}

// markdownOf is an argument as Markdown in one line.
func markdownOf(arg any) safe {
	switch a := arg.(type) {
	case inCode:
		return codeSpan(string(a))
	case name:
		return codeSpan(string(a))
	case text:
		return safe(escapeMarkdown(oneLine(string(a))))
	case string:
		return safe(escapeMarkdown(oneLine(a)))
	case link:
		return safe("[" + escapeMarkdown(oneLine(a.text)) + "](" + a.to + ")")
	case prose:
		return proseOf(a)
	default:
		panic("no Markdown for this type") // a programming error, which every test hits
	}
}

func proseOf(p prose) safe {
	var out strings.Builder
	for _, part := range p {
		switch part.Kind {
		case "name", "code":
			out.WriteString(string(codeSpan(part.Text)))
		default:
			out.WriteString(escapeMarkdown(oneLine(part.Text)))
		}
	}
	return safe(out.String())
}

// oneLine is a text in one line: breaks between lines become blanks.
func oneLine(said string) string {
	if !strings.ContainsAny(said, "\n\t") {
		return shown(said)
	}
	return strings.Join(strings.Fields(shownLines(said)), " ")
}

// special are the characters that mean something in Markdown, in HTML or in a table, wherever
// they stand, and the begins of what some readers take for an address. What stays has no tag,
// for readers too that know no escapes.
var special = func() *strings.Replacer {
	pairs := []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", "|", "&#124;", "`", "&#96;", "@", "&#64;", "://", "&#58;//", "www.", "www&#46;"}
	for _, char := range `\*_{}[]~$` {
		pairs = append(pairs, string(char), `\`+string(char))
	}
	return strings.NewReplacer(pairs...)
}()

// begins matches what has a meaning at the beginning of a line: headings, lists, rules.
var begins = regexp.MustCompile(`^(?:[#+=-]|[0-9]+[.)](?: |$))`)

// escapeMarkdown returns a text that Markdown shows unchanged.
func escapeMarkdown(said string) string {
	out := special.Replace(said)
	if sign := strings.TrimSuffix(begins.FindString(out), " "); sign != "" {
		last := len(sign) - 1
		out = sign[:last] + `\` + out[last:]
	}
	return out
}

// codeSpan returns a text as code, on one line. A bar would end a table's cell, and a tag must not even look like a
// tag: such a text is written as HTML's code element.
func codeSpan(said string) safe {
	said = oneLine(said)
	if said == "" {
		return ""
	}
	if strings.ContainsAny(said, "|<>&`") {
		return safe("<code>" + escapeMarkdown(said) + "</code>")
	}
	return safe("`" + said + "`")
}

// longest is how many backticks stand in a row at most.
func longest(block string) int {
	most, now := 0, 0
	for _, r := range block {
		if r != '`' {
			now = 0
			continue
		}
		now++
		most = max(most, now)
	}
	return most
}
