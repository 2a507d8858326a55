package policy

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
)

// Use is how a tool was called.
type Use struct {
	// Calls is how many calls were sent, and Callers by how many principals.
	Calls, Callers int
	// Busiest is how many of them one session made in a minute at the most, or had made by
	// agents of its own.
	Busiest int
	// Last is when the last one was sent.
	Last time.Time
}

// Suggest writes a policy document for a server by what its tools are held to be: every tool by
// its name, with the words of its definition that it was judged by, and everything else denied.
// People are asked about a tool of which it is not sure what it does, whose risk is critical, or that writes and whose
// risk is high.
// It is a draft, for a person to read.
//
// With used, by the tools' names, those alone are named that were called, each with a limit that
// lets its use pass; the others stand there as comments. Where used is nil it does not matter.
//
// The error says where a server of that name can't have a document.
func Suggest(server string, tools []ClassifiedTool, used map[string]Use) ([]byte, error) {
	text := suggestion(server, tools, used)
	for _, f := range Lint([]*policyv1.Document{{Path: "the document", Text: string(text)}}) {
		if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
			return nil, fmt.Errorf("server %q: %s", server, f.GetMessage())
		}
	}
	return text, nil
}

// suggestion is the document; used is nil where it does not matter.
func suggestion(server string, tools []ClassifiedTool, used map[string]Use) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `# A first policy for the server %s, by what the definitions of its tools say.
# They are the server's word: read each line before you use it. Tools that are not named
# here are denied, new ones too.
version: 1
name: %s
server: %s
default: deny
`, viewtext.Line(server), advice.Quoted(server), advice.Quoted(server))
	begin := "tools:\n"
	var idle []string
	for _, t := range tools {
		if !advice.NamesTool(t.Name) {
			fmt.Fprintf(&out, "# left out, and denied: %s is no tool's name\n", strconv.QuoteToASCII(t.Name))
			continue
		}
		use := used[t.Name]
		entry := fmt.Sprintf("%s: %s\n", advice.Quoted(t.Name), advice.RuleFor(t.Classification, use.Busiest))
		if used != nil && use.Calls == 0 {
			idle = append(idle, entry)
			continue
		}
		fmt.Fprintf(&out, "%s  # %s, %s%s\n", begin, enum.Name(t.GetCategory()), enum.Name(t.GetRisk()), because(t))
		begin = ""
		if used != nil {
			fmt.Fprintf(&out, "  # calls: %d, callers: %d, at most %d in a minute, the last on %s\n", use.Calls, use.Callers, use.Busiest, use.Last.UTC().Format(time.DateOnly))
		}
		out.WriteString("  " + entry)
	}
	if len(idle) > 0 {
		out.WriteString("\n# The journal has no call of these, so they are left out, and denied:\n")
	}
	for _, entry := range idle {
		out.WriteString("#   " + entry)
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
