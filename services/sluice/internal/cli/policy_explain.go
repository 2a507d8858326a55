package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// maxExplained limits the number of lines of each kind, such as conditions or limits, that are printed without --all.
const maxExplained = 5

// printExplanation prints a decision, the rule that made it, and the conditions with the values that they read.
// hasArguments is true if the person specified the arguments of the call. With --all, printExplanation also prints
// every rule that the policy service considered.
func (t *tool) printExplanation(e *policyv1.ExplainCallResponse, hasArguments, all bool) error {
	if t.json() {
		raw, err := protojson.Marshal(e)
		if err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		return t.printJSON(jsontext.Value(raw))
	}
	t.printDecided(e, hasArguments, all)
	if !all {
		if n := len(e.GetRules()); n > 0 {
			t.printf("rules that were considered: %d; --all prints them with their comparisons", n)
		}
		return nil
	}
	rows := make([][]string, len(e.GetRules()))
	for i, r := range e.GetRules() {
		rows[i] = ruleRow(r)
	}
	fmt.Fprintln(t.out)
	return t.table([]string{"RULE", "ACTION", "MATCHED", "CHECKS"}, rows)
}

func (t *tool) printDecided(e *policyv1.ExplainCallResponse, hasArguments, all bool) {
	d := e.GetDecision()
	t.printf("%s  %s", effectName(d.GetEffect()), enum.NameOrEmpty(d.GetCode()))
	t.printf("%s", e.GetWhy())
	if d.GetMessage() != "" {
		t.printf("reason: %s", d.GetMessage())
	}
	t.printSome("conditions", conditionLines(e), all)
	if terms := d.GetApproval(); terms != nil {
		t.printf("approval: %s", termsText(terms))
		if terms.GetGrant() == nil {
			t.printNoGrant(e.GetRules(), hasArguments)
		}
	}
	if d.GetIdempotent() {
		fmt.Fprintln(t.out, "idempotent: the call may be sent again if its outcome is not known")
	}
	if d.GetTimeout() != nil {
		t.printf("timeout: %s for the server's response, by %s", d.GetTimeout().AsDuration(), ruleName(d.GetTimeoutRule()))
	}
	t.printSome("redactions", redactionLines(d.GetRedactions()), all)
	t.printSome("limits", limitLines("limit", d.GetLimits()), all)
	t.printObserved(d.GetObserved(), all)
}

// redactionLines returns a line for each redaction.
func redactionLines(list []*policyv1.Redaction) (lines []string) {
	for _, r := range list {
		what := "detector " + r.GetDetector()
		if r.GetPath() != "" {
			what = "path " + r.GetPath()
		}
		in := map[policyv1.RedactionTarget]string{
			policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS: "arguments", policyv1.RedactionTarget_REDACTION_TARGET_RESULT: "results",
		}[r.GetTarget()]
		lines = append(lines, fmt.Sprintf("redacts in %s: %s, by %s", cmp.Or(in, "arguments and results"), what, ruleName(r.GetRule())))
	}
	return lines
}

// limitLines returns a line for each limit.
func limitLines(label string, limits []*policyv1.RuleLimit) (lines []string) {
	for _, l := range limits {
		lines = append(lines, fmt.Sprintf("%s: %s in %s per %s, by %s", label, l.GetLimit().GetMax(), l.GetLimit().GetWindow().AsDuration(), strings.Join(l.GetPer(), "+"), ruleName(l.GetRule())))
	}
	return lines
}

// printObserved prints the decision that would be made without observe mode. It prints nothing if o is nil.
func (t *tool) printObserved(o *policyv1.Observation, all bool) {
	if o == nil {
		return
	}
	t.printf("if nothing were observed: %s  %s", effectName(o.GetEffect()), enum.NameOrEmpty(o.GetCode()))
	if o.GetMessage() != "" {
		t.printf("observed reason: %s", o.GetMessage())
	}
	t.printSome("observed limits", limitLines("observed limit", o.GetLimits()), all)
}

