package policy_test

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	documents "github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// diffPairs is the number of pairs of policies that are compared. minFlips is the minimum number of calls whose
	// result changes, over all pairs. This minimum ensures that the test checks something.
	diffPairs, minFlips = 300, 3000
)

// These variables contain the parts of the calls that both versions of a pair evaluate. The documents mention some of
// the names, callers and classes, and do not mention others.
var (
	pairTools   = []string{"read", "read_all", "write", "delete", "send", "unmentioned"}
	pairCallers = []engine.Principal{
		{Tenant: "default", Name: "ana", Agent: "dev"}, {Tenant: "default", Name: "ben", Agent: "ops"},
		{Tenant: "default", Name: "eve"}, {Tenant: "default", Name: "zoe", Agent: "else"},
	}
	pairParams = []string{
		``, `{"arguments":{"path":"/a","amount":5}}`, `{"arguments":{"path":"/b","amount":500}}`, `{"arguments":{"path":7,"amount":"x"}}`,
	}
	pairClasses = []engine.Facts{
		{Status: engine.Callable},
		{Status: engine.Callable, Category: "read", Risk: "low", Sure: true},
		{Status: engine.Callable, Category: "destructive", Risk: "critical", Sure: true},
	}
)

// pick returns a random one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// ruleLine returns a random rule or tool entry of a document in YAML.
func ruleLine(r *rand.Rand, n int) string {
	action := pick(r, "action: allow", "action: allow", "action: deny", "action: hide", "action: require_approval",
		"action: allow, rate_limit: {max: 3, window: 60}")
	when := pick(r, "", "", `, when: 'args.path == "/a"'`, `, when: 'args.amount < 100'`,
		`, when: 'args.path == "/b"', otherwise: {action: deny}`)
	if action == "action: hide" { // lists do not know the arguments
		when = ""
	}
	match := []string{pick(r, `tool: read`, `tool: "read*"`, `tool: [write, delete]`, `tool: "*"`, `tool: send`, `category: destructive`, `risk: [low, medium]`)}
	if caller := pick(r, "", "", "principal: ana", "agent: [dev, ops]", "principal: [ben, eve]"); caller != "" {
		match = append(match, caller)
	}
	return fmt.Sprintf("  - {name: r%d, match: {%s}, %s%s}\n", n, strings.Join(match, ", "), action, when)
}

// pairDocument contains the parts of a document.
type pairDocument struct {
	fallback string
	rules    []string
}

func (d pairDocument) String() string {
	text := "version: 1\nname: p\nserver: files\ndefault: " + d.fallback + "\n"
	if len(d.rules) > 0 {
		text += "rules:\n" + strings.Join(d.rules, "")
	}
	return text
}

// drawPair returns two versions of a document: a random document, and the same document after one to three edits.
func drawPair(r *rand.Rand) (before, after pairDocument) {
	before.fallback = pick(r, "deny", "deny", "allow", "by_risk")
	for n := range r.IntN(6) {
		before.rules = append(before.rules, ruleLine(r, n))
	}
	after = pairDocument{before.fallback, slices.Clone(before.rules)}
	for edit := range 1 + r.IntN(3) {
		at := r.IntN(len(after.rules) + 1)
		switch {
		case r.IntN(5) == 0:
			after.fallback = pick(r, "deny", "allow", "by_risk")
		case at == len(after.rules) || r.IntN(3) == 0:
			after.rules = append(after.rules, ruleLine(r, 10+edit))
		case r.IntN(2) == 0:
			after.rules = slices.Delete(after.rules, at, at+1)
		default:
			after.rules[at] = ruleLine(r, 20+edit)
		}
	}
	return before, after
}

