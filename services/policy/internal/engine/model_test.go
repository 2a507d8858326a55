package engine_test

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// The model in this file is a second implementation of decisions, which was written from the documentation. It tries
// every rule and has no index.

// A vote is the result of one rule or of the default for one principal.
type vote struct {
	action   engine.Action
	reason   string
	chain    int
	document string // empty if the default decided
	name     string
	failed   bool // the rule's condition can't be evaluated
}

func modelMatches(patterns []string, texts ...string) bool {
	if len(patterns) == 0 {
		return true
	}
	for _, p := range patterns {
		form := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(p))
		if slices.ContainsFunc(texts, regexp.MustCompile("^(?:"+form+")$").MatchString) {
			return true
		}
	}
	return false
}

func modelApplies(d engine.Document, server string) bool {
	return d.Server == "" || modelMatches([]string{d.Server}, server)
}

// modelScope reports whether m can match tools/call, and whether it can match other methods.
func modelScope(m engine.Match) (tools, methods bool) {
	if m.Prompt != nil || m.URI != nil {
		return false, true
	}
	if m.Method == nil {
		return true, false
	}
	wants := len(m.Tool)+len(m.Category)+len(m.Risk)+len(m.Tags)+len(m.Annotations) > 0
	return modelMatches(m.Method, "tools/call"), !wants && !slices.Equal(m.Method, []string{"tools/call"})
}

// modelMatchesName reports whether a rule matches the prompt or URI of a call.
func modelMatchesName(r engine.Rule, call engine.Call) bool {
	prompt, uri := call.Method == "prompts/get", strings.HasPrefix(call.Method, "resources/")
	if call.Method == "completion/complete" {
		prompt, uri = call.Ref == engine.RefPrompt, call.Ref == engine.RefResource
		if call.Ref == "" {
			return r.Action != engine.ActionAllow
		}
	}
	if r.Match.Prompt != nil {
		return prompt && modelMatches(r.Match.Prompt, call.Tool)
	}
	read := someURIs[call.Tool]
	switch {
	case !uri:
		return false
	case r.Action == engine.ActionAllow:
		return read != nil && modelMatches(r.Match.URI, call.Tool)
	case read == nil:
		return true
	}
	var lower []string
	for _, pattern := range r.Match.URI {
		lower = append(lower, strings.ToLower(pattern))
	}
	return modelMatches(lower, read...)
}

func modelConcerns(d engine.Document, r engine.Rule, call engine.Call, p engine.Principal) bool {
	methods := r.Match.Method
	if named := r.Match.Prompt != nil || r.Match.URI != nil; named && !modelMatchesName(r, call) {
		return false
	} else if methods == nil && named {
		methods = []string{"prompts/get", "resources/*", "completion/complete"}
	} else if methods == nil {
		methods = []string{"tools/call"}
	}
	method := cmp.Or(call.Method, "tools/call")
	if !modelMatches(methods, method) {
		return false
	}
	if about := r.Match; method != "tools/call" && len(about.Tool)+len(about.Category)+len(about.Risk)+len(about.Tags)+len(about.Annotations) > 0 {
		return false
	}
	if r.Tool != "" {
		return modelApplies(d, call.Server) && r.Tool == call.Tool
	}
	m := r.Match
	if method == "tools/call" && (!modelMatchesProperties(r, call.Facts) || !modelMatches(m.Tool, call.Tool)) {
		return false
	}
	return modelApplies(d, call.Server) && modelMatches(m.Server, call.Server) &&
		modelMatches(m.Agent, p.Agent) && modelMatches(m.Principal, p.Name) && modelMatches(m.Groups, p.Groups...) &&
		modelMatches(m.Tenant, p.Tenant)
}

// modelMatchesProperties reports whether a tool has the properties that a rule requires. An unknown property matches
// unless the rule's action is allow.
func modelMatchesProperties(r engine.Rule, f engine.Facts) bool {
	doubt := r.Action != engine.ActionAllow
	one := func(wanted []string, known bool, has ...string) bool {
		if len(wanted) == 0 || !known && doubt {
			return true
		}
		return slices.ContainsFunc(has, func(s string) bool { return slices.Contains(wanted, s) })
	}
	hints := true
	for name, want := range r.Match.Annotations {
		has, known := f.Hints[name]
		hints = hints && (f.Hints == nil && doubt || known && has == want)
	}
	known := f.Category != ""
	return hints && one(r.Match.Category, known, f.Category) && one(r.Match.Risk, known, f.Risk) && one(r.Match.Tags, known, f.Tags...)
}

