package catalogpages

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// ruleName is what a name under `tools` of a policy may be.
var ruleName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

// entry is a policy document with one rule for a tool, in YAML; empty where a document can't name it.
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

// limited is a document that allows a tool 10 calls a minute.
func limited(server, tool string) string {
	return entry(server, tool, "action: allow", "rate_limit: {max: 10, window: 60}")
}

// denied is a document that denies a tool.
func denied(server, tool string) string {
	return entry(server, tool, "action: deny", "reason: ask a person to do this")
}

// plain is a text that every reader of YAML takes for itself, unless it is a word below.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// notTexts are words that some readers of YAML take for something else than a text.
var notTexts = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|nan|inf)$`)

// scalar is a text as a scalar of YAML. Go's escapes are all ones of YAML, too.
func scalar(text string) string {
	if plain.MatchString(text) && !notTexts.MatchString(text) {
		return text
	}
	return strconv.QuoteToASCII(text)
}

// gatewayPath is where a gateway has a server.
func gatewayPath(server string) string { return "/mcp/" + url.PathEscape(server) }
