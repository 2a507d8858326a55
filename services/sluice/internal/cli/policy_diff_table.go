package cli

import (
	"fmt"
	"slices"
	"strings"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A diffRow is a row of the printed table. It describes calls whose result changes in the same way.
type diffRow struct {
	kind          policyv1.FlipKind
	what          []string
	calls         int64
	result, by    string
	who, ifs, key string
}

func (t *tool) printFlips(diff *policyv1.DiffRevisionsResponse, recorded bool) error {
	t.printf("%s", diffHeadline(diff.GetTotals()))
	if diff.GetTotals().GetTotal() == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	if missing := diff.GetTotals().GetTotal() - int64(len(diff.GetFlips())); missing > 0 {
		t.printf("Missing: %d of these changes, because the comparison took too long. Compare smaller changes.\n", missing)
	}
	rows := diffRows(diff.GetFlips())
	head := []string{"RESULT", "WHAT", "WHO", "IF", "RULE"}
	if recorded {
		head = append([]string{"CALLS"}, head...)
	}
	var table [][]string
	for _, r := range rows[:min(len(rows), maxDiffRows)] {
		cells := []string{r.result, firstOf(r.what, 3), r.who, orDash(r.ifs), r.by}
		if recorded {
			cells = append([]string{fmt.Sprint(r.calls)}, cells...)
		}
		table = append(table, cells)
	}
	if err := t.table(head, table); err != nil {
		return err
	}
	if rest := len(rows) - len(table); rest > 0 {
		t.printf("not shown: %d more rows; -o json prints all changes", rest)
	}
	if recorded {
		t.printf("The journal contains no arguments: if a row has a condition, only some of its calls have the new result.")
	}
	return nil
}

func diffHeadline(totals *policyv1.DiffTotals) string {
	compared := "Compared " + countOfCalls(totals.GetCompared())
	if totals.GetTotal() == 0 {
		return compared + ": no call gets another result."
	}
	return fmt.Sprintf("%s, changes: %d (%d open something, %d close something, %d change limits or other terms).", compared,
		totals.GetTotal(), totals.GetOpened(), totals.GetClosed(), totals.GetTotal()-totals.GetOpened()-totals.GetClosed())
}

// diffRows returns the rows of the table, in the order of the changed calls. Calls whose result changes in the same way
// share a row.
func diffRows(flips []*policyv1.Flip) (rows []*diffRow) {
	several := definitionsOf(flips)
	for _, f := range flips {
		row := &diffRow{kind: f.GetKind(), what: []string{flipTarget(f)}, calls: f.GetCalls(), result: flipResult(f), by: flipRules(f), who: flipCallers(f), ifs: flipConditions(f)}
		if several[f.GetCall().GetServer()+"/"+f.GetCall().GetName()] {
			row.what[0] = withDefinition(row.what[0], f)
		}
		row.key = strings.Join([]string{row.result, row.by, row.who, row.ifs}, "\x00")
		at := slices.IndexFunc(rows, func(o *diffRow) bool { return o.key == row.key })
		if at < 0 {
			rows = append(rows, row)
			continue
		}
		rows[at].calls += row.calls
		if !slices.Contains(rows[at].what, row.what[0]) {
			rows[at].what = append(rows[at].what, row.what[0])
		}
	}
	return rows
}

func firstOf(names []string, limit int) string {
	if len(names) <= limit {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:limit], ", "), len(names)-limit)
}

// flipTarget describes the server and the tool of a call whose result changes. If the call is only an example for a
// name pattern, flipTarget returns the pattern.
func flipTarget(f *policyv1.Flip) string {
	server, name := f.GetCall().GetServer(), f.GetCall().GetName()
	if f.GetServerPattern() != "" {
		server = f.GetServerPattern()
	}
	if f.GetPattern() != "" {
		name = f.GetPattern()
	}
	if class := f.GetBefore().GetToolClass(); class != nil && f.GetPattern() != "" {
		name += fmt.Sprintf(" (%s, %s)", strings.ToLower(strings.TrimPrefix(class.GetCategory().String(), "CATEGORY_")), strings.ToLower(strings.TrimPrefix(class.GetRisk().String(), "RISK_")))
	}
	return callTarget(server, f.GetCall().GetMethod(), name)
}

