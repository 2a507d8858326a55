package policy

import (
	"bytes"
	"fmt"
	"strconv"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
)

// Suggest writes a policy document for a server by what its tools are held to be: every tool by
// its name, with the words of its definition that it was judged by, and everything else denied.
// People are asked about a tool of which it is not sure what it does, or whose risk is critical.
// It is a draft, for a person to read.
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
`, viewtext.Line(server), advice.Quoted(server), advice.Quoted(server))
	begin := "tools:\n"
	for _, t := range tools {
		if !advice.NamesTool(t.Name) {
			fmt.Fprintf(&out, "# left out, and denied: %s is no tool's name\n", strconv.QuoteToASCII(t.Name))
			continue
		}
		out.WriteString(begin)
		begin = ""
		fmt.Fprintf(&out, "  # %s, %s%s\n  %s: %s\n", enum.Name(t.GetCategory()), enum.Name(t.GetRisk()), because(t), advice.Quoted(t.Name), advice.Rule(t.Classification))
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
