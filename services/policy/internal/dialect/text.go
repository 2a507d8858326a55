package dialect

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// text returns the translated policy as a YAML document.
func (t *translator) text(src *Source) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `# Imported from %s (%s). Read each rule before you use it. Prompts, resources and
# methods other than tools/call are denied unless a rule of another document allows them.
version: 1
server: %s
default: %s
`, safetext.Line(src.File), src.Format, quoted(src.Server), map[bool]string{true: "allow", false: "deny"}[t.policy.allows])
	for i, e := range t.entries {
		if i == 0 {
			out.WriteString("tools:\n")
		}
		fmt.Fprintf(&out, "  %s: {action: %s}\n", quoted(e.tool), e.action)
	}
	for i := range t.rules {
		if i == 0 {
			out.WriteString("rules:\n")
		}
		t.rules[i].write(&out)
	}
	return out.Bytes()
}

func (r *outRule) write(out *bytes.Buffer) {
	if r.note != "" {
		fmt.Fprintf(out, "  # %s\n", safetext.Line(r.note))
	}
	fmt.Fprintf(out, "  - name: %s\n    match: {tool: %s}\n", quoted(r.name), quoted(r.tool))
	if r.when != "" {
		fmt.Fprintf(out, "    when: %s\n", singleQuoted(r.when))
	}
	switch {
	case r.hides:
		out.WriteString("    action: hide\n")
	case len(r.limits) == 1:
		fmt.Fprintf(out, "    rate_limit: %s\n", r.limits[0])
	case len(r.limits) > 1:
		fmt.Fprintf(out, "    rate_limit: [%s]\n", strings.Join(r.limits, ", "))
	default:
		fmt.Fprintf(out, "    action: deny\n    reason: %s\n", quoted(r.reason))
	}
}

// plain matches strings that need no quotes in YAML, unless words also matches them.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*(?:[ .][A-Za-z0-9_-]+)*$`)

// words matches strings that some YAML parsers do not read as strings unless they are quoted.
var words = regexp.MustCompile(`(?i)^(?:y|n|yes|no|on|off|true|false|null|nan|inf)$`)

// quoted returns a YAML scalar for a string.
func quoted(text string) string {
	if plain.MatchString(text) && !words.MatchString(text) {
		return text
	}
	return strconv.QuoteToASCII(text)
}

// singleQuoted is like quoted, but uses single quotes if possible, because conditions contain double quotes and
// backslashes.
func singleQuoted(text string) string {
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '\'' }) {
		return strconv.QuoteToASCII(text)
	}
	return "'" + text + "'"
}
