package condition

import (
	"regexp"
	"strings"
)

// CEL's grammar has no name of a function that ends in its word `in`. So `ip.in(` is
// read as the one below, which has as many characters: places in messages stay right.
const (
	ipInWritten = "ip.in"
	ipInRead    = "ip.In"
)

// ipInOrText finds `ip.in(`, and what it may not be looked for in: comments and texts,
// raw ones and those in three quotes too.
var ipInOrText = regexp.MustCompile(`//[^\n]*` +
	`|[rR](?:"""(?s:.*?)"""|'''(?s:.*?)'''|"[^"\n]*"|'[^'\n]*')` +
	`|"""(?s:(?:\\.|[^\\])*?)"""|'''(?s:(?:\\.|[^\\])*?)'''` +
	`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'` +
	`|\bip\s*\.\s*in\s*\(`)

// readable is the text of an expression as CEL can read it.
func readable(text string) string {
	return ipInOrText.ReplaceAllStringFunc(text, func(found string) string {
		if !strings.HasPrefix(found, "ip") {
			return found
		}
		return strings.Replace(found, "in", "In", 1)
	})
}

// asWritten names in a message what stands in the text.
func asWritten(message string) string { return strings.ReplaceAll(message, ipInRead, ipInWritten) }
