package policy

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/lru"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// maxReplayed limits the number of cached decisions in a replay. maxReplayedBytes limits their total size in bytes.
const maxReplayed, maxReplayedBytes = 10_000, 16 << 20

// A replayer makes new decisions on recorded calls with other documents. It is not safe for concurrent use.
type replayer struct {
	set       *engine.Set
	readsTime bool
	servers   map[string]*catalog.Server
	settings  func(server string) catalog.Settings
	groups    *currentGroups
	// decided caches the results. The key contains all values of a call that the documents can read.
	decided *lru.Cache[string, decidedReplay]

	same, different, unknown int64
	others                   map[commonv1.Code]int64
}

// decidedReplay is the result for all calls that the documents can't distinguish.
type decidedReplay struct {
	engine.Replay

	subject *identityv1.Principal // with the current groups
	class   engine.Facts
	size    int
}

func (s *Service) newReplayer(set *engine.Set, active *activeSet) *replayer {
	return &replayer{
		set: set, readsTime: set.ReadsTime(), servers: active.catalog.servers, settings: s.settings,
		groups:  newCurrentGroups(s.deps.Tokens.Records()),
		decided: lru.New[string](maxReplayed, maxReplayedBytes, func(d decidedReplay) int { return d.size }),
		others:  make(map[commonv1.Code]int64),
	}
}

// replayResults contains the results for a batch of records. Calls share a result if their recorded decisions are the
// same and the documents can't distinguish the calls.
type replayResults struct {
	flips   []*policyv1.Flip
	unknown []*policyv1.UnknownReplay
	// count contains a function for each result in the batch. The function adds calls to this result.
	count map[string]func(calls int64)
}

func newReplayResults() *replayResults {
	return &replayResults{count: make(map[string]func(int64))}
}

// replay decides a recorded call again and adds the result to the given results. If the principal in the record is not
// valid, replay returns an error.
func (r *replayer) replay(rec *policyv1.RecordedDecision, to *replayResults) error {
	if !decidedByRules(rec.GetDecision()) {
		r.others[rec.GetDecision().GetCode()] += rec.GetCount()
		return nil
	}
	key, err := r.keyOf(rec)
	if err != nil {
		return err
	}
	result, ok := r.decided.Get(key)
	if !ok {
		if result, err = r.decide(rec); err != nil {
			return err
		}
		result.size = len(key) + proto.Size(result.subject) + 1024
		r.decided.Put(key, result)
	}
	before := recordedVerdict(rec.GetDecision())
	kind, differs := compareReplayed(before, &result.Decision)
	calls := rec.GetCount()
	switch {
	case result.Needs != 0:
		r.unknown += calls
	case differs:
		r.different += calls
	default:
		r.same += calls
		return nil
	}
	verdict, err := proto.MarshalOptions{Deterministic: true}.Marshal(before)
	if err != nil {
		return err
	}
	key += string(verdict)
	if add := to.count[key]; add != nil {
		add(calls)
	} else if result.Needs != 0 {
		to.addUnknown(key, rec, before, &result)
	} else {
		to.addFlip(key, rec, kind, before, &result)
	}
	return nil
}

func (t *replayResults) addFlip(key string, rec *policyv1.RecordedDecision, kind policyv1.FlipKind, before *policyv1.Decision, result *decidedReplay) {
	after := &policyv1.Decision{
		Effect: effects[result.Decision.Effect], Code: packCode(result.Decision.Code), Rule: packRule(result.Decision.Rule),
		Hidden: result.Decision.Hidden, ToolClass: packClass(&result.class),
	}
	if o := result.Decision.Observed; o != nil && o.Effect != result.Decision.Effect {
		after.Observed = &policyv1.Observation{Effect: effects[o.Effect], Code: packCode(o.Code), Rule: packRule(o.Rule)}
	}
	flip := &policyv1.Flip{
		Call: callOnly(rec.GetCall()), Subject: result.subject, Before: before, After: after,
		DecisionId: rec.GetDecisionId(), Subjects: 1, Calls: rec.GetCount(), Kind: kind,
	}
	t.flips = append(t.flips, flip)
	t.count[key] = func(calls int64) { flip.Calls += calls }
}