// printSome prints the first lines, or all lines with --all.
func (t *tool) printSome(kind string, lines []string, all bool) {
	for i, line := range lines {
		if i == maxExplained && !all {
			t.printf("more %s: %d; --all prints them", kind, len(lines)-i)
			return
		}
		t.printf("%s", line)
	}
}

// conditionLines describes the results of conditions, with the values that the conditions read. It uses the conditions
// of the rules that made the decision. If no rule made it, conditionLines uses the rules whose condition was the
// only check that failed.
func conditionLines(e *policyv1.ExplainCallResponse) (out []string) {
	d := e.GetDecision()
	for _, r := range e.GetRules() {
		named := proto.Equal(r.GetRule(), d.GetRule()) && r.GetChainIndex() == d.GetChainIndex()
		kept := d.GetRule() == nil && !r.GetMatched()
		if !named && !kept && !ruleDecided(r, d) {
			continue
		}
		for _, c := range r.GetChecks() { // a rule has this check only if all other checks held
			if (c.GetName() == "when" || c.GetName() == "otherwise") && c.GetGot() != "" {
				out = append(out, fmt.Sprintf("condition of %s: %s", ruleName(r.GetRule()), c.GetGot()))
			}
		}
	}
	return out
}

// ruleDecided reports whether a rule determined the effect of a decision or added a limit to it. It also returns true
// if the rule would have done so without observe mode.
func ruleDecided(r *policyv1.ConsideredRule, d *policyv1.Decision) bool {
	if !r.GetMatched() {
		return false
	}
	observed := d.GetObserved()
	determined := proto.Equal(r.GetRule(), d.GetRule()) && r.GetChainIndex() == d.GetChainIndex() || proto.Equal(r.GetRule(), observed.GetRule())
	for _, l := range slices.Concat(d.GetLimits(), observed.GetLimits()) {
		determined = determined || proto.Equal(r.GetRule(), l.GetRule())
	}
	return determined
}

func ruleRow(r *policyv1.ConsideredRule) []string {
	var checks []string
	for _, c := range r.GetChecks() {
		checks = append(checks, checkText(c))
	}
	action := effectName(r.GetEffect())
	if r.GetObserve() {
		action += " (observed)"
	}
	return []string{ruleName(r.GetRule()), action, strconv.FormatBool(r.GetMatched()), strings.Join(checks, "  ")}
}

// For each rule whose grant has a condition, printNoGrant prints why approving this call would not also allow later
// calls.
func (t *tool) printNoGrant(rules []*policyv1.ConsideredRule, hasArguments bool) {
	for _, r := range rules {
		for _, c := range r.GetChecks() {
			switch {
			case c.GetName() != conditionCheck || c.GetHeld():
			case hasArguments:
				t.printf("no grant: an approval would be for this call only, because %s gives a grant only if %s (here: %s)",
					ruleName(r.GetRule()), c.GetWant(), c.GetGot())
			default:
				t.printf("no grant: %s gives a grant only if %s: set --arg NAME=VALUE to check that", ruleName(r.GetRule()), c.GetWant())
			}
		}
	}
}

const conditionCheck = "grant.where"

// checkText returns a short description of a check. If a condition can't be evaluated, the description contains the
// error.
func checkText(c *policyv1.Check) string {
	text := fmt.Sprintf("%s %s=%s", checkMark(c.GetHeld()), c.GetName(), c.GetWant())
	if c.GetName() == conditionCheck && c.GetGot() != strconv.FormatBool(c.GetHeld()) {
		text += " (" + c.GetGot() + ")"
	}
	return text
}

func checkMark(isMet bool) string {
	if isMet {
		return "✓"
	}
	return "✗"
}

func effectName(e policyv1.Effect) string {
	return orDash(enum.NameOrEmpty(e))
}

func ruleName(r *policyv1.RuleRef) string {
	if r.GetDocument() == "" {
		return "-"
	}
	return r.GetDocument() + "/" + r.GetRule()
}
