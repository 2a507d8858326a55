package condition

import (
	"regexp"
	"strings"
)

// ipInEncoded replaces ipInWritten before CEL parses the text, because CEL does not allow function names that end with
// the keyword `in`. Both have the same length, so positions in messages remain correct.
const (
	ipInWritten = "ip.in"
	ipInEncoded = "ip.In"
)

// ipInOrText matches `ip.in(`. It also matches whole comments and strings, including raw and triple-quoted strings, so
// that `ip.in(` inside them is skipped.
var ipInOrText = regexp.MustCompile(`//[^\n]*` +
	`|[rR](?:"""(?s:.*?)"""|'''(?s:.*?)'''|"[^"\n]*"|'[^'\n]*')` +
	`|"""(?s:(?:\\.|[^\\])*?)"""|'''(?s:(?:\\.|[^\\])*?)'''` +
	`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'` +
	`|\bip\s*\.\s*in\s*\(`)

// encodeIPIn replaces ipInWritten with ipInEncoded in an expression.
func encodeIPIn(text string) string {
	return ipInOrText.ReplaceAllStringFunc(text, func(found string) string {
		if !strings.HasPrefix(found, "ip") {
			return found
		}
		return strings.Replace(found, "in", "In", 1)
	})
}

// decodeIPIn replaces ipInEncoded with ipInWritten in a message.
func decodeIPIn(message string) string { return strings.ReplaceAll(message, ipInEncoded, ipInWritten) }
