package policy

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
)

// Use contains statistics about the calls to a tool.
type Use struct {
	// Calls is the number of calls that were sent. Callers is the number of principals that sent them.
	Calls, Callers int
	// Busiest is the greatest number of calls in one session in one minute. Calls by the session's agents are included.
	Busiest int
	// Last is when the last call was sent.
	Last time.Time
}

// Suggest returns a draft of a policy document for a server, which a person must read. It derives the document from the
// classifications of the server's tools.
//
// Every tool has an entry, with a comment that quotes the most important words in the tool's definition. The entry
// requires approval if [advice.Rule] requires it, for example because the risk is critical. Calls to tools without an
// entry are denied.
//
// used contains statistics about the calls to each tool, by name. It is nil if they are unknown. If they are known, the
// limits in the entries allow as many calls as were made, and the entries of tools that were not called are commented
// out.
//
// Suggest returns an error if a document can't name the server.
func Suggest(server string, tools []ClassifiedTool, used map[string]Use) ([]byte, error) {
	text := suggestion(server, tools, used)
	for _, f := range Lint([]*policyv1.Document{{Path: "the document", Text: string(text)}}) {
		if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
			return nil, fmt.Errorf("server %q: %s", server, f.GetMessage())
		}
	}
	return text, nil
}

func suggestion(server string, tools []ClassifiedTool, used map[string]Use) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `# A first policy for the server %s, based on the definitions of its tools.
# The server wrote the definitions: read each line before you use it. Tools that are not
# named here are denied, including new ones.
version: 1
name: %s
server: %s
default: deny
`, safetext.Line(server), advice.Quoted(server), advice.Quoted(server))
	begin := "tools:\n"
	var unused []string
	for _, t := range tools {
		if !advice.NamesTool(t.Name) {
			fmt.Fprintf(&out, "# left out, and denied: %s is not a tool's name\n", strconv.QuoteToASCII(t.Name))
			continue
		}
		use := used[t.Name]
		entry := fmt.Sprintf("%s: %s\n", advice.Quoted(t.Name), advice.RuleFor(t.Classification, use.Busiest))
		if used != nil && use.Calls == 0 {
			unused = append(unused, entry)
			continue
		}
		fmt.Fprintf(&out, "%s  # %s, %s%s\n", begin, enum.Name(t.GetCategory()), enum.Name(t.GetRisk()), evidenceNote(t))
		begin = ""
		if used != nil {
			fmt.Fprintf(&out, "  # calls: %d, callers: %d, at most %d in a minute, the last on %s\n", use.Calls, use.Callers, use.Busiest, use.Last.UTC().Format(time.DateOnly))
		}
		out.WriteString("  " + entry)
	}
	if len(unused) > 0 {
		out.WriteString("\n# These were not called, so they are left out, and denied:\n")
	}
	for _, entry := range unused {
		out.WriteString("#   " + entry)
	}
	return out.Bytes()
}

// evidenceNote returns the text of a comment that contains the most important evidence for the tool's category.
func evidenceNote(t ClassifiedTool) string {
	for _, e := range t.GetEvidence() {
		if e.GetCategory() == t.GetCategory() {
			return safetext.Line(": " + e.GetMeaning() + ": " + strconv.Quote(e.GetQuote()))
		}
	}
	return ""
}