func (t *replayResults) addUnknown(key string, rec *policyv1.RecordedDecision, before *policyv1.Decision, result *decidedReplay) {
	strictest := min(permission(before.GetEffect()), permission(enforcedEffect(before)))
	unknown := &policyv1.UnknownReplay{
		Call: callOnly(rec.GetCall()), Subject: result.subject, Before: before, Calls: rec.GetCount(), DecisionId: rec.GetDecisionId(),
		MayOpen: permission(effects[result.MostPermissive]) > strictest,
	}
	for i, need := range []policyv1.ReplayNeed{
		policyv1.ReplayNeed_REPLAY_NEED_ARGUMENTS, policyv1.ReplayNeed_REPLAY_NEED_GROUPS,
		policyv1.ReplayNeed_REPLAY_NEED_DEFINITION, policyv1.ReplayNeed_REPLAY_NEED_NAME,
	} {
		if result.Needs&(1<<i) != 0 {
			unknown.Needs = append(unknown.Needs, need)
		}
	}
	for _, ref := range result.Rules {
		unknown.Rules = append(unknown.Rules, packRule(ref))
	}
	t.unknown = append(t.unknown, unknown)
	t.count[key] = func(calls int64) { unknown.Calls += calls }
}

// callOnly returns a call without its params and its definition.
func callOnly(c *policyv1.Call) *policyv1.Call {
	return &policyv1.Call{Method: c.GetMethod(), Server: c.GetServer(), Name: c.GetName(), Ref: c.GetRef()}
}

// keyOf returns a string that contains the values of a recorded call that the documents can read. The strings are equal
// if the values are equal.
func (r *replayer) keyOf(rec *policyv1.RecordedDecision) (string, error) {
	key := &policyv1.RecordedDecision{Call: proto.CloneOf(rec.GetCall()), Subject: rec.GetSubject()}
	if key.ArgumentsKnown = rec.GetArgumentsKnown() && r.set.ReadsArguments(); !key.GetArgumentsKnown() {
		key.Call.ParamsJson = ""
	}
	if r.readsTime {
		key.Time = rec.GetTime()
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(key)
	return string(raw), err
}

// decide makes a decision on the call in a record.
func (r *replayer) decide(rec *policyv1.RecordedDecision) (decidedReplay, error) {
	c := rec.GetCall()
	subject, err := unpackSubject(rec.GetSubject())
	if err != nil {
		return decidedReplay{}, err
	}
	// The journal shortens names, but not the names of tools for which a rule made the decision.
	unknown := engine.UnknownName | engine.UnknownArguments
	if !r.groups.set(&subject, rec.GetSubject()) {
		unknown |= engine.UnknownGroups
	}
	call := engine.Call{
		Method: c.GetMethod(), Server: c.GetServer(), Tool: c.GetName(), Ref: c.GetRef(), Subject: subject,
		Facts: engine.Facts{Status: engine.Callable}, Now: timeOf(rec.GetTime()),
	}
	if rec.GetArgumentsKnown() && call.OfTool() {
		call.Params = c.GetParamsJson()
		unknown &^= engine.UnknownArguments
	}
	if call.OfTool() {
		facts, known := r.facts(c.GetServer(), c.GetName(), c.GetDefinitionDigest())
		if call.Facts = facts; !known {
			unknown |= engine.UnknownClass
		}
	}
	return decidedReplay{Replay: r.set.Replay(call, unknown), subject: packSubject(&subject), class: call.Facts}, nil
}

func timeOf(at *timestamppb.Timestamp) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.AsTime()
}

// facts returns the current facts about a tool. It treats every definition as accepted, because a replay is about
// documents and not about the catalog. If the record has no definition, facts uses the same definition as ExplainCall.
// It returns false if the catalog does not contain the recorded definition.
func (r *replayer) facts(server, tool string, digest []byte) (facts engine.Facts, known bool) {
	s := r.servers[server]
	if s == nil {
		return engine.Facts{Status: engine.Callable}, len(digest) == 0
	}
	if len(digest) == 0 {
		if d := s.Tools[tool].Newest(); d != nil {
			digest = d.Digest[:]
		}
	} else if len(digest) != len(catalog.Digest{}) || s.Tools[tool].FindDefinition(catalog.Digest(digest)) == nil {
		return engine.Facts{Status: engine.Callable}, false
	}
	facts = s.Facts(tool, digest, r.settings(server))
	facts.Status = engine.Callable
	return facts, true
}

