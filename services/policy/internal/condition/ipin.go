package condition

import (
	"regexp"
	"strings"
)

// CEL's grammar has no function name that ends in the word `in`. So `ip.in(` is replaced by the name below, which has
// the same length, so that locations in messages stay right.
const (
	ipInWritten = "ip.in"
	ipInRead    = "ip.In"
)

// ipInOrText matches `ip.in(`, and the places where it must not be replaced: comments and strings, including raw and
// triple-quoted strings.
var ipInOrText = regexp.MustCompile(`//[^\n]*` +
	`|[rR](?:"""(?s:.*?)"""|'''(?s:.*?)'''|"[^"\n]*"|'[^'\n]*')` +
	`|"""(?s:(?:\\.|[^\\])*?)"""|'''(?s:(?:\\.|[^\\])*?)'''` +
	`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'` +
	`|\bip\s*\.\s*in\s*\(`)

// readable returns the text of an expression in a form that CEL can parse.
func readable(text string) string {
	return ipInOrText.ReplaceAllStringFunc(text, func(found string) string {
		if !strings.HasPrefix(found, "ip") {
			return found
		}
		return strings.Replace(found, "in", "In", 1)
	})
}

// asWritten replaces the internal function name in a message by the written one.
func asWritten(message string) string { return strings.ReplaceAll(message, ipInRead, ipInWritten) }
