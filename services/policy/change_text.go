package policy

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxChangeFlips limits the number of flips (calls whose result changes) that approvers see for each kind of flip.
	// They always see all changed lines of the documents.
	maxChangeFlips = 100
	// maxChangeParams limits the size of the text that approvers see, in bytes.
	maxChangeParams = 1 << 20
)

// changeText is the JSON text about a change that approvers see. Opens and Closes list the calls that become less and
// more restricted. Terms lists the calls whose limits or approval terms change.
type changeText struct {
	Revision string `json:"revision"`
	Replaces string `json:"replaces"`
	Author   string `json:"author"`
	Reason   string `json:"reason"`
	// Comparison says whether calls that are not in Opens could also become less restricted.
	Comparison string   `json:"comparison"`
	Opens      []string `json:"opens"`
	// MayOpen lists the rules that could make further calls less restricted.
	MayOpen []string     `json:"may_open,omitempty"`
	Closes  []string     `json:"closes,omitempty"`
	Terms   []string     `json:"other_limits_or_terms,omitempty"`
	Changed []changeFile `json:"documents"`
}

// changeFile contains the changed lines of a document. Removed lines begin with `-`, and added lines begin with `+`.
// Line is the number of the first changed line.
type changeFile struct {
	Path  string   `json:"path"`
	State string   `json:"state"`
	Line  int      `json:"line"`
	Lines []string `json:"lines"`
}

// describe returns the text about the change that approvers see, as JSON.
func (c *policyChange) describe(ctx context.Context, documents string) (string, error) {
	s := c.service
	base, err := s.compileStored(ctx, &c.base)
	if err != nil {
		return "", storeError("the active policy documents could not be read, so nothing was applied", err)
	}
	diff, err := s.compareChange(ctx, base.documents, c.compiled.documents)
	if err != nil {
		return "", err
	}
	out := changeText{
		Revision: documents, Replaces: cmp.Or(c.base.ID, "no documents"), Author: c.author.GetSubject(), Reason: c.request.GetComment(),
		Comparison: comparisonText(diff.totals),
		Opens:      diff.texts(policyv1.FlipKind_FLIP_KIND_OPENS), Closes: diff.texts(policyv1.FlipKind_FLIP_KIND_CLOSES),
		Terms:   diff.texts(policyv1.FlipKind_FLIP_KIND_TERMS),
		Changed: changedFiles(base.documents, c.compiled.documents),
	}
	for _, r := range diff.totals.GetMayOpen() {
		out.MayOpen = append(out.MayOpen, ruleText(r))
	}
	text, err := json.Marshal(out)
	if err == nil && len(text) > maxChangeParams {
		return "", fmt.Errorf("%w (%d bytes are more than %d)", errChangeTooLarge, len(text), maxChangeParams)
	}
	return string(text), err
}

// changeComparison contains the calls whose result changes, by kind of change. For each kind, it contains the number of
// all such calls, and at most maxChangeFlips of the calls themselves.
type changeComparison struct {
	totals *policyv1.DiffTotals
	flips  map[policyv1.FlipKind][]*policyv1.Flip
	counts map[policyv1.FlipKind]int
}

// compareChange compares the decisions of the active documents with the decisions of the changed documents.
func (s *Service) compareChange(ctx context.Context, before, after []*policyv1.Document) (*changeComparison, error) {
	out := &changeComparison{flips: make(map[policyv1.FlipKind][]*policyv1.Flip), counts: make(map[policyv1.FlipKind]int)}
	err := s.newDocumentsDiffer(s.active.Load(), maxChangeWork).diff(ctx, before, after, func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error {
		for _, f := range flips {
			if out.counts[f.GetKind()]++; out.counts[f.GetKind()] <= maxChangeFlips {
				out.flips[f.GetKind()] = append(out.flips[f.GetKind()], f)
			}
		}
		out.totals = totals
		return nil
	})
	return out, cmp.Or(err, ctx.Err())
}

// texts describes the calls whose result changes in the given way, one text for each call.
func (c *changeComparison) texts(kind policyv1.FlipKind) []string {
	out := []string{}
	for _, f := range c.flips[kind] {
		out = append(out, flipText(f))
	}
	if more := c.counts[kind] - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

func comparisonText(totals *policyv1.DiffTotals) string {
	switch {
	case len(totals.GetFindings()) > 0:
		return "not possible, because the active documents do not load: any call may be opened"
	case totals.GetEndedEarly(), totals.GetUncertain() > 0, len(totals.GetMayOpen()) > 0:
		return "incomplete: further calls may be opened"
	}
	return "complete for whether calls run; changed limits and redactions are only in the lines of the documents"
}

func flipText(f *policyv1.Flip) string {
	target := cmp.Or(f.GetServerPattern(), f.GetCall().GetServer()) + "/" + cmp.Or(f.GetPattern(), f.GetCall().GetName())
	if m := f.GetCall().GetMethod(); m != "" && m != engine.MethodToolsCall {
		target = m + " " + target
	}
	who := "any caller"
	if !f.GetAnyCaller() {
		who = f.GetSubject().GetSubject()
		if more := f.GetSubjects() - 1; more > 0 {
			who += fmt.Sprintf(" and %d more", more)
		}
	}
	text := fmt.Sprintf("%s -> %s: %s by %s (%s -> %s)", effectText(f.GetBefore()), effectText(f.GetAfter()), target, who,
		ruleText(f.GetBefore().GetRule()), ruleText(f.GetAfter().GetRule()))
	if len(f.GetConditions()) > 0 {
		text += ", for some arguments"
	}
	return text
}

func effectText(d *policyv1.Decision) string {
	if d.GetHidden() {
		return "hide"
	}
	return enum.Name(d.GetEffect())
}

func ruleText(r *policyv1.RuleRef) string {
	if r == nil {
		return "default"
	}
	return r.GetDocument() + "/" + r.GetRule()
}

// changedFiles returns the changed lines of the documents that differ between the two lists. Both lists must be sorted
// by path.
func changedFiles(before, after []*policyv1.Document) []changeFile {
	out := []changeFile{}
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].GetPath() < after[0].GetPath():
			out = append(out, changedLines(before[0].GetPath(), "removed", before[0].GetText(), ""))
			before = before[1:]
		case len(before) == 0 || after[0].GetPath() < before[0].GetPath():
			out = append(out, changedLines(after[0].GetPath(), "added", "", after[0].GetText()))
			after = after[1:]
		default:
			if before[0].GetText() != after[0].GetText() {
				out = append(out, changedLines(after[0].GetPath(), "changed", before[0].GetText(), after[0].GetText()))
			}
			before, after = before[1:], after[1:]
		}
	}
	return out
}

// changedLines returns the lines of both texts, but not the lines that the texts have in common at their beginning and
// end.
func changedLines(path, state, before, after string) changeFile {
	was, is := linesOf(before), linesOf(after)
	same := 0
	for same < len(was) && same < len(is) && was[same] == is[same] {
		same++
	}
	was, is = was[same:], is[same:]
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	out := changeFile{Path: path, State: state, Line: same + 1, Lines: make([]string, 0, len(was)+len(is))}
	for _, line := range was {
		out.Lines = append(out.Lines, "-"+line)
	}
	for _, line := range is {
		out.Lines = append(out.Lines, "+"+line)
	}
	return out
}

// linesOf returns the lines of a text. If the last line does not end with a newline, linesOf marks it.
func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	if !strings.HasSuffix(text, "\n") {
		text += " (no end of line)\n"
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
