package policy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxDiffCallers limits the number of callers in a comparison.
	maxDiffCallers = 200
	// maxTargetFlips limits the total size in bytes of the flips that are collected for a target. Larger flips are sent
	// before the other calls with this target are compared. Then several flips may differ only in their callers.
	maxTargetFlips = 4 << 20
	// maxFlipSubjects limits how many subjects a flip lists in addition to the first one.
	maxFlipSubjects = 20
)

// differ compares the decisions of two policy sets. It collects the flips, which are the calls whose result changes.
type differ struct {
	cfg           Config
	before, after *engine.Set
	documents     []engine.Document // documents of both sets
	totals        *policyv1.DiffTotals
	clock         diffClock

	callers    []engine.Subject
	configured int // number of callers with configured tokens, which follow the first caller

	flips map[flipID]*collectedFlip
	size  int    // size of flips in bytes
	key   []byte // reused buffer
}

// A flipID is the SHA-256 digest of a flip without its callers. Therefore flips that differ only in their callers have
// the same flipID.
type flipID [sha256.Size]byte

// A collectedFlip is a flip with the set of its callers.
type collectedFlip struct {
	*policyv1.Flip
	callers map[string]bool
}

// sendFlips compares calls and sends the flips. The function compare returns the changes for a call, and reports
// whether these changes are certainly complete.
func (d *differ) sendFlips(ctx context.Context, stream *flipStream, calls iter.Seq[*diffCall], compare func(*diffCall) ([]engine.Change, bool)) error {
	steps := int64(-1)
	return stream.sendFlips(func(first bool, emit flipSink) (bool, error) {
		d.clock.startPass(steps)
		complete, err := d.compareCalls(ctx, calls, compare, first, emit)
		if first {
			steps = d.clock.steps
		}
		return complete, err
	})
}

// compareCalls compares calls and passes the flips to emit. The time slice is paused while emit runs. If count is true,
// compareCalls adds the calls to the totals. It returns false if the comparison ended early.
func (d *differ) compareCalls(ctx context.Context, calls iter.Seq[*diffCall], compare func(*diffCall) ([]engine.Change, bool), count bool, emit flipSink) (complete bool, err error) {
	defer d.clock.pause()
	if err := d.clock.resume(ctx); err != nil && !ended(ctx) {
		return false, err
	}
	complete = true
	var previous diffCall
	for call := range calls {
		if d.size > maxTargetFlips || d.size > maxFlipPart && !call.sameTarget(&previous) {
			if err := d.flush(emit); err != nil {
				return false, err
			}
		}
		previous = *call
		if complete, err = d.clock.step(ctx); err != nil {
			return false, err
		}
		if !complete {
			break
		}
		changes, certain := compare(call)
		if count {
			d.count(call, certain)
		}
		for i := range changes {
			d.add(call, &changes[i])
		}
	}
	return complete, d.flush(emit)
}

// count adds a call to the totals. If certain is false, the call might have more flips than were found.
func (d *differ) count(call *diffCall, certain bool) {
	d.totals.Compared++
	if call.generated {
		d.totals.Generated++
	}
	if !certain {
		d.totals.Uncertain++
	}
}

// flush passes the collected flips to emit and removes them from d. The time slice is paused while emit runs.
func (d *differ) flush(emit flipSink) error {
	d.clock.pause()
	ids := slices.SortedFunc(maps.Keys(d.flips), func(a, b flipID) int { return bytes.Compare(a[:], b[:]) })
	flips := make([]*policyv1.Flip, len(ids))
	for i, id := range ids {
		flips[i] = d.flips[id].Flip
	}
	d.flips, d.size = nil, 0
	SortFlips(flips)
	return emit(flips)
}

