package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// maxReplayRows limits the number of rows of each kind. Calls without a row are only counted.
const maxReplayRows = 10_000

// replayReport contains the calls whose result would change, and the calls whose result is not known.
type replayReport struct {
	filter   *gatewayv1.DecisionFilter
	until    time.Time
	progress io.Writer // nil if no progress is reported

	// complete is true if all calls in the period were read. Otherwise, only the calls since searched were read.
	complete bool
	searched *time.Time
	findings []*policyv1.Finding
	totals   *policyv1.ReplayTotals
	// notDecided contains the number of calls that were refused before the policy service evaluated them, by code.
	notDecided map[commonv1.Code]int64
	flips      replayRows[*policyv1.Flip]
	unknown    replayRows[*policyv1.UnknownReplay]
	// opened is the number of calls that would become less restricted, and closed is the number of calls that would become
	// more restricted. mayOpen is the number of calls whose result is not known and that may become less restricted.
	opened, closed, mayOpen int64
}

// replayRows contains rows, which can be found by key.
type replayRows[T any] struct {
	all   []T
	byKey map[string]T
	// others is the number of calls without a row, because there are too many rows.
	others int64
}

// row returns the row with the given key. If there is no such row, it adds the given row. known is true if the row
// existed before. ok is false if the row was not added because there are too many rows.
func (r *replayRows[T]) row(key string, added T) (row T, known, ok bool) {
	if row, known = r.byKey[key]; known {
		return row, true, true
	}
	if len(r.all) == maxReplayRows {
		return row, false, false
	}
	r.byKey[key], r.all = added, append(r.all, added)
	return added, false, true
}

func newReplayReport(filter *gatewayv1.DecisionFilter, now time.Time) *replayReport {
	r := &replayReport{
		filter: filter, until: now, totals: new(policyv1.ReplayTotals), notDecided: make(map[commonv1.Code]int64),
		flips: replayRows[*policyv1.Flip]{byKey: make(map[string]*policyv1.Flip)}, unknown: replayRows[*policyv1.UnknownReplay]{byKey: make(map[string]*policyv1.UnknownReplay)},
	}
	if until := timeOrNil(filter.GetUntil()); until != nil {
		r.until = *until
	}
	return r
}

// recordedDecision returns the decision in a record.
func recordedDecision(r *gatewayv1.Record) *policyv1.Decision {
	out := &policyv1.Decision{Effect: r.GetEffect(), Code: r.GetCode(), Rule: r.GetRule(), Hidden: r.GetHidden()}
	would := map[gatewayv1.ObservedEffect]policyv1.Effect{
		gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_ALLOW:            policyv1.Effect_EFFECT_ALLOW,
		gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_DENY:             policyv1.Effect_EFFECT_DENY,
		gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_REQUIRE_APPROVAL: policyv1.Effect_EFFECT_REQUIRE_APPROVAL,
	}[r.GetObserved().GetEffect()]
	if would != policyv1.Effect_EFFECT_UNSPECIFIED { // a limit that would have been exceeded changes no decision
		out.Observed = &policyv1.Observation{Effect: would, Code: r.GetObserved().GetCode(), Rule: r.GetObserved().GetRule()}
	}
	return out
}

// addTokens copies the token ids in a recorded principal and its delegation chain to another principal.
func addTokens(to, recorded *identityv1.Principal) {
	to.TokenId = recorded.GetTokenId()
	for i, p := range recorded.GetChain() {
		to.Chain[i].TokenId = p.GetTokenId()
	}
}

// add adds the results in a response from the policy service to the report.
func (r *replayReport) add(resp *policyv1.ReplayDecisionsResponse) {
	r.findings = append(r.findings, resp.GetFindings()...)
	if resp.GetTotals() != nil {
		r.totals = resp.GetTotals()
	}
	for _, f := range resp.GetFlips() {
		r.addFlip(f)
	}
	for _, u := range resp.GetUnknown() {
		r.addUnknown(u)
	}
}

func (r *replayReport) addFlip(f *policyv1.Flip) {
	if f.GetKind() == policyv1.FlipKind_FLIP_KIND_CLOSES {
		r.closed += f.GetCalls()
	} else {
		r.opened += f.GetCalls()
	}
	key := strings.Join([]string{f.GetCall().String(), f.GetSubject().String(), f.GetBefore().String(), f.GetAfter().String()}, "\x00")
	switch row, known, ok := r.flips.row(key, f); {
	case known:
		row.Calls += f.GetCalls()
	case !ok:
		r.flips.others += f.GetCalls()
	}
}