func modelCallsTool(call engine.Call) bool { return call.Method == "" || call.Method == "tools/call" }

// modelAddByRisk adds the rule for by_risk if by_risk is the strictest default, and if for at least one principal of
// the call no rule with an action matches.
func modelAddByRisk(documents []engine.Document, call engine.Call) []engine.Document {
	var strictest engine.Document
	for _, d := range documents {
		if modelApplies(d, call.Server) && (d.Default > strictest.Default || d.Default == strictest.Default && d.Name < strictest.Name) {
			strictest = d
		}
	}
	if strictest.Default != engine.DefaultByRisk || !modelCallsTool(call) {
		return documents
	}
	for _, p := range principals(call.Subject) {
		acted := false
		for _, d := range documents {
			for _, r := range d.Rules {
				acted = acted || r.Action != engine.ActionNone && modelDecides(d, r, call, p)
			}
		}
		if _, failed := modelFailedAllow(documents, call, p); !acted && !failed {
			return append(slices.Clone(documents), engine.Document{Name: strictest.Name, Rules: []engine.Rule{modelByRisk(call.Facts)}})
		}
	}
	return documents
}

func modelByRisk(f engine.Facts) engine.Rule {
	r := engine.Rule{Name: "default:by_risk", Action: engine.ActionAllow}
	most := map[string]int64{"low": 0, "medium": 30, "high": 10}
	if !f.Believed {
		most = map[string]int64{"low": 30}
	}
	n, allowed := most[f.Risk]
	switch known := f.Risk == "low" || f.Risk == "medium" || f.Risk == "high"; {
	case known && !f.Sure:
		r.Action, r.Reason = engine.ActionRequireApproval, "the tool's definition does not show clearly what the tool does"
	case !allowed:
		r.Action, r.Reason = engine.ActionRequireApproval, "a wrong call of this tool can do much harm"
	case n > 0:
		r.Limits = []engine.RateLimit{{Max: n, Window: time.Minute, Per: []engine.Dimension{engine.PerSession, engine.PerServer, engine.PerTool}}}
	}
	return r
}

func modelName(r engine.Rule) string {
	name := r.Name
	if r.Tool != "" {
		name = "tools." + r.Tool
	}
	if r.Otherwise {
		name += ".otherwise"
	}
	return name
}

func principals(s engine.Subject) []engine.Principal {
	return append([]engine.Principal{s.Caller}, s.Chain...)
}

func modelVotes(documents []engine.Document, call engine.Call) []vote {
	var votes []vote
	for i, p := range principals(call.Subject) {
		fallback := engine.DefaultNone
		acted, opened := false, false
		failed, hasFailed := modelFailedAllow(documents, call, p)
		failed.chain = i
		var own []vote
		for _, d := range documents {
			if modelApplies(d, call.Server) {
				fallback = max(fallback, d.Default)
			}
			for _, r := range d.Rules {
				if r.Action == engine.ActionNone || !modelDecides(d, r, call, p) || hasFailed && r.Name == "default:by_risk" {
					continue
				}
				acted = true
				if as := r; r.Action == engine.ActionRequireApproval {
					as.Action = engine.ActionAllow
					opened = opened || modelConcerns(d, as, call, p) || modelCallsTool(call)
				}
				opened = opened || r.Action != engine.ActionRequireApproval
				declared := vote{action: r.Action, chain: i, document: d.Name, name: modelName(r), failed: modelResult(r, call, p) == condition.Failed}
				if r.Action != engine.ActionHide {
					declared.reason = r.Reason
				}
				own = append(own, declared)
			}
		}
		switch {
		case acted && opened:
			votes = append(votes, own...)
		case hasFailed:
			votes = append(votes, failed)
		case fallback == engine.DefaultAllow && modelCallsTool(call):
			votes = append(votes, vote{action: engine.ActionAllow, chain: i})
		default:
			votes = append(votes, vote{action: engine.ActionDeny, chain: i, reason: modelHint(documents, call, p)})
		}
	}
	// For each principal, the winning vote is determined first. Then the winner among these votes is determined. If two
	// votes are otherwise equal, a rule in a document wins over the rule for a default.
	byRank := func(a, b vote) int {
		reason := func(v vote) int { return min(len(v.reason), 1) }
		ofDefault := func(v vote) int { return strings.Count(v.name, "default:by_risk") }
		ofRule := func(v vote) int { return min(len(v.document), 1) * reason(v) } // a hint does not count as a reason
		failed := func(v vote) int { return strings.Count(fmt.Sprint(v.failed), "true") }
		return cmp.Or(cmp.Compare(b.action, a.action), cmp.Compare(failed(a), failed(b)), cmp.Compare(ofRule(b), ofRule(a)),
			cmp.Compare(a.chain, b.chain), cmp.Compare(ofDefault(a), ofDefault(b)),
			cmp.Compare(a.document, b.document), cmp.Compare(a.name, b.name))
	}
	slices.SortFunc(votes, byRank)
	return votes
}

