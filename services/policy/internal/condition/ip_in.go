package condition

import (
	"regexp"
	"strings"
)

// ipInEncoded replaces ipInWritten in the text that CEL parses, because CEL's grammar does not allow function names
// that end with the keyword `in`. Both constants have the same length, so that positions in messages stay correct.
const (
	ipInWritten = "ip.in"
	ipInEncoded = "ip.In"
)

// ipInOrText matches `ip.in(`. It also matches whole comments and strings, including raw and triple-quoted strings, so
// that `ip.in(` inside them is skipped and not replaced.
var ipInOrText = regexp.MustCompile(`//[^\n]*` +
	`|[rR](?:"""(?s:.*?)"""|'''(?s:.*?)'''|"[^"\n]*"|'[^'\n]*')` +
	`|"""(?s:(?:\\.|[^\\])*?)"""|'''(?s:(?:\\.|[^\\])*?)'''` +
	`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'` +
	`|\bip\s*\.\s*in\s*\(`)

// encodeIPIn returns the text of an expression with ipInEncoded in place of ipInWritten.
func encodeIPIn(text string) string {
	return ipInOrText.ReplaceAllStringFunc(text, func(found string) string {
		if !strings.HasPrefix(found, "ip") {
			return found
		}
		return strings.Replace(found, "in", "In", 1)
	})
}

// decodeIPIn returns a message with ipInWritten in place of ipInEncoded.
func decodeIPIn(message string) string { return strings.ReplaceAll(message, ipInEncoded, ipInWritten) }