func (r *replayReport) addUnknown(u *policyv1.UnknownReplay) {
	if u.GetMayOpen() {
		r.mayOpen += u.GetCalls()
	}
	key := strings.Join([]string{u.GetCall().String(), u.GetSubject().String(), u.GetBefore().String(), fmt.Sprint(u.GetNeeds(), u.GetRules())}, "\x00")
	switch row, known, ok := r.unknown.row(key, u); {
	case known:
		row.Calls += u.GetCalls()
	case !ok:
		r.unknown.others += u.GetCalls()
	}
}

// sort sorts the rows. Calls that change from deny to allow come first, followed by other calls that would become less
// restricted. Rows of the same kind are sorted by descending number of calls.
func (r *replayReport) sort() {
	slices.SortStableFunc(r.flips.all, func(a, b *policyv1.Flip) int {
		return cmp.Or(cmp.Compare(flipOrder(a), flipOrder(b)), cmp.Compare(b.GetCalls(), a.GetCalls()), cmp.Compare(flipTarget(a), flipTarget(b)), cmp.Compare(a.GetSubject().GetSubject(), b.GetSubject().GetSubject()))
	})
	may := func(u *policyv1.UnknownReplay) int {
		if u.GetMayOpen() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(r.unknown.all, func(a, b *policyv1.UnknownReplay) int {
		return cmp.Or(cmp.Compare(may(a), may(b)), cmp.Compare(b.GetCalls(), a.GetCalls()), cmp.Compare(a.GetCall().GetServer(), b.GetCall().GetServer()), cmp.Compare(a.GetCall().GetName(), b.GetCall().GetName()))
	})
}

// flipOrder returns the position of a changed call in the report. The sequence is: deny to allow, deny to approval,
// approval to allow, and calls that would become more restricted.
func flipOrder(f *policyv1.Flip) int {
	before, after := f.GetBefore(), f.GetAfter()
	enforced := func(d *policyv1.Decision) policyv1.Effect { return cmp.Or(d.GetObserved().GetEffect(), d.GetEffect()) }
	denied := before.GetEffect() == policyv1.Effect_EFFECT_DENY || enforced(before) == policyv1.Effect_EFFECT_DENY
	allowed := after.GetEffect() == policyv1.Effect_EFFECT_ALLOW || enforced(after) == policyv1.Effect_EFFECT_ALLOW
	switch {
	case f.GetKind() == policyv1.FlipKind_FLIP_KIND_CLOSES:
		return 3
	case denied && allowed:
		return 0
	case denied:
		return 1
	}
	return 2
}

// calls returns the number of calls that were read.
func (r *replayReport) calls() int64 {
	n := r.totals.GetSame() + r.totals.GetDifferent() + r.totals.GetUnknown()
	for _, count := range r.others() {
		n += count
	}
	return n
}

// others returns the number of calls that were refused for a reason other than rules, by code.
func (r *replayReport) others() map[commonv1.Code]int64 {
	out := maps.Clone(r.notDecided)
	for _, o := range r.totals.GetOthers() {
		out[o.GetCode()] += o.GetCalls()
	}
	return out
}

// result returns the error that determines the exit code.
func (r *replayReport) result() error {
	switch {
	case r.opened > 0:
		return errSilent
	case !r.complete:
		return incompleteError("interrupted: calls before %s are missing", localTime(*r.searched))
	case r.mayOpen > 0:
		return incompleteError("the replay is incomplete: the result of %s that were refused or needed an approval depends on values that are not known; check such a call with `sluice policy explain --arg`, or use `sluice policy diff`, which shows the conditions", countOfCalls(r.mayOpen))
	}
	return nil
}

func (t *tool) printReplay(r *replayReport) error {
	if t.json() {
		return t.printReplayJSON(r)
	}
	t.printf("%s", r.headline())
	if err := t.printReplayFlips(r); err != nil {
		return err
	}
	if err := t.printReplayUnknown(r); err != nil {
		return err
	}
	if text := r.othersText(); text != "" {
		fmt.Fprintln(t.out)
		t.printf("Not replayed, because they were refused for a reason other than rules: %s.", text)
	}
	return nil
}

// headline describes the period and the numbers of calls.
func (r *replayReport) headline() string {
	since := timeOrNil(r.filter.GetSince())
	if !r.complete {
		since = r.searched
	}
	period := "Until " + localTime(r.until)
	if since != nil {
		period = "From " + localTime(*since) + " to " + localTime(r.until)
	}
	return fmt.Sprintf("%s: %s (%d open, %d close, %d same, %d unknown).", period, countOfCalls(r.calls()), r.opened, r.closed, r.totals.GetSame(), r.totals.GetUnknown())
}

func (t *tool) printReplayFlips(r *replayReport) error {
	rows := diffRows(r.flips.all)
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	var table [][]string
	shown := int64(0)
	for _, row := range rows[:min(len(rows), maxDiffRows)] {
		table = append(table, []string{fmt.Sprint(row.calls), row.result, firstOf(row.what, 3), row.who, row.by})
		shown += row.calls
	}
	if err := t.table([]string{"CALLS", "RESULT", "WHAT", "WHO", "RULE"}, table); err != nil {
		return err
	}
	t.printRest(r.totals.GetDifferent() - shown)
	return nil
}

func (t *tool) printRest(calls int64) {
	if calls > 0 {
		t.printf("not shown: %s; -o json prints all rows", countOfCalls(calls))
	}
}

func (t *tool) printReplayUnknown(r *replayReport) error {
	if len(r.unknown.all) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	t.printf("The result of these calls is unknown, because it depends on what the journal does not contain:")
	type row struct {
		calls int64
		cells []string
	}
	var rows []*row
	known := make(map[string]*row)
	for _, u := range r.unknown.all { // calls with different callers or recorded results share one row
		var rules []string
		for _, ref := range u.GetRules() {
			rules = append(rules, ruleName(ref))
		}
		cells := []string{callTarget(u.GetCall().GetServer(), u.GetCall().GetMethod(), u.GetCall().GetName()), needsText(u), firstOf(rules, 3), mayOpenText(u)}
		key := strings.Join(cells, "\x00")
		if known[key] == nil {
			known[key] = &row{cells: cells}
			rows = append(rows, known[key])
		}
		known[key].calls += u.GetCalls()
	}
	var table [][]string
	shown := int64(0)
	for _, one := range rows[:min(len(rows), maxDiffRows)] {
		table = append(table, append([]string{fmt.Sprint(one.calls)}, one.cells...))
		shown += one.calls
	}
	if err := t.table([]string{"CALLS", "WHAT", "DEPENDS ON", "RULE", "MAY OPEN"}, table); err != nil {
		return err
	}
	t.printRest(r.totals.GetUnknown() - shown)
	return nil
}

func mayOpenText(u *policyv1.UnknownReplay) string {
	if u.GetMayOpen() {
		return "yes"
	}
	return "no"
}

// needsText describes the values without which a call can't be evaluated.
func needsText(u *policyv1.UnknownReplay) string {
	texts := map[policyv1.ReplayNeed]string{
		policyv1.ReplayNeed_REPLAY_NEED_ARGUMENTS:  "arguments",
		policyv1.ReplayNeed_REPLAY_NEED_GROUPS:     "groups of " + callerText(u.GetSubject()),
		policyv1.ReplayNeed_REPLAY_NEED_DEFINITION: "a definition that is not in the catalog",
		policyv1.ReplayNeed_REPLAY_NEED_NAME:       "the whole name",
	}
	var parts []string
	for _, need := range u.GetNeeds() {
		parts = append(parts, cmp.Or(texts[need], enum.Name(need)))
	}
	return strings.Join(parts, "; ")
}

// othersText lists the codes of calls that were refused for a reason other than rules, most frequent first.
func (r *replayReport) othersText() string {
	others := r.others()
	var parts []string
	for _, code := range byCalls(others) {
		parts = append(parts, fmt.Sprintf("%d %s", others[code], cmp.Or(enum.NameOrEmpty(code), "without a code")))
	}
	return strings.Join(parts, ", ")
}

// byCalls returns the codes, sorted by descending number of calls.
func byCalls(counts map[commonv1.Code]int64) []commonv1.Code {
	return slices.SortedFunc(maps.Keys(counts), func(a, b commonv1.Code) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}