func flipResult(f *policyv1.Flip) string {
	before, after := flipEffect(f.GetBefore()), flipEffect(f.GetAfter())
	if before == after {
		return before + ": " + termsOf(f.GetBefore()) + " -> " + termsOf(f.GetAfter())
	}
	return before + " -> " + after
}

// flipEffect returns the name of a decision's effect. It marks the effect if it would be different without observe
// mode.
func flipEffect(d *policyv1.Decision) string {
	name := effectName(d.GetEffect())
	if d.GetHidden() {
		name = "hide"
	}
	if would := d.GetObserved(); would != nil && would.GetEffect() != d.GetEffect() {
		name += " (observed)"
	}
	return name
}

// termsOf describes the limits in a decision, and who must approve the call.
func termsOf(d *policyv1.Decision) string {
	var parts []string
	for _, l := range d.GetLimits() {
		if !l.GetCap() {
			parts = append(parts, fmt.Sprintf("%s in %s per %s", l.GetLimit().GetMax(), l.GetLimit().GetWindow().AsDuration(), strings.Join(l.GetPer(), "+")))
		}
	}
	if d.GetApproval() != nil {
		parts = append(parts, termsText(d.GetApproval()))
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

// flipRules returns the rules that made the old and the new decision.
func flipRules(f *policyv1.Flip) string {
	before, after := ruleOrDefault(f.GetBefore()), ruleOrDefault(f.GetAfter())
	if before == after {
		return after
	}
	return before + " -> " + after
}

func ruleOrDefault(d *policyv1.Decision) string {
	if why := refusedByCatalog(d); why != "" {
		return why
	}
	if d.GetRule() == nil {
		return "default"
	}
	return ruleName(d.GetRule())
}

// flipCallers describes the callers whose calls change. It returns "any caller" or the names of a few callers.
func flipCallers(f *policyv1.Flip) string {
	if f.GetAnyCaller() {
		return "any caller"
	}
	var names []string
	for _, p := range append([]*identityv1.Principal{f.GetSubject()}, f.GetFurtherSubjects()...) {
		names = append(names, callerText(p))
	}
	const maxNames = 2
	text := strings.Join(names[:min(len(names), maxNames)], "; ")
	if rest := f.GetSubjects() - maxNames; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// callerText describes a caller. It omits placeholders such as "any-other-caller".
func callerText(p *identityv1.Principal) string {
	var parts []string
	if p.GetSubject() != "any-other-caller" {
		parts = append(parts, p.GetSubject())
	}
	if p.GetAgent() != "" && p.GetAgent() != "any-other-agent" {
		parts = append(parts, "agent "+p.GetAgent())
	}
	if len(p.GetGroups()) > 0 {
		parts = append(parts, "groups "+strings.Join(p.GetGroups(), ", "))
	}
	if p.GetTenant() != "default" {
		parts = append(parts, "tenant "+p.GetTenant())
	}
	switch p.GetIssuer() {
	case "":
	case "any-issuer":
		parts = append(parts, "any issuer")
	default:
		parts = append(parts, "issuer "+p.GetIssuer())
	}
	if p.GetClient() != "" {
		parts = append(parts, "client "+p.GetClient())
	}
	if len(p.GetScopes()) > 0 {
		parts = append(parts, "scopes "+strings.Join(p.GetScopes(), ", "))
	}
	if len(p.GetChain()) > 0 {
		parts = append(parts, "for "+callerText(p.GetChain()[0]))
	}
	return orDash(strings.Join(parts, ", "))
}

// flipConditions describes the conditions that determine whether the result of a call changes.
func flipConditions(f *policyv1.Flip) string {
	var parts []string
	for _, c := range f.GetConditions() {
		switch c.GetResult() {
		case policyv1.ConditionResult_CONDITION_RESULT_TRUE:
			parts = append(parts, c.GetCondition())
		case policyv1.ConditionResult_CONDITION_RESULT_FALSE:
			parts = append(parts, "not "+c.GetCondition())
		case policyv1.ConditionResult_CONDITION_RESULT_FAILED, policyv1.ConditionResult_CONDITION_RESULT_UNSPECIFIED:
			parts = append(parts, c.GetCondition()+" can't be evaluated")
		}
	}
	if f.GetInvalidArguments() {
		parts = append(parts, "the arguments do not fit the schema")
	}
	return strings.Join(parts, "; ")
}