// modelTerms returns the terms of an approval. It also reports whether the lists of approvers have a group in common.
func modelTerms(documents []engine.Document, call engine.Call) (terms engine.ApprovalTerms, possible bool) {
	var asking []engine.Rule
	failed, covered := false, true
	for _, d := range documents {
		for _, r := range d.Rules {
			if r.Action == engine.ActionRequireApproval && slices.ContainsFunc(principals(call.Subject), func(p engine.Principal) bool {
				return modelDecides(d, r, call, p)
			}) {
				asking = append(asking, r)
				for _, p := range principals(call.Subject) {
					failed = failed || modelDecides(d, r, call, p) && modelResult(r, call, p) == condition.Failed
					if r.Grant.Where != "" && modelDecides(d, r, call, p) {
						covered = covered && someConditions[r.Grant.Where](call, p) == condition.True
					}
				}
			}
		}
	}
	counts, lists := make(map[string]int), 0
	classes, classLists := make(map[string]int), 0
	terms = engine.ApprovalTerms{Quorum: 1, SelfConfirm: true}
	var decide, execute []time.Duration
	var calls []int64
	var within []time.Duration
	var where []string
	critical := true
	harmless := slices.Contains([]string{"read", "write", "execute"}, call.Facts.Category) && slices.Contains([]string{"low", "medium", "high"}, call.Facts.Risk)
	for _, r := range asking {
		covered = covered && (r.Grant.Critical || harmless)
		critical = critical && r.Grant.Critical
		terms.Quorum = max(terms.Quorum, r.Quorum)
		terms.SelfConfirm = terms.SelfConfirm && r.SelfConfirm
		decide = append(decide, r.DecideWithin)
		execute = append(execute, r.ExecuteWithin)
		if age := r.ApproveWith.MaxAge; age > 0 && (terms.ApproveWith.MaxAge == 0 || age < terms.ApproveWith.MaxAge) {
			terms.ApproveWith.MaxAge = age
		}
		if len(r.ApproveWith.ACR) > 0 {
			classLists++
		}
		for _, class := range r.ApproveWith.ACR {
			classes[class]++
		}
		calls = append(calls, r.Grant.Calls)
		within = append(within, r.Grant.Within)
		if r.Grant.Where != "" {
			where = append(where, r.Grant.Where)
		}
		if len(r.Approvers) > 0 {
			lists++
		}
		for _, g := range r.Approvers {
			counts[g]++
		}
	}
	if len(asking) > 0 {
		terms.DecideWithin = modelTime(decide, options.Times.Decide)
		terms.ExecuteWithin = modelTime(execute, options.Times.Execute)
	}
	if len(asking) > 0 && slices.Min(calls) > 0 && covered && !failed {
		slices.Sort(where)
		terms.Where = slices.Compact(where)
		terms.Grant = engine.Grant{Calls: slices.Min(calls), Within: slices.Min(within), Critical: critical}
	}
	for g, n := range counts {
		if n == lists {
			terms.Approvers = append(terms.Approvers, g)
		}
	}
	slices.Sort(terms.Approvers)
	for class, n := range classes {
		if n == classLists {
			terms.ApproveWith.ACR = append(terms.ApproveWith.ACR, class)
		}
	}
	slices.Sort(terms.ApproveWith.ACR)
	return terms, (lists == 0 || len(terms.Approvers) > 0) && (classLists == 0 || len(terms.ApproveWith.ACR) > 0)
}

