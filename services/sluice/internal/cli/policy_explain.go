package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// printExplanation prints the explanation of a decision and the rules that determined it. hasArguments is true if the
// person gave the arguments of the call. If all is true, printExplanation prints all rules that policy considered.
func (t *tool) printExplanation(e *policyv1.ExplainCallResponse, hasArguments, all bool) error {
	if t.json() {
		raw, err := protojson.Marshal(e)
		if err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		return t.printJSON(jsontext.Value(raw))
	}
	t.printDecided(e, hasArguments)
	var rows [][]string
	for _, r := range e.GetRules() {
		if all || ruleDecided(r, e.GetDecision()) {
			rows = append(rows, ruleRow(r))
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(t.out)
		if err := t.table([]string{"RULE", "ACTION", "MATCHED", "CHECKS"}, rows); err != nil {
			return err
		}
	}
	if left := len(e.GetRules()) - len(rows); left > 0 {
		t.printf("rules that did not decide: %d; --all prints them", left)
	}
	return nil
}

func (t *tool) printDecided(e *policyv1.ExplainCallResponse, hasArguments bool) {
	d := e.GetDecision()
	t.printf("%s  %s", effectName(d.GetEffect()), enum.NameOrEmpty(d.GetCode()))
	t.printf("%s", e.GetWhy())
	if d.GetMessage() != "" {
		t.printf("reason: %s", d.GetMessage())
	}
	t.printConditions(e)
	if terms := d.GetApproval(); terms != nil {
		t.printf("approval: %s", termsText(terms))
		if terms.GetGrant() == nil {
			t.printNoGrant(e.GetRules(), hasArguments)
		}
	}
	if d.GetIdempotent() {
		fmt.Fprintln(t.out, "idempotent: the call may be sent again if its outcome is not known")
	}
	for _, l := range d.GetLimits() {
		t.printf("limit: %s in %s per %s, by %s", l.GetLimit().GetMax(), l.GetLimit().GetWindow().AsDuration(), strings.Join(l.GetPer(), "+"), ruleName(l.GetRule()))
	}
}

// printConditions prints the results of conditions, with the values that the conditions read. It prints the conditions
// of the rules that determined the decision. If no rule determined it, it prints the conditions of the rules that would
// apply if their condition were true.
func (t *tool) printConditions(e *policyv1.ExplainCallResponse) {
	d := e.GetDecision()
	for _, r := range e.GetRules() {
		named := proto.Equal(r.GetRule(), d.GetRule()) && r.GetChainIndex() == d.GetChainIndex()
		kept := d.GetRule() == nil && !r.GetMatched()
		if !named && !kept && !ruleDecided(r, d) {
			continue
		}
		for _, c := range r.GetChecks() { // a rule has this check only if all other checks held
			if (c.GetName() == "when" || c.GetName() == "otherwise") && c.GetGot() != "" {
				t.printf("condition of %s: %s", ruleName(r.GetRule()), c.GetGot())
			}
		}
	}
}

// ruleDecided reports whether a considered rule determined the effect of the decision, or added a limit to it.
func ruleDecided(r *policyv1.ConsideredRule, d *policyv1.Decision) bool {
	if !r.GetMatched() {
		return false
	}
	determined := proto.Equal(r.GetRule(), d.GetRule()) && r.GetChainIndex() == d.GetChainIndex()
	for _, l := range d.GetLimits() {
		determined = determined || proto.Equal(r.GetRule(), l.GetRule())
	}
	return determined
}

func ruleRow(r *policyv1.ConsideredRule) []string {
	var checks []string
	for _, c := range r.GetChecks() {
		checks = append(checks, checkText(c))
	}
	return []string{ruleName(r.GetRule()), effectName(r.GetEffect()), strconv.FormatBool(r.GetMatched()), strings.Join(checks, "  ")}
}

// printNoGrant prints, for each rule with a conditional grant, the reason why an approval of the call gives no grant.
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
// reason.
func checkText(c *policyv1.Check) string {
	text := fmt.Sprintf("%s %s=%s", checkMark(c.GetHeld()), c.GetName(), c.GetWant())
	if c.GetName() == conditionCheck && c.GetGot() != strconv.FormatBool(c.GetHeld()) {
		text += " (" + c.GetGot() + ")"
	}
	return text
}

func checkMark(held bool) string {
	if held {
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