// totals returns the number of calls that have been evaluated so far, by result.
func (r *replayer) totals() *policyv1.ReplayTotals {
	out := &policyv1.ReplayTotals{Same: r.same, Different: r.different, Unknown: r.unknown}
	for _, code := range slices.SortedFunc(maps.Keys(r.others), func(a, b commonv1.Code) int {
		return cmp.Or(cmp.Compare(r.others[b], r.others[a]), cmp.Compare(a, b))
	}) {
		out.Others = append(out.Others, &policyv1.OtherRefusals{Code: code, Calls: r.others[code]})
	}
	return out
}

// ruleCodes contains the codes of decisions in which a rule or a default refuses the call.
var ruleCodes = []commonv1.Code{
	commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED, commonv1.Code_CODE_TYPE_ERROR,
	commonv1.Code_CODE_SCOPE_MISSING,
}

// decidedByRules reports whether a recorded decision was made by rules or defaults. Other decisions refuse the call
// because of, for example, a limit, a stop or a quarantine. A hidden tool and a nonexistent tool have the same code,
// but only the decision on a hidden tool contains a rule.
func decidedByRules(d *policyv1.Decision) bool {
	return d.GetEffect() == policyv1.Effect_EFFECT_ALLOW || d.GetEffect() == policyv1.Effect_EFFECT_REQUIRE_APPROVAL ||
		slices.Contains(ruleCodes, d.GetCode()) || d.GetCode() == commonv1.Code_CODE_TOOL_UNKNOWN && d.GetRule() != nil
}

// recordedVerdict returns the parts of a recorded decision that are needed for the comparison and the result. In
// observe mode, they include the decision that would have been enforced, but only if rules or defaults made that
// decision. For example, it is omitted if a limit would have been exceeded.
func recordedVerdict(d *policyv1.Decision) *policyv1.Decision {
	out := &policyv1.Decision{Effect: d.GetEffect(), Code: d.GetCode(), Rule: d.GetRule(), Hidden: d.GetHidden()}
	would := d.GetObserved()
	observed := &policyv1.Decision{Effect: would.GetEffect(), Code: would.GetCode(), Rule: would.GetRule()}
	if would.GetEffect() != policyv1.Effect_EFFECT_UNSPECIFIED && would.GetEffect() != d.GetEffect() && decidedByRules(observed) {
		out.Observed = &policyv1.Observation{Effect: would.GetEffect(), Code: would.GetCode(), Rule: would.GetRule()}
	}
	return out
}

// enforcedEffect returns the effect that a decision would have had without observe mode.
func enforcedEffect(d *policyv1.Decision) policyv1.Effect {
	return cmp.Or(d.GetObserved().GetEffect(), d.GetEffect())
}

// permission returns a number that is greater for more permissive effects.
func permission(e policyv1.Effect) int {
	return slices.Index([]policyv1.Effect{policyv1.Effect_EFFECT_DENY, policyv1.Effect_EFFECT_REQUIRE_APPROVAL, policyv1.Effect_EFFECT_ALLOW}, e)
}

// compareReplayed compares a recorded decision with the new decision. It compares both their actual effects and the
// effects that they would have without observe mode.
func compareReplayed(before *policyv1.Decision, after *engine.Decision) (kind policyv1.FlipKind, differs bool) {
	done := permission(effects[after.Effect]) - permission(before.GetEffect())
	would := permission(effects[after.Enforced()]) - permission(enforcedEffect(before))
	switch {
	case done > 0 || would > 0:
		return policyv1.FlipKind_FLIP_KIND_OPENS, true
	case done < 0 || would < 0:
		return policyv1.FlipKind_FLIP_KIND_CLOSES, true
	}
	return policyv1.FlipKind_FLIP_KIND_UNSPECIFIED, false
}