// findCallers sets the callers whose calls are compared. The first caller is an example of the callers that no document
// mentions. The callers with configured tokens follow, and then the callers that the documents mention.
func (d *differ) findCallers() {
	agents := d.cfg.approvers(d.cfg.OwnerMayApprove).Callers
	known := agents[:min(len(agents), maxDiffCallers)]
	mentioned, complete := engine.MentionedCallers(d.documents, maxDiffCallers-len(known))
	d.totals.EndedEarly = d.totals.GetEndedEarly() || !complete || len(known) < len(agents)
	d.callers, d.configured = mentioned[:1:1], len(known)
	for _, agent := range known {
		d.callers = append(d.callers, engine.Subject{Caller: agent.Principal})
	}
	d.callers = append(d.callers, mentioned[1:]...)
}

// byCallers yields the given call once for each caller.
func (d *differ) byCallers(call diffCall) iter.Seq[*diffCall] {
	example := call.pattern != "" || call.serverPattern != ""
	return func(yield func(*diffCall) bool) {
		for i := range d.callers {
			call.Subject, call.anyCaller = d.callers[i], i == 0
			call.generated = example || i == 0 || i > d.configured
			if !yield(&call) {
				return
			}
		}
	}
}

func parseFor(documents []*policyv1.Document, now time.Time) ([]engine.Document, []*policyv1.Finding) {
	set, err := document.ParseSet(filesOf(documents), nil, now)
	if err != nil {
		return nil, findings(err)
	}
	return set.Documents, nil
}

type diffCall struct {
	engine.Call
	// pattern is set if the tool's name is only an example of the names that match this pattern. serverPattern is the same
	// for the server's name.
	pattern, serverPattern string
	// anyCaller is true if the caller is an example of the callers that no document mentions. generated is true if the
	// caller or a name is such an example, or if it occurs only in the documents.
	anyCaller, generated bool
	// recorded is the recorded call, or nil if the call was generated.
	recorded *policyv1.RecordedCall
	// definition is the digest of the tool's definition. after contains the facts about the tool after a change to the
	// catalog, or nil if documents are compared.
	definition []byte
	after      *engine.Facts
}

// sameTarget reports whether two calls differ at most in their callers and facts.
func (c *diffCall) sameTarget(o *diffCall) bool {
	return c.Server == o.Server && c.Method == o.Method && c.Tool == o.Tool && c.Ref == o.Ref && c.pattern == o.pattern &&
		c.serverPattern == o.serverPattern && bytes.Equal(c.definition, o.definition)
}

// factsAfter returns the facts about the tool that apply after the change.
func (c *diffCall) factsAfter() *engine.Facts {
	if c.after == nil {
		return &c.Facts
	}
	return c.after
}

// add adds a change to the flips. Changes that differ only in the caller become one flip.
func (d *differ) add(call *diffCall, c *engine.Change) {
	id := d.flipID(call, c)
	known := d.flips[id]
	if known == nil {
		known = &collectedFlip{Flip: d.newFlip(call, c), callers: make(map[string]bool)}
		if d.flips == nil {
			d.flips = make(map[flipID]*collectedFlip)
		}
		d.flips[id] = known
		d.size += proto.Size(known.Flip)
	}
	known.addCaller(&call.Subject)
	known.AnyCaller = known.GetAnyCaller() || call.anyCaller
	if call.recorded != nil {
		known.Calls = addCalls(known.GetCalls(), call.recorded.GetCount())
		known.DecisionId = cmp.Or(known.GetDecisionId(), call.recorded.GetDecisionId())
	}
}

// addCalls returns the sum of two numbers of calls, or math.MaxInt64 if the sum is greater.
func addCalls(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// flipID returns the id of the flip for a change.
func (d *differ) flipID(call *diffCall, c *engine.Change) flipID {
	key := d.key[:0]
	for _, text := range [...]string{call.Server, call.Method, call.Tool, call.Ref, call.pattern, call.serverPattern, string(call.definition)} {
		key = appendText(key, text)
	}
	for _, decision := range [...]*engine.Decision{&c.Before, &c.After} {
		key = appendDecision(key, decision)
	}
	for _, a := range c.Assumptions {
		key = append(appendText(key, a.Condition), byte(a.Result))
	}
	d.key = strconv.AppendBool(key, c.InvalidArguments)
	return sha256.Sum256(d.key)
}

// appendText appends a string and its length.
func appendText(key []byte, text string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(text))), text...)
}

