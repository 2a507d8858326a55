package policy

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// advised is the rule that is recommended for a category, as YAML.
var advised = map[mcpv1.Category]string{
	mcpv1.Category_CATEGORY_READ:        "{action: allow}",
	mcpv1.Category_CATEGORY_WRITE:       "{action: allow, rate_limit: {max: 30, window: 60}}",
	mcpv1.Category_CATEGORY_EXECUTE:     "{action: allow, rate_limit: {max: 10, window: 60}}",
	mcpv1.Category_CATEGORY_DESTRUCTIVE: "{action: require_approval, reason: it removes or overwrites for good}",
	mcpv1.Category_CATEGORY_FINANCIAL:   "{action: require_approval, reason: it moves money}",
}

// surely is the confidence from which the recommended rule holds.
const surely = 0.5

// toolName is what a name under `tools` may be.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

// Suggest writes a policy document for a server by what its tools are held to be: every tool by
// its name, with the words of its definition that it was judged by, and everything else denied.
// A tool of which it is not sure what it does, or whose risk is critical, is asked about. It is a draft, for a person to read.
// The error says where a server of that name can't have a document.
func Suggest(server string, tools []ClassifiedTool) ([]byte, error) {
	text := suggestion(server, tools)
	for _, f := range Lint([]*policyv1.Document{{Path: "the document", Text: string(text)}}) {
		if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
			return nil, fmt.Errorf("server %q: %s", server, f.GetMessage())
		}
	}
	return text, nil
}

func suggestion(server string, tools []ClassifiedTool) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `# A first policy for the server %s, by what the definitions of its tools say.
# They are the server's word: read each line before you use it. Tools that are not named
# here are denied, new ones too.
version: 1
name: %s
server: %s
default: deny
`, viewtext.Line(server), quoted(server), quoted(server))
	begin := "tools:\n"
	for _, t := range tools {
		if !toolName.MatchString(t.Name) {
			fmt.Fprintf(&out, "# left out, and denied: %s is no tool's name\n", strconv.QuoteToASCII(t.Name))
			continue
		}
		out.WriteString(begin)
		begin = ""
		rule, sure := advised[t.GetCategory()], ""
		if t.GetRisk() == policyv1.Risk_RISK_CRITICAL && t.GetCategory() < mcpv1.Category_CATEGORY_DESTRUCTIVE {
			rule = "{action: require_approval, reason: a wrong call of it can be as bad as any}"
		}
		if t.GetConfidence() < surely {
			sure, rule = ", not sure", "{action: require_approval, reason: its definition leaves open what it does}"
		}
		fmt.Fprintf(&out, "  # %s, %s%s%s\n  %s: %s\n", enum.Name(t.GetCategory()), enum.Name(t.GetRisk()), sure, because(t), quoted(t.Name), rule)
	}
	return out.Bytes()
}

// because are the words that weigh most for what a tool is held to be, to stand in a comment.
func because(t ClassifiedTool) string {
	for _, e := range t.GetEvidence() {
		if e.GetCategory() == t.GetCategory() {
			return viewtext.Line(": " + e.GetMeaning() + ": " + strconv.Quote(e.GetQuote()))
		}
	}
	return ""
}

// quoted is a text as a scalar of YAML: as it is where every reader takes that for a text.
func quoted(text string) string {
	if plain.MatchString(text) && !reserved[strings.ToLower(text)] {
		return text
	}
	return strconv.QuoteToASCII(text)
}

var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// reserved are words that some readers of YAML take for something else than a text.
var reserved = map[string]bool{"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true, "true": true, "false": true, "null": true, "nan": true, "inf": true}
