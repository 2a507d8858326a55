package catalogpages

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// ruleName matches the names that are valid below `tools` in a policy document.
var ruleName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

// entry returns a policy document in YAML with one rule for a tool. The rule consists of the given lines. entry returns
// "" if a document can't name the tool.
func entry(server, tool string, lines ...string) string {
	if !ruleName.MatchString(tool) {
		return ""
	}
	var out strings.Builder
	out.WriteString("version: 1\nserver: " + scalar(server) + "\ntools:\n  " + scalar(tool) + ":\n")
	for _, line := range lines {
		out.WriteString("    " + line + "\n")
	}
	return out.String()
}

func limited(server, tool string) string {
	return entry(server, tool, "action: allow", "rate_limit: {max: 10, window: 60}")
}

func denied(server, tool string) string {
	return entry(server, tool, "action: deny", "reason: ask a person to do this")
}

// plain matches strings that every YAML parser parses as a string, except the words in notTexts.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// notTexts matches words that some YAML parsers parse as another type.
var notTexts = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|nan|inf)$`)

// scalar returns a string as a YAML scalar. Go's escapes are valid in YAML.
func scalar(text string) string {
	if plain.MatchString(text) && !notTexts.MatchString(text) {
		return text
	}
	return strconv.QuoteToASCII(text)
}

func gatewayPath(server string) string { return "/mcp/" + url.PathEscape(server) }