// modelTime returns the shortest of the given times. A time of 0 is replaced with the configured time. If all are 0, so
// is the result.
func modelTime(given []time.Duration, configured time.Duration) time.Duration {
	if slices.Max(given) == 0 {
		return 0
	}
	for i := range given {
		given[i] = cmp.Or(given[i], configured)
	}
	return slices.Min(given)
}

// modelIdempotent reports whether, for each principal, at least one rule determines the decision, and all rules that do
// so are idempotent.
func modelIdempotent(documents []engine.Document, call engine.Call) bool {
	for _, p := range principals(call.Subject) {
		var declared []bool
		for _, d := range documents {
			for _, r := range d.Rules {
				if r.Action != engine.ActionNone && modelDecides(d, r, call, p) {
					declared = append(declared, r.Idempotent)
				}
			}
		}
		if len(declared) == 0 || slices.Contains(declared, false) {
			return false
		}
	}
	return true
}

// modelLimits returns descriptions of the buckets of all limits. The result is sorted.
func modelLimits(documents []engine.Document, call engine.Call) []string {
	var limits []string
	for _, d := range documents {
		for _, r := range d.Rules {
			weighs := false
			for _, p := range principals(call.Subject) {
				weighs = weighs || modelConcerns(d, r, call, p) && modelResult(r, call, p) != condition.False
				if !weighs {
					continue
				}
				for _, l := range r.Limits {
					limits = append(limits, modelLimit(d, r, l, p, call, false))
					if slices.Contains(l.Per, engine.PerSession) {
						limits = append(limits, modelLimit(d, r, l, p, call, true))
					}
				}
			}
		}
	}
	slices.Sort(limits)
	return slices.Compact(limits)
}

func modelLimit(d engine.Document, r engine.Rule, l engine.RateLimit, p engine.Principal, call engine.Call, capped bool) string {
	total, keys := l.Max, []string{}
	if capped {
		total *= int64(options.SessionCap)
	}
	for _, dim := range l.Per {
		switch dim {
		case engine.PerSession:
			if capped {
				keys = append(keys, "principal "+p.Name)
			} else {
				keys = append(keys, "session "+p.Name+" "+p.Run)
			}
		case engine.PerPrincipal:
			keys = append(keys, "principal "+p.Name)
		case engine.PerAgent:
			keys = append(keys, "agent "+p.Agent)
		case engine.PerOwner:
			keys = append(keys, "owner "+cmp.Or(p.Owner, p.Name))
		case engine.PerTool:
			if modelCallsTool(call) {
				keys = append(keys, "tool "+call.Tool)
			} else {
				keys = append(keys, "method "+call.Method)
			}
		case engine.PerServer:
			keys = append(keys, "server "+call.Server)
		}
	}
	slices.Sort(keys)
	return fmt.Sprintf("%s/%s cap=%t %s %s %v", d.Name, modelName(r), capped, p.Tenant, l.Window, slices.Compact(keys)) +
		fmt.Sprintf(" max=%d", total)
}

