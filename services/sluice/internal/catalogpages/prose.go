package catalogpages

import "strings"

// prose is a paragraph. Words of strangers in it are told from ours, so that each format can
// show them as what they are.
type prose []piece

// piece is a part of a paragraph.
type piece struct {
	Text string
	// Kind is what the text is: "words" are ours, "code" is something to type, "name" is a
	// stranger's name, and "quote" what a stranger says.
	Kind string
}

// Kinds of what a paragraph is made of, beside our own words.
type (
	code  string
	name  string
	quote string
)

// say makes a paragraph of texts of ours (string), code, names and quotes.
func say(parts ...any) prose {
	out := make(prose, 0, len(parts))
	for _, part := range parts {
		switch p := part.(type) {
		case string:
			out = append(out, piece{p, "words"})
		case code:
			out = append(out, piece{string(p), "code"})
		case name:
			out = append(out, piece{string(p), "name"})
		case quote:
			out = append(out, piece{string(p), "quote"})
		case prose:
			out = append(out, p...)
		default:
			panic("a paragraph is made of something else") // a mistake here, which every test hits
		}
	}
	return out
}

// paragraphs are those of a text of strangers, parted by empty lines.
func paragraphs(text string) []prose {
	var out []prose
	for p := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, say(quote(p)))
		}
	}
	return out
}
