package policy

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
	"github.com/sluice-mesh/sluice/services/policy/internal/propose"
)

// minProposedLimit is the smallest limit, in calls per minute, that a proposed rule sets for a tool.
const minProposedLimit = 10

// ObservedCall is a tool call that was observed when the gateway sent it to a server.
type ObservedCall struct {
	// ID is the id of the decision on the call. Time is the time when the call was sent.
	ID   string
	Time time.Time
	// Arguments is the JSON of the arguments. It is empty if the call had no arguments.
	Arguments string
	// NotRecorded is true if the arguments are unknown.
	NotRecorded bool
	// Redacted is true if some values in Arguments were redacted.
	Redacted bool
	// Definition is the digest of the tool's definition in the caller's session.
	Definition []byte
}

// ObservedTool is a tool in the catalog and the observed calls to it.
type ObservedTool struct {
	ClassifiedTool

	// Definition is the tool's newest definition as JSON. Digest is its digest.
	Definition string
	Digest     []byte
	// NotAccepted says why calls with this definition are refused. It is empty if the definition was accepted.
	NotAccepted string
	// Unlisted is true if the server does not currently list the tool.
	Unlisted bool
	// Calls contains the calls, newest first. Use contains statistics about them.
	Calls []ObservedCall
	Use   Use
}

// Proposal is a policy document that was derived from observed calls.
type Proposal struct {
	// Document is the text of the document.
	Document []byte
	// Allowed is the number of observed calls that the document allows. Refused is the number of observed calls that it
	// does not allow. Most of these need an approval.
	Allowed, Refused int
}

