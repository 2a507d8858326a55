package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxDiffCallers is the maximum number of callers whose calls are compared.
	maxDiffCallers = 200
	// maxFlipSubjects is the maximum number of further subjects of one flip.
	maxFlipSubjects = 20
)

// differ compares decisions. It collects the flips of one part of the compared calls at a time.
type differ struct {
	cfg           Config
	before, after *engine.Set
	documents     []engine.Document // those of both sets
	totals        *policyv1.DiffTotals
	flips         map[string]*collectedFlip
}

// A collectedFlip is a flip and its callers.
type collectedFlip struct {
	*policyv1.Flip
	callers map[string]bool
}

// takeFlips returns the collected flips, sorted by definition and rules, and removes them from the differ.
func (d *differ) takeFlips() []*policyv1.Flip {
	out := make([]*policyv1.Flip, 0, len(d.flips))
	for _, key := range slices.Sorted(maps.Keys(d.flips)) {
		out = append(out, d.flips[key].Flip)
	}
	d.flips = nil
	return out
}

// callers returns the callers whose calls are compared: first an example of the callers that no document mentions, then
// those of the configured tokens, whose number it also returns, then those that documents mention.
func (d *differ) callers() (out []engine.Subject, configured int) {
	agents := d.cfg.approvers(d.cfg.OwnerMayApprove).Callers
	known := agents[:min(len(agents), maxDiffCallers)]
	mentioned, complete := engine.MentionedCallers(d.documents, maxDiffCallers-len(known))
	d.totals.EndedEarly = d.totals.GetEndedEarly() || !complete || len(known) < len(agents)
	out = mentioned[:1:1]
	for _, agent := range known {
		out = append(out, engine.Subject{Caller: agent.Principal})
	}
	return append(out, mentioned[1:]...), len(known)
}

func parseFor(documents []*policyv1.Document, now time.Time) ([]engine.Document, []*policyv1.Finding) {
	set, err := document.ParseSet(filesOf(documents), nil, now)
	if err != nil {
		return nil, findings(err)
	}
	return set.Documents, nil
}

// A diffCall is a call that is compared.
type diffCall struct {
	engine.Call
	// pattern and serverPattern are set if the names are examples.
	pattern, serverPattern string
	// anyCaller reports whether the caller is an example of the callers that no document mentions.
	anyCaller bool
	// recorded is the recorded call; nil if the call was generated.
	recorded *policyv1.RecordedCall
	// definition is the digest of the tool's definition, and after are the facts about it after the change, if the catalog
	// changes. after is nil if documents are compared.
	definition []byte
	after      *engine.Facts
}

// factsAfter returns the facts about the tool after the change.
func (c *diffCall) factsAfter() *engine.Facts {
	if c.after == nil {
		return &c.Facts
	}
	return c.after
}

// add adds a change to the flips. Changes that differ only by the caller become one flip.
func (d *differ) add(call *diffCall, c *engine.Change) {
	key := flipKey(call, c)
	known := d.flips[key]
	if known == nil {
		known = &collectedFlip{Flip: d.newFlip(call, c), callers: make(map[string]bool)}
		if d.flips == nil {
			d.flips = make(map[string]*collectedFlip)
		}
		d.flips[key] = known
	}
	known.addCaller(&call.Subject)
	known.AnyCaller = known.GetAnyCaller() || call.anyCaller
	if call.recorded != nil {
		known.Calls += call.recorded.GetCount()
		known.DecisionId = cmp.Or(known.GetDecisionId(), call.recorded.GetDecisionId())
	}
}

