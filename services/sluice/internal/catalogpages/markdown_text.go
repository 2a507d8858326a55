package catalogpages

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// markdown writes Markdown. The format strings of its methods contain Markdown. Their arguments are escaped.
type markdown struct {
	to  io.Writer
	err error // the first error
}

// rawMarkdown is a string that is already Markdown, and is not escaped.
type rawMarkdown string

// These are types of arguments that are written in different ways.
type (
	// text is a string that the page shows unchanged.
	text string
	// inCode is a string that the page shows unchanged, as code.
	inCode string
	// link is a string with a link to another page.
	link struct{ text, to string }
)

func number[N int | int32](n N) text { return text(strconv.Itoa(int(n))) }

// line writes a block, such as a paragraph or a heading.
func (m *markdown) line(format string, args ...any) {
	for i, arg := range args {
		args[i] = markdownOf(arg)
	}
	m.raw(fmt.Sprintf(format, args...) + "\n\n")
}

// raw writes Markdown without escaping it.
func (m *markdown) raw(made string) {
	if m.err == nil {
		_, m.err = io.WriteString(m.to, made)
	}
}

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

// quote writes an untrusted string as a quotation, line by line.
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

// fence writes a block of code. The fence has more backticks than the longest run of backticks in the block.
func (m *markdown) fence(language, block string) {
	if block == "" {
		return
	}
	block = shownLines(block)
	ticks := strings.Repeat("`", max(3, longest(block)+1))
	m.raw(ticks + language + "\n" + strings.TrimRight(block, "\n") + "\n" + ticks + "\n\n")
}

func (m *markdown) notices(all []notice) {
	for _, n := range all {
		m.raw("> **" + escapeMarkdown(n.Title) + "**\n")
		for _, p := range n.Text {
			m.raw(">\n> " + string(proseOf(p)) + "\n")
		}
		m.raw("\n")
	}
}

// markdownOf converts an argument to Markdown on one line.
func markdownOf(arg any) rawMarkdown {
	switch a := arg.(type) {
	case inCode:
		return codeSpan(string(a))
	case name:
		return codeSpan(string(a))
	case text:
		return rawMarkdown(escapeMarkdown(oneLine(string(a))))
	case string:
		return rawMarkdown(escapeMarkdown(oneLine(a)))
	case link:
		return rawMarkdown("[" + escapeMarkdown(oneLine(a.text)) + "](" + a.to + ")")
	case prose:
		return proseOf(a)
	default:
		panic("markdownOf: the argument has another type") // a programming error, which the tests would find
	}
}

func proseOf(p prose) rawMarkdown {
	var out strings.Builder
	for _, part := range p {
		switch part.Kind {
		case "name", "code":
			out.WriteString(string(codeSpan(part.Text)))
		default:
			out.WriteString(escapeMarkdown(oneLine(part.Text)))
		}
	}
	return rawMarkdown(out.String())
}

// oneLine returns a string on one line. It replaces white space that contains a line break with a space.
func oneLine(said string) string {
	if !strings.ContainsAny(said, "\n\t") {
		return shown(said)
	}
	return strings.Join(strings.Fields(shownLines(said)), " ")
}

// special replaces characters with a special meaning in Markdown, HTML or tables. It also replaces the beginnings of
// strings that some Markdown renderers turn into links. Its output contains no HTML tags, so it is safe even if a
// renderer ignores backslash escapes.
var special = func() *strings.Replacer {
	pairs := []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", "|", "&#124;", "`", "&#96;", "@", "&#64;", "://", "&#58;//", "www.", "www&#46;"}
	for _, char := range `\*_{}[]~$` {
		pairs = append(pairs, string(char), `\`+string(char))
	}
	return strings.NewReplacer(pairs...)
}()

// begins matches strings with a meaning at the beginning of a line, such as the marks of headings and lists.
var begins = regexp.MustCompile(`^(?:[#+=-]|[0-9]+[.)](?: |$))`)

// escapeMarkdown escapes a string so that Markdown shows it unchanged.
func escapeMarkdown(said string) string {
	out := special.Replace(said)
	if sign := strings.TrimSuffix(begins.FindString(out), " "); sign != "" {
		last := len(sign) - 1
		out = sign[:last] + `\` + out[last:]
	}
	return out
}

// codeSpan returns a string as code, on one line. If some characters must be escaped, codeSpan returns an HTML code
// element, because code spans in Markdown have no escapes.
func codeSpan(said string) rawMarkdown {
	said = oneLine(said)
	if said == "" {
		return ""
	}
	if strings.ContainsAny(said, "|<>&`") {
		return rawMarkdown("<code>" + escapeMarkdown(said) + "</code>")
	}
	return rawMarkdown("`" + said + "`")
}

func longest(block string) int {
	length, run := 0, 0
	for _, r := range block {
		if r != '`' {
			run = 0
			continue
		}
		run++
		length = max(length, run)
	}
	return length
}