func TestDecide_AgreesWithTheModel(t *testing.T) {
	t.Parallel()
	buckets := make(map[string]string) // the description of each bucket, over all runs
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		call.CheckArguments = someChecks[rapid.SampledFrom(slices.Sorted(maps.Keys(someChecks))).Draw(t, "arguments")]
		got := decide(t, documents, call)
		documents = modelAddByRisk(documents, call)
		winner := modelVotes(documents, call)[0]
		terms, possible := modelTerms(documents, call)
		want := engine.Decision{Message: winner.reason, ChainIndex: winner.chain, Rule: engine.RuleRef{Document: winner.document, Rule: winner.name}}
		switch {
		case winner.failed && winner.action == engine.ActionDeny:
			want.Code, want.Message = engine.TypeError, got.Message
			if !strings.Contains(got.Message, "can't be evaluated: ") || !strings.HasSuffix(got.Message, winner.reason) {
				t.Fatalf("the message is %q", got.Message)
			}
		case winner.action == engine.ActionAllow:
			want.Effect = engine.Allow
		case winner.action == engine.ActionRequireApproval && !possible:
			want.Code, want.Message = engine.DeniedByRule, got.Message
		case winner.action == engine.ActionRequireApproval:
			want.Effect, want.Code, want.Approval = engine.RequireApproval, engine.ApprovalRequired, &terms
		case !modelCallsTool(call) && (winner.document == "" || winner.action == engine.ActionHide):
			want.Code = engine.MethodDenied
		case winner.action == engine.ActionHide:
			want.Code, want.Hidden = engine.ToolUnknown, true
		case winner.document == "":
			want.Code = engine.DeniedByDefault
		default:
			want.Code = engine.DeniedByRule
		}
		want.Idempotent = want.Effect != engine.Deny && modelIdempotent(documents, call)
		modelForward(&want, documents, call)
		if want.Code == engine.ScopeMissing {
			want.Message = got.Message // other tests check it
		}
		limits := got.Limits
		got.Limits, got.RuleDigest = nil, [32]byte{}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("Decide (-model +got):\n%s", diff)
		}
		if got.Effect == engine.Deny {
			if limits != nil {
				t.Fatal("a denied call has limits")
			}
			return
		}
		checkLimits(t, modelLimits(documents, call), limits, buckets)
	})
}

// TestDecide_PooledTermsAgreeWithTheModel compares the pooled terms with the model. It uses only rules that require
// approval for every call, so that their terms are combined.
func TestDecide_PooledTermsAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := engine.Document{Name: "d"}
		for i := range rapid.IntRange(1, 4).Draw(t, "rules") {
			r := engine.Rule{Name: fmt.Sprintf("r%d", i), Action: engine.ActionRequireApproval, Idempotent: rapid.Bool().Draw(t, "idempotent")}
			drawTerms(t, &r)
			d.Rules = append(d.Rules, r)
		}
		documents, call := []engine.Document{d}, drawCall(t)
		call.Method, call.Ref, call.Tool = "", "", "t" // the rules concern tools
		got := decide(t, documents, call)
		want, possible := modelTerms(documents, call)
		if !possible {
			if got.Effect != engine.Deny || got.Approval != nil {
				t.Fatalf("Decide gives %v with the terms %v, although the lists of acr have nothing in common", got.Effect, got.Approval)
			}
			return
		}
		if diff := gocmp.Diff(&want, got.Approval); diff != "" {
			t.Fatalf("Decide (-model +got):\n%s", diff)
		}
		if got.Idempotent != modelIdempotent(documents, call) {
			t.Fatalf("idempotent is %t", got.Idempotent)
		}
	})
}

// checkLimits compares the limits of a decision with those of the model. A bucket has one description in all calls.
func checkLimits(t *rapid.T, want []string, got []engine.Limit, buckets map[string]string) {
	if len(want) != len(got) {
		t.Fatalf("%d limits, want %d:\n%+v\n%s", len(got), len(want), got, strings.Join(want, "\n"))
	}
	for _, l := range got {
		start := fmt.Sprintf("%s cap=%t ", l.Rule, l.Cap)
		end := fmt.Sprintf(" max=%d", l.Max)
		if !slices.ContainsFunc(want, func(w string) bool {
			return strings.HasPrefix(w, start) && strings.HasSuffix(w, end) && strings.Contains(w, " "+l.Window.String()+" ")
		}) {
			t.Fatalf("limit %+v is not the model's:\n%s", l, strings.Join(want, "\n"))
		}
	}
	if len(got) == 1 {
		identity, _, _ := strings.Cut(want[0], " max=")
		if earlier, known := buckets[got[0].Bucket]; known && earlier != identity {
			t.Fatalf("one bucket for %s and %s", earlier, identity)
		}
		buckets[got[0].Bucket] = identity
	}
}
