// Package safetext formats, as plain text, the description of a call that people must see before they approve or deny
// the call. It also converts an approval to a machine-readable form. The command line, chats, mails and webhooks use
// the package.
package safetext

import (
	"fmt"
	"strings"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// Facts returns everything in a call's description (view) except the params, with one fact per line. Hidden characters
// are escaped, so that every line is fully visible and no fact can begin a new line.
func Facts(v *approvalv1.View) string {
	var out lines
	out.add("call", CallName(v.GetServer(), v.GetMethod(), v.GetName()))
	out.add("server", v.GetServerIdentity())
	out.add("asked by", requester(v))
	if len(v.GetChain()) > 0 {
		out.add("on behalf of", strings.Join(v.GetChain(), ", for "))
	}
	if isTools(v.GetMethod()) {
		out.add("class", class(v.GetClassification()))
	}
	out.add("rule", rule(v.GetRule()))
	out.add("why", v.GetMessage())
	out.add("who decides", Approvers(v.GetTerms()))
	if at := v.GetDecideBefore(); at != nil {
		out.add("decide before", at.AsTime().UTC().Format(time.RFC3339))
	}
	for _, w := range v.GetWarnings() {
		out.add("careful", w)
	}
	if v.GetPreviousApprovalId() != "" {
		out.add("since "+v.GetPreviousApprovalId(), differences(v))
	}
	for _, c := range v.GetChanges() {
		out.add("  "+c.GetPath(), change(c))
	}
	if len(v.GetRedacted()) > 0 {
		out.add("redacted", strings.Join(v.GetRedacted(), ", "))
	}
	return out.String()
}

// CallName returns a one-line description of a call. For a tool call, it consists of the server and the tool. For other
// methods, it also contains the method.
func CallName(server, method, name string) string {
	if !isTools(method) {
		server += " " + method
	}
	return server + " " + name
}

// isTools reports whether method is the method that calls a tool. The empty string means tools/call.
func isTools(method string) bool { return method == "" || method == "tools/call" }

// lines is a list of facts in two columns.
type lines struct{ strings.Builder }

func (l *lines) add(name, text string) {
	if text != "" {
		fmt.Fprintf(l, "%-14s %s\n", Line(name), Line(text))
	}
}

func requester(v *approvalv1.View) string {
	out := v.GetSubject()
	if v.GetAgent() != "" {
		out += ", agent " + v.GetAgent()
	}
	if v.GetOwner() != "" {
		out += ", which works for " + v.GetOwner()
	}
	if v.GetPerson() != "" {
		out += ", with the connections of " + v.GetPerson()
	}
	return out
}

func class(c *policyv1.Classification) string {
	if c == nil {
		return "not known"
	}
	out := enum.Name(c.GetCategory()) + ", risk " + enum.Name(c.GetRisk())
	if len(c.GetTags()) > 0 {
		out += " (" + strings.Join(c.GetTags(), ", ") + ")"
	}
	return out
}

func rule(r *policyv1.RuleRef) string {
	if r == nil {
		return "the default"
	}
	return r.GetDocument() + "/" + r.GetRule()
}

// Approvers returns a description of the people who may approve or deny a call under the given terms.
func Approvers(t *policyv1.ApprovalTerms) string {
	people := "an operator or approver"
	if n := t.GetQuorum(); n > 1 {
		people = fmt.Sprintf("%d operators or approvers", n)
	}
	if groups := t.GetApprovers(); len(groups) > 0 {
		people += " of " + strings.Join(groups, ", ")
	}
	if t.GetApproveWith() != nil {
		people += ", signed in" + SignIn(t.GetApproveWith())
	}
	if t.GetSelfConfirm() {
		people += ", or the person at the agent"
	}
	return people
}

// SignIn returns a description of how approvers must have authenticated. The description begins with a space.
func SignIn(s *policyv1.StepUp) (out string) {
	if age := s.GetMaxAge(); age != nil {
		out = " at most " + ShortDuration(age.AsDuration()) + " ago"
	}
	if values := s.GetAcrValues(); len(values) > 0 {
		out += " with acr " + strings.Join(values, " or ")
	}
	return out
}

// ShortDuration returns a duration of whole seconds without units that are zero, such as 5m or 1h30m.
func ShortDuration(d time.Duration) string {
	out := d.String()
	if d >= time.Minute && d%time.Minute == 0 {
		out = strings.TrimSuffix(out, "0s")
	}
	if d >= time.Hour && d%time.Hour == 0 {
		out = strings.TrimSuffix(out, "0m")
	}
	return out
}

func differences(v *approvalv1.View) string {
	switch n := v.GetChangesTotal(); {
	case n == 0:
		return "no argument differs"
	case n == 1:
		return "1 argument differs"
	case int(n) > len(v.GetChanges()):
		return fmt.Sprintf("%d arguments differ, of which the first %d are", n, len(v.GetChanges()))
	default:
		return fmt.Sprintf("%d arguments differ", n)
	}
}

func change(c *approvalv1.ArgumentChange) string {
	out := fmt.Sprintf("%s, was %s", orNothing(c.GetAfter()), orNothing(c.GetBefore()))
	if c.GetCut() {
		out += " (cut here)"
	}
	return out
}

func orNothing(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}
