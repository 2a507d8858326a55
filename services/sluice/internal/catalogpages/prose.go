package catalogpages

import "strings"

// prose is a paragraph. It distinguishes untrusted words from the program's own, so that each format can show them
// differently.
type prose []piece

// piece is a part of a paragraph.
type piece struct {
	Text string
	// Kind is what the text is: "words" of the program, "code" to type, an untrusted "name", or an untrusted "quote".
	Kind string
}

// Kinds of arguments of say, in addition to the program's own words.
type (
	code  string
	name  string
	quote string
)

// say returns a paragraph of own texts (string), code, names and quotes.
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
			panic("a paragraph is made of something else") // a programming error, which every test hits
		}
	}
	return out
}

// paragraphs returns the paragraphs of an untrusted text, which empty lines separate.
func paragraphs(text string) []prose {
	var out []prose
	for p := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, say(quote(p)))
		}
	}
	return out
}