// decider compiles a document and returns a function that evaluates calls with it.
func decider(t *testing.T, d pairDocument, now time.Time) func(engine.Call) engine.Decision {
	t.Helper()
	parsed, err := documents.ParseSet([]documents.File{{Path: "a.yaml", Text: []byte(d.String())}}, nil, now)
	if err != nil {
		t.Fatalf("%v\n%s", err, d)
	}
	set, err := engine.Compile(parsed.Documents, engine.Options{SessionCap: 1, Times: engine.Times{Decide: time.Hour, Execute: time.Hour}, Now: now})
	if err != nil {
		t.Fatalf("%v\n%s", err, d)
	}
	return func(call engine.Call) engine.Decision { return set.Decide(call) }
}

// named reports whether a flip in the response says that the effect of the call changes from the first given effect to
// the second.
func named(resp *policyv1.DiffRevisionsResponse, call *engine.Call, before, after policyv1.Effect) bool {
	return slices.ContainsFunc(resp.GetFlips(), func(f *policyv1.Flip) bool {
		tool := f.GetCall().GetName() == call.Tool
		if f.GetPattern() != "" {
			tool, _ = path.Match(f.GetPattern(), call.Tool)
		}
		caller := f.GetAnyCaller() || f.GetSubject().GetSubject() == call.Subject.Caller.Name || f.GetSubject().GetAgent() == call.Subject.Caller.Agent && f.GetSubject().GetAgent() != ""
		for _, s := range f.GetFurtherSubjects() {
			caller = caller || s.GetSubject() == call.Subject.Caller.Name || s.GetAgent() == call.Subject.Caller.Agent && s.GetAgent() != ""
		}
		return tool && caller && f.GetBefore().GetEffect() == before && f.GetAfter().GetEffect() == after
	})
}

var packedEffects = map[engine.Effect]policyv1.Effect{
	engine.Allow: policyv1.Effect_EFFECT_ALLOW, engine.Deny: policyv1.Effect_EFFECT_DENY, engine.RequireApproval: policyv1.Effect_EFFECT_REQUIRE_APPROVAL,
}

// Both versions of many random pairs of policies evaluate the same calls. If the effects of a call differ, the
// comparison of the pair contains this difference.
func TestDiff_NamesEveryFlipOfSeededPairs(t *testing.T) {
	t.Parallel()
	now, pairs, flips := time.Now(), 0, 0
	for seed := uint64(0); pairs < norace.Some(diffPairs); seed++ {
		before, after := drawPair(rand.New(rand.NewPCG(seed, 13))) // the same pairs in each run
		resp := offlineDiff(t, before.String(), after.String())
		if len(resp.GetTotals().GetFindings()) > 0 { // for example a rule that allows what the default allows
			continue
		}
		if pairs++; resp.GetTotals().GetEndedEarly() {
			t.Fatalf("seed %d: the comparison ended early", seed)
		}
		old, next := decider(t, before, now), decider(t, after, now)
		for call := range pairCalls(now) {
			was, is := packedEffects[old(call).Effect], packedEffects[next(call).Effect]
			if was == is {
				continue
			}
			if flips++; !named(resp, &call, was, is) {
				t.Errorf("seed %d: %s by %v, class %q, %s: %v becomes %v, and the comparison has only\n%s\nbefore:\n%safter:\n%s",
					seed, call.Tool, call.Subject.Caller, call.Facts.Category, call.Params, was, is, flipLines(resp.GetFlips()), before, after)
				break
			}
		}
	}
	if t.Logf("%d pairs, %d calls with another result", pairs, flips); flips < norace.Some(minFlips) {
		t.Errorf("only %d results differ", flips)
	}
}

// pairCalls yields all calls that both policies of a pair evaluate.
func pairCalls(now time.Time) func(yield func(engine.Call) bool) {
	return func(yield func(engine.Call) bool) {
		for _, tool := range pairTools {
			for _, caller := range pairCallers {
				for _, facts := range pairClasses {
					for _, params := range pairParams {
						if !yield(engine.Call{Server: "files", Tool: tool, Params: params, Subject: engine.Subject{Caller: caller}, Facts: facts, Now: now}) {
							return
						}
					}
				}
			}
		}
	}
}
