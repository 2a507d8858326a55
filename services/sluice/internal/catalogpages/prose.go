package catalogpages

import "strings"

// prose is a paragraph. Its pieces distinguish untrusted strings from the program's own strings, so that each format
// can show them differently.
type prose []piece

type piece struct {
	Text string
	// Kind is "words" for the program's own words, "code" for code that a reader can copy, and "name" or "quote" for
	// untrusted strings.
	Kind string
}

// These are the types of the arguments of the function say. Arguments of type string contain the program's own words.
type (
	code  string
	name  string
	quote string
)

// say returns a paragraph that consists of its arguments, which are of type string, code, name, quote or prose.
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
			panic("say: the argument has another type") // a programming error, which the tests would find
		}
	}
	return out
}

// paragraphs splits an untrusted string into paragraphs at empty lines.
func paragraphs(text string) []prose {
	var out []prose
	for p := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, say(quote(p)))
		}
	}
	return out
}