// appendDecision appends what distinguishes a decision in a flip. The formatted values are rare, because formatting
// takes much longer than the comparison of a call.
func appendDecision(key []byte, decision *engine.Decision) []byte {
	key = append(key, byte(decision.Effect))
	for _, is := range [...]bool{decision.Hidden, decision.Record, decision.Observed != nil, decision.Approval != nil} {
		key = strconv.AppendBool(key, is)
	}
	key = appendText(appendText(key, decision.Rule.Document), decision.Rule.Rule)
	if decision.Approval != nil {
		key = appendText(key, fmt.Sprintf("%#v", *decision.Approval))
	}
	key = binary.AppendUvarint(key, uint64(len(decision.Limits)))
	for _, l := range decision.Limits {
		key = binary.AppendVarint(binary.AppendVarint(key, l.Max), int64(l.Window))
		key = binary.AppendUvarint(strconv.AppendBool(key, l.Cap), uint64(len(l.Per)))
		for _, dimension := range l.Per {
			key = append(key, byte(dimension))
		}
	}
	key = binary.AppendUvarint(key, uint64(len(decision.Redactions)))
	for _, r := range decision.Redactions {
		key = appendText(key, fmt.Sprintf("%#v", r))
	}
	return key
}

// newFlip returns the flip for a change, without callers.
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

// addCaller adds a caller to the flip, unless the flip already contains the caller.
func (f *collectedFlip) addCaller(subject *engine.Subject) {
	var name []byte
	for _, p := range append([]engine.Principal{subject.Caller}, subject.Chain...) {
		for _, text := range [...]string{p.Tenant, p.Name, p.Agent, p.Issuer, p.Client} {
			name = appendText(name, text)
		}
		name = binary.AppendUvarint(name, uint64(len(p.Scopes)))
		for _, scope := range p.Scopes {
			name = appendText(name, scope)
		}
	}
	if f.callers[string(name)] {
		return
	}
	f.callers[string(name)] = true
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
	return &identityv1.Principal{
		Tenant: p.Tenant, Subject: p.Name, Agent: p.Agent, Owner: p.Owner, Groups: p.Groups,
		Issuer: p.Issuer, Client: p.Client, Scopes: p.Scopes,
	}
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

// SortFlips sorts flips by [orderOf]. Calls that were denied and become allowed come first. Flips with the same order
// are sorted by the number of recorded calls, highest first, and then by server, method and name.
func SortFlips(flips []*policyv1.Flip) {
	rule := func(f *policyv1.Flip) string {
		before, after := f.GetBefore().GetRule(), f.GetAfter().GetRule()
		return strings.Join([]string{before.GetDocument(), before.GetRule(), after.GetDocument(), after.GetRule()}, "\x00")
	}
	slices.SortStableFunc(flips, func(a, b *policyv1.Flip) int {
		return cmp.Or(
			cmp.Compare(orderOf(a), orderOf(b)), cmp.Compare(b.GetCalls(), a.GetCalls()), cmp.Compare(a.GetCall().GetServer(), b.GetCall().GetServer()),
			cmp.Compare(a.GetCall().GetMethod(), b.GetCall().GetMethod()), cmp.Compare(a.GetCall().GetName(), b.GetCall().GetName()),
			bytes.Compare(a.GetCall().GetDefinitionDigest(), b.GetCall().GetDefinitionDigest()), cmp.Compare(rule(a), rule(b)),
		)
	})
}

// orderOf returns the position of a flip in the sequence of results. The sequence is: deny to allow, deny to approval,
// approval to allow, unchanged effect (for example only the limits change), and finally calls that become more
// restricted.
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