// Propose derives a policy document for a server from the observed calls to its tools. The document has rules for the
// tools that were called, if the server still lists them and a document can name them. For tools that are safe enough,
// a rule allows the observed calls and limits the arguments. For the other tools, a rule requires approval. All other
// calls are denied.
//
// A tool needs approval if [Suggest] requires approval for it, or if its definition was not accepted. It also needs
// approval if no limit can be derived for an argument, unless the tool only reads and has a low risk. The parameter
// home is the path of a home folder, or empty. The limit for a path argument is never a folder that contains this home
// folder.
//
// Propose checks that the document allows all observed calls to the tools that it allows, and returns an error
// otherwise. It also returns an error if a document can't name the server.
func Propose(server string, tools []ObservedTool, home string) (*Proposal, error) {
	rules := make([]proposedRule, len(tools))
	for i := range tools {
		rules[i] = proposeRule(&tools[i], home)
	}
	text := proposalText(server, tools, rules)
	documents := []*policyv1.Document{{Path: "the document", Text: string(text)}}
	cfg := baseConfig(new(config.Default()))
	compiled, _, err := cfg.compile(context.Background(), documents, nil)
	if found := findings(err); len(found) > 0 {
		sortFindings(found)
		return nil, fmt.Errorf("server %q: %s", server, found[0].GetMessage())
	}
	out := &Proposal{Document: text}
	for i := range tools {
		if !rules[i].allows {
			out.Refused += len(tools[i].Calls)
			continue
		}
		out.Allowed += len(tools[i].Calls)
		if err := replayProposed(compiled, server, &tools[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// replayProposed returns an error if the set does not allow all observed calls to a tool.
func replayProposed(set *engine.Set, server string, t *ObservedTool) error {
	check := compileSchema(t.Definition).check
	facts := engine.Facts{Status: engine.Callable, Arguments: propose.Properties(catalog.SchemaOf(t.Definition))}
	decided := make(map[propose.Call]bool)
	for _, observed := range t.Calls {
		c := observed.forBounds()
		if decided[c] {
			continue
		}
		decided[c] = true
		call := engine.Call{Server: server, Tool: t.Name, Params: c.Params(), Facts: facts, CheckArguments: check, Now: observed.Time}
		call.Subject.Caller = engine.Principal{Tenant: "default", Name: "observed"}
		if d := set.Decide(call); d.Effect != engine.Allow {
			return fmt.Errorf("the proposed rule for %s refuses the call %s (%s): nothing is proposed; report this fault", safetext.Quote(t.Name), observed.ID, d.Code)
		}
	}
	return nil
}

func (c *ObservedCall) forBounds() propose.Call {
	return propose.Call{Arguments: c.Arguments, NotRecorded: c.NotRecorded, Redacted: c.Redacted}
}

// proposedRule is the proposed rule for a tool.
type proposedRule struct {
	allows bool
	// why is the reason why the tool needs approval. It is empty if the tool needs none.
	why string
	// strict is true if the arguments must satisfy the tool's input schema.
	strict bool
	bounds []propose.Bound
	// notes contains comments about the rule, except for comments about its bounds.
	notes []string
}

// proposeRule returns the proposed rule for a tool.
func proposeRule(t *ObservedTool, home string) proposedRule {
	switch {
	case !advice.NamesTool(t.Name):
		return proposedRule{why: "it is not a tool's name"}
	case len(t.Calls) == 0:
		return proposedRule{why: "it was not called"}
	case t.Unlisted:
		return proposedRule{why: fmt.Sprintf("the server does not list it now (calls: %d)", len(t.Calls))}
	case t.NotAccepted != "":
		return proposedRule{why: t.NotAccepted}
	case advice.NeedsApproval(t.Classification):
		return proposedRule{why: "its class needs approval, whatever was observed"}
	}
	calls := make([]propose.Call, len(t.Calls))
	for i := range t.Calls {
		calls[i] = t.Calls[i].forBounds()
	}
	schema := catalog.SchemaOf(t.Definition)
	r := proposedRule{allows: true, bounds: propose.Bounds(calls, schema, home)}
	note := ""
	if r.strict, note = strictFor(t, calls); note != "" {
		r.notes = append(r.notes, note)
	}
	if !propose.Bounded(r.bounds) && !readsWithLowRisk(t.Classification) {
		r.allows, r.why = false, "an argument has no bound, and the tool does more than read with a low risk"
	}
	return r
}

func readsWithLowRisk(c *policyv1.Classification) bool {
	return c.GetCategory() == mcpv1.Category_CATEGORY_READ && c.GetRisk() == policyv1.Risk_RISK_LOW
}

// strictFor reports whether the rule for a tool can contain `forward: strict` and still allow all observed calls. If
// not, it also returns the reason.
func strictFor(t *ObservedTool, calls []propose.Call) (strict bool, note string) {
	const not = "forward: strict is left out: "
	if slices.ContainsFunc(t.Calls, func(c ObservedCall) bool { return !bytes.Equal(c.Definition, t.Digest) }) {
		return false, not + "some calls were made with another definition of the tool"
	}
	schema, err := inputschema.Compile(t.Definition)
	if err != nil {
		return false, not + err.Error()
	}
	for _, c := range propose.Distinct(calls) {
		if c.NotRecorded || c.Redacted {
			return false, not + "the arguments of some calls are not known"
		}
		if err := schema.Check(c.Params()); err != nil {
			return false, not + "an observed call does not satisfy the input schema: " + err.Error()
		}
	}
	return true, ""
}

// proposalText returns the text of the proposed document.
func proposalText(server string, tools []ObservedTool, rules []proposedRule) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `# A policy for the server %s, from its observed calls. It is a draft: an observed
# call may have been a mistake, so read each rule. Tools that are not named here are denied.
version: 1
name: %s
server: %s
default: deny
`, safetext.Line(server), advice.Quoted(server), advice.Quoted(server))
	begin := "tools:\n"
	var left []string
	for i := range tools {
		t := &tools[i]
		switch {
		case !advice.NamesTool(t.Name):
			left = append(left, strconv.QuoteToASCII(t.Name)+": "+rules[i].why)
		case len(t.Calls) == 0 || t.Unlisted:
			left = append(left, t.Name+": "+rules[i].why)
		default:
			out.WriteString(begin)
			begin = ""
			rules[i].write(&out, t)
		}
	}
	if len(left) > 0 {
		out.WriteString("\n# Left out, and denied:\n")
	}
	for _, line := range left {
		out.WriteString("#   " + safetext.Line(line) + "\n")
	}
	return out.Bytes()
}

// write writes the entry for a tool, with comments about the calls from which the entry was derived.
func (r *proposedRule) write(out *bytes.Buffer, t *ObservedTool) {
	comment := func(format string, args ...any) {
		fmt.Fprintf(out, "  # %s\n", safetext.Line(fmt.Sprintf(format, args...)))
	}
	newest, oldest := &t.Calls[0], &t.Calls[len(t.Calls)-1]
	comment("%s, %s%s", enum.Name(t.GetCategory()), enum.Name(t.GetRisk()), evidenceNote(t.ClassifiedTool))
	comment("calls: %d, callers: %d, at most %d in a minute", len(t.Calls), t.Use.Callers, t.Use.Busiest)
	comment("first %s (%s), last %s (%s)", oldest.Time.UTC().Format(time.RFC3339), oldest.ID, newest.Time.UTC().Format(time.RFC3339), newest.ID)
	for _, b := range r.bounds {
		comment("%s", b.Note)
	}
	for _, note := range r.notes {
		comment("%s", note)
	}
	if !r.allows {
		comment("not allowed: %s", r.why)
		fmt.Fprintf(out, "  %s: {action: require_approval, reason: %s}\n", advice.Quoted(t.Name), yamlText(approvalReason(t.Classification, r.why)))
		return
	}
	fmt.Fprintf(out, "  %s:\n    action: allow\n", advice.Quoted(t.Name))
	if when := propose.Join(r.bounds); when != "" {
		fmt.Fprintf(out, "    when: %s\n", yamlText(when))
		out.WriteString("    otherwise: {action: deny, reason: the arguments differ from those that were observed}\n")
	}
	if r.strict {
		out.WriteString("    forward: strict\n")
	}
	fmt.Fprintf(out, "    rate_limit: {max: %d, window: 60}\n", max(minProposedLimit, 2*t.Use.Busiest))
}

// approvalReason returns the reason for the approval, which the model and people see.
func approvalReason(c *policyv1.Classification, why string) string {
	return cmp.Or(advice.ApprovalReason(c), why)
}

// yamlText returns a single-line YAML scalar for a text of printable ASCII characters.
func yamlText(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