// flipKey returns a string that is equal for changes of one part that differ only by their callers.
func flipKey(call *diffCall, c *engine.Change) string {
	key := strconv.AppendQuote(nil, string(call.definition))
	for _, d := range []*engine.Decision{&c.Before, &c.After} {
		key = fmt.Appendf(key, " %d %t %t %q %q", d.Effect, d.Hidden, d.Observed != nil, d.Rule.Document, d.Rule.Rule)
		if d.Approval != nil {
			key = fmt.Appendf(key, " %+v", *d.Approval)
		}
		for _, l := range d.Limits {
			key = fmt.Appendf(key, " %d %d %v %t", l.Max, l.Window, l.Per, l.Cap)
		}
		for _, r := range d.Redactions {
			key = fmt.Appendf(key, " %q", fmt.Sprint(r))
		}
	}
	for _, a := range c.Assumptions {
		key = fmt.Appendf(key, " %q %v", a.Condition, a.Result)
	}
	return string(strconv.AppendBool(key, c.InvalidArguments))
}

// newFlip returns the flip of a change, without callers.
func (d *differ) newFlip(call *diffCall, c *engine.Change) *policyv1.Flip {
	flip := &policyv1.Flip{
		Call:    &policyv1.Call{Method: call.Method, Server: call.Server, Name: call.Tool, Ref: call.Ref, DefinitionDigest: call.definition},
		Pattern: call.pattern, ServerPattern: call.serverPattern, Kind: kindOf(c), InvalidArguments: c.InvalidArguments,
		Before: d.pack(d.before, &c.Before, &call.Facts), After: d.pack(d.after, &c.After, call.factsAfter()),
	}
	for _, a := range c.Assumptions {
		flip.Conditions = append(flip.Conditions, &policyv1.AssumedCondition{Condition: a.Condition, Result: conditionResults[a.Result]})
	}
	return flip
}

// addCaller adds a caller unless the flip has it already.
func (f *collectedFlip) addCaller(subject *engine.Subject) {
	name := fmt.Sprintf("%q %q", subject.Caller, subject.Chain)
	if f.callers[name] {
		return
	}
	f.callers[name] = true
	if f.Subjects++; f.GetSubject() == nil {
		f.Subject = packSubject(subject)
	} else if len(f.GetFurtherSubjects()) < maxFlipSubjects {
		f.FurtherSubjects = append(f.FurtherSubjects, packSubject(subject))
	}
}

func (*differ) pack(set *engine.Set, decision *engine.Decision, facts *engine.Facts) *policyv1.Decision {
	return packDecision(&activeSet{revision: set.Revision()}, *decision, facts)
}

func packSubject(s *engine.Subject) *identityv1.Principal {
	out := packPrincipal(&s.Caller)
	for i := range s.Chain {
		out.Chain = append(out.Chain, packPrincipal(&s.Chain[i]))
	}
	return out
}

func packPrincipal(p *engine.Principal) *identityv1.Principal {
	return &identityv1.Principal{Tenant: p.Tenant, Subject: p.Name, Agent: p.Agent, Owner: p.Owner, Groups: p.Groups}
}

func kindOf(c *engine.Change) policyv1.FlipKind {
	switch {
	case c.Opens():
		return policyv1.FlipKind_FLIP_KIND_OPENS
	case c.Closes():
		return policyv1.FlipKind_FLIP_KIND_CLOSES
	}
	return policyv1.FlipKind_FLIP_KIND_TERMS
}

// orderOf orders flips: deny to allow, deny to approval, approval to allow, other terms, and then calls that are closed.
func orderOf(f *policyv1.Flip) int {
	denied := f.GetBefore().GetEffect() == policyv1.Effect_EFFECT_DENY
	allowed := f.GetAfter().GetEffect() == policyv1.Effect_EFFECT_ALLOW
	switch {
	case f.GetKind() != policyv1.FlipKind_FLIP_KIND_OPENS:
		return int(f.GetKind()) + 10
	case denied && allowed:
		return 0
	case denied:
		return 1
	}
	return 2
}

var conditionResults = map[condition.Result]policyv1.ConditionResult{
	condition.True:   policyv1.ConditionResult_CONDITION_RESULT_TRUE,
	condition.False:  policyv1.ConditionResult_CONDITION_RESULT_FALSE,
	condition.Failed: policyv1.ConditionResult_CONDITION_RESULT_FAILED,
}
