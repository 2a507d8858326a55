package engine_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// These lists are short, so that documents and calls often match.
var (
	someServers = []string{"", "", "s", "st", "s*", "?"}
	someTools   = []string{"t", "tu", "t.u", "u"}
	somePattern = []string{"t", "t*", "*u", "?", "t?u", "*"}
	someNames   = []string{"ana", "ben", "bot"}
	someGroups  = []string{"ops", "dev"}
	someTags    = []string{"hidden-text", "mine"}
	someMethods = []string{"tools/call", "prompts/get", "resources/read", "completion/complete", "x"}
	somePrompts = []string{"p", "pq", "q"}
)

// someURIs maps each URI to the lower-case URIs that servers could interpret it as. The value is nil if the URI is not
// plain.
var someURIs = map[string][]string{
	"a:x/y":   {"a:x/y", "a:x/y/"},
	"a:x/y/":  {"a:x/y", "a:x/y/"},
	"a:x/y?q": {"a:x/y?q", "a:x/y", "a:x/y/"},
	"a:X/y":   {"a:x/y", "a:x/y/"},
	"b:z":     {"b:z", "b:z/"},
	"A:x/y":   nil,
	"a:x/./y": nil,
	"a:%78/y": nil,
	"":        nil,
}

func drawRule(t *rapid.T, name string) engine.Rule {
	r := engine.Rule{
		Name:   name,
		Action: engine.Action(rapid.IntRange(0, 4).Draw(t, "action")),
		Reason: rapid.SampledFrom([]string{"", "", "because"}).Draw(t, "reason"),
	}
	if rapid.Bool().Draw(t, "entry") {
		r.Name, r.Tool = "", rapid.SampledFrom(someTools).Draw(t, "tool")
	} else {
		r.Match = engine.Match{
			Tool:      drawSome(t, "match tool", somePattern, 2),
			Server:    drawSome(t, "match server", someServers[2:], 1),
			Principal: drawSome(t, "match principal", []string{"ana", "b*"}, 1),
			Groups:    drawSome(t, "match groups", []string{"ops", "d?v"}, 1),
			Agent:     drawSome(t, "match agent", []string{"ci*"}, 1),
			Tenant:    drawSome(t, "match tenant", []string{"acme"}, 1),
			Category:  drawSome(t, "match category", engine.Categories(), 1),
			Risk:      drawSome(t, "match risk", engine.Risks(), 2),
			Tags:      drawSome(t, "match tags", someTags, 1),
		}
		r.Match.Method = drawMethods(t, &r.Match)
		named := drawNaming(t, &r.Match)
		for _, name := range drawSome(t, "match annotations", []string{"readOnlyHint", "openWorldHint"}, 1) {
			if named || r.Match.Method != nil && !modelMatches(r.Match.Method, "tools/call") {
				break
			}
			r.Match.Annotations = map[string]bool{name: rapid.Bool().Draw(t, name)}
		}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "limits") {
		r.Limits = append(r.Limits, engine.RateLimit{
			Max: rapid.Int64Range(1, 3).Draw(t, "max"), Window: time.Duration(i+1) * time.Second,
			Per: append(drawSome(t, "per", []engine.Dimension{1, 2, 3, engine.PerOwner}, 2), engine.PerTool),
		})
	}
	_, methods := modelScope(r.Match)
	if methods && r.Action == engine.ActionRequireApproval { // only some methods can require approval
		switch {
		case r.Match.Prompt != nil:
			r.Match.Method = []string{"prompts/get"}
		case r.Match.URI != nil:
			r.Match.Method = []string{"resources/read"}
		default:
			r.Match.Method = append(drawSome(t, "match only some", []string{"tools/call", "resources/read"}, 2), "prompts/get")
		}
	}
	if r.Action == engine.ActionRequireApproval {
		r.Approvers = drawSome(t, "approvers", []string{"x", "y", "z"}, 3)
		r.Quorum = rapid.IntRange(0, 3).Draw(t, "quorum")
		drawTerms(t, &r)
		if methods {
			r.Grant = engine.Grant{}
		}
	}
	if r.Action == engine.ActionRequireApproval || r.Action == engine.ActionAllow {
		r.Idempotent = rapid.Bool().Draw(t, "idempotent")
	}
	drawForward(t, &r)
	if r.Action == engine.ActionNone && r.Limits == nil {
		r.Action = engine.ActionAllow
	}
	drawCondition(t, &r)
	return r
}

// drawMethods draws patterns for methods. If the rule has keys that concern tools, one of the patterns matches
// tools/call, because otherwise the document would have an error.
func drawMethods(t *rapid.T, m *engine.Match) []string {
	methods := drawSome(t, "match method", []string{"tools/call", "*", "prompts/*", "resources/read", "t*"}, 2)
	if len(methods) > 0 && !modelMatches(methods, "tools/call") && len(m.Tool)+len(m.Category)+len(m.Risk)+len(m.Tags) > 0 {
		return nil
	}
	return methods
}

// drawNaming adds prompts or URIs to a randomly chosen quarter of the matches, and reports whether it added any.
func drawNaming(t *rapid.T, m *engine.Match) bool {
	switch rapid.IntRange(0, 7).Draw(t, "names") {
	case 0:
		m.Prompt = append(drawSome(t, "match prompt", []string{"p*", "q"}, 1), "p")
		m.Method = drawSome(t, "match method of prompts", []string{"prompts/*", "completion/complete"}, 1)
	case 1:
		m.URI = append(drawSome(t, "match uri", []string{"a:x/*", "b:?", "*", "a:X*"}, 1), "a:x/y")
		m.Method = drawSome(t, "match method of resources", []string{"resources/*", "completion/complete", "*"}, 1)
	default:
		return false
	}
	m.Tool, m.Category, m.Risk, m.Tags = nil, nil, nil, nil
	return true
}

// drawNamed draws the prompt or URI of a call.
func drawNamed(t *rapid.T, call *engine.Call) {
	call.Ref = ""
	if call.Method == "completion/complete" {
		call.Ref = rapid.SampledFrom([]string{engine.RefPrompt, engine.RefResource, ""}).Draw(t, "ref")
	}
	switch {
	case call.Method == "prompts/get", call.Ref == engine.RefPrompt:
		call.Tool = rapid.SampledFrom(somePrompts).Draw(t, "prompt")
	case call.Method == "resources/read", call.Ref == engine.RefResource:
		call.Tool = rapid.SampledFrom(slices.Sorted(maps.Keys(someURIs))).Draw(t, "uri")
	}
}

// drawTerms draws the time limits of an approval, and either self-confirmation, a grant, or neither.
func drawTerms(t *rapid.T, r *engine.Rule) {
	times := []time.Duration{0, time.Second, time.Minute, time.Hour}
	r.DecideWithin = rapid.SampledFrom(times).Draw(t, "decide within")
	r.ExecuteWithin = rapid.SampledFrom(times).Draw(t, "execute within")
	if rapid.Bool().Draw(t, "self confirm") {
		r.Approvers, r.Quorum, r.SelfConfirm = nil, 0, true
		return
	}
	if rapid.Bool().Draw(t, "signed in") {
		r.ApproveWith.MaxAge = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "max age")
		r.ApproveWith.ACR = drawSome(t, "acr", []string{"phr", "phrh"}, 2)
	}
	if rapid.Bool().Draw(t, "granted") {
		r.Grant = engine.Grant{
			Calls: rapid.Int64Range(1, 3).Draw(t, "calls"), Within: rapid.SampledFrom(times[1:]).Draw(t, "within"), Critical: rapid.Bool().Draw(t, "critical"),
			Where: rapid.SampledFrom([]string{"", "", "args.n == 1", `caller.agent == "ci-1"`, "args.?ok.orValue(false) == true"}).Draw(t, "where"),
		}
	}
}

func drawSome[T cmp.Ordered](t *rapid.T, label string, from []T, most int) []T {
	list := rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, most, func(v T) T { return v }).Draw(t, label)
	if len(list) == 0 {
		return nil
	}
	return list
}

func drawDocuments(t *rapid.T, prefix string) []engine.Document {
	documents := make([]engine.Document, rapid.IntRange(0, 3).Draw(t, "documents"))
	for i := range documents {
		documents[i] = engine.Document{
			Name:    fmt.Sprintf("%s%d", prefix, i),
			Server:  rapid.SampledFrom(someServers).Draw(t, "server"),
			Default: engine.Default(rapid.IntRange(0, 3).Draw(t, "default")),
		}
		for j := range rapid.IntRange(0, 5).Draw(t, "rules") {
			documents[i].Rules = withRule(documents[i].Rules, drawRule(t, fmt.Sprintf("r%d", j)))
		}
		removeUseless(&documents[i])
	}
	return documents
}

// removeTwins keeps only the first of several rules with the same name.
func removeTwins(d *engine.Document) {
	var kept []engine.Rule
	for _, r := range d.Rules {
		kept = withRule(kept, r)
	}
	d.Rules = kept
}

// withRule adds a rule, unless the list already contains a rule with the same name.
func withRule(rules []engine.Rule, r engine.Rule) []engine.Rule {
	if slices.ContainsFunc(rules, func(o engine.Rule) bool { return modelName(o) == modelName(r) }) {
		return rules
	}
	return append(slices.Clip(rules), r)
}

func drawPrincipal(t *rapid.T) engine.Principal {
	return engine.Principal{
		Tenant: rapid.SampledFrom([]string{"default", "acme"}).Draw(t, "tenant"),
		Name:   rapid.SampledFrom(someNames).Draw(t, "name"),
		Agent:  rapid.SampledFrom([]string{"", "ci-1"}).Draw(t, "agent"),
		Owner:  rapid.SampledFrom([]string{"", "", "ana", "olga"}).Draw(t, "owner"),
		Groups: drawSome(t, "groups", someGroups, 2),
		Run:    rapid.SampledFrom([]string{"", "1"}).Draw(t, "run"),
		Scopes: someScopes, // drawScopes removes some of them
	}
}

// someScopes contains the scopes that rules need.
var someScopes = []string{"s1", "s2"}

// drawScopes removes scopes from some of the principals of a call, and draws which of them come from a JWT. Principals
// next to each other can come from the same JWT.
func drawScopes(t *rapid.T, call *engine.Call) {
	draw := func(p *engine.Principal) {
		p.Scopes = rapid.SampledFrom([][]string{someScopes, someScopes, someScopes[:1], nil}).Draw(t, "scopes")
		p.Issuer = rapid.SampledFrom([]string{"", "corp"}).Draw(t, "issuer")
	}
	draw(&call.Subject.Caller)
	before := &call.Subject.Caller
	for i := range call.Subject.Chain {
		p := &call.Subject.Chain[i]
		if draw(p); rapid.Bool().Draw(t, "the same token") {
			p.Issuer, p.Scopes = before.Issuer, before.Scopes
		}
		before = p
	}
}

func drawCall(t *rapid.T) engine.Call {
	call := engine.Call{
		Method:  rapid.SampledFrom(append([]string{"", "", ""}, someMethods...)).Draw(t, "method"),
		Facts:   drawFacts(t),
		Server:  rapid.SampledFrom([]string{"s", "st", "z"}).Draw(t, "call server"),
		Tool:    rapid.SampledFrom(someTools).Draw(t, "call tool"),
		Params:  rapid.SampledFrom(slices.Sorted(maps.Keys(someParams))).Draw(t, "params"),
		Subject: engine.Subject{Caller: drawPrincipal(t)},
	}
	for range rapid.IntRange(0, 2).Draw(t, "chain") {
		call.Subject.Chain = append(call.Subject.Chain, drawPrincipal(t))
	}
	drawNamed(t, &call)
	call.CheckArguments = someChecks["valid"]
	return call
}

// drawFacts draws facts about a callable tool.
func drawFacts(t *rapid.T) engine.Facts {
	f := engine.Facts{Status: engine.Callable}
	if rapid.Bool().Draw(t, "is classed") {
		f.Category = rapid.SampledFrom(engine.Categories()).Draw(t, "category")
		f.Risk = rapid.SampledFrom(engine.Risks()).Draw(t, "risk")
		f.Tags = drawSome(t, "tags", someTags, 2)
		f.Believed = rapid.Bool().Draw(t, "believed")
		f.Sure = rapid.Bool().Draw(t, "sure")
	}
	if rapid.Bool().Draw(t, "is trusted") {
		f.Hints = map[string]bool{"readOnlyHint": rapid.Bool().Draw(t, "reads"), "openWorldHint": true}
	}
	return f
}

// byDefault reports whether a default determined the decision. It also returns true if the call was denied because the
// condition of a rule that allows calls could not be evaluated. Without that rule, a default would have determined the
// decision.
func byDefault(documents []engine.Document, d engine.Decision) bool {
	if d.Rule.IsZero() || d.Rule.Rule == "default:by_risk" {
		return true
	}
	return d.Code == engine.TypeError && slices.ContainsFunc(documents, func(o engine.Document) bool {
		return o.Name == d.Rule.Document && slices.ContainsFunc(o.Rules, func(r engine.Rule) bool {
			return modelName(r) == d.Rule.Rule && r.Action == engine.ActionAllow
		})
	})
}

func decide(t *rapid.T, documents []engine.Document, call engine.Call) engine.Decision {
	set, err := engine.Compile(documents, options)
	if err != nil {
		t.Fatal(err)
	}
	return set.Decide(call)
}

// strictness returns a number that is greater for stricter decisions. The order is allow, require approval, deny, hide.
func strictness(d engine.Decision) int {
	switch {
	case d.Hidden:
		return 3
	case d.Effect == engine.Deny:
		return 2
	case d.Effect == engine.RequireApproval:
		return 1
	default:
		return 0
	}
}

// easierTerm returns the name of an approval term that is easier to satisfy in b than in a. It returns "" if there is
// no such term.
func easierTerm(a, b *engine.ApprovalTerms) string {
	decide := func(t *engine.ApprovalTerms) time.Duration { return cmp.Or(t.DecideWithin, options.Times.Decide) }
	execute := func(t *engine.ApprovalTerms) time.Duration { return cmp.Or(t.ExecuteWithin, options.Times.Execute) }
	foreign := func(g string) bool { return !slices.Contains(a.Approvers, g) }
	switch {
	case b.Quorum < a.Quorum:
		return "the quorum"
	case len(a.Approvers) > 0 && (len(b.Approvers) == 0 || slices.ContainsFunc(b.Approvers, foreign)):
		return "the approvers"
	case decide(b) > decide(a):
		return "the time to decide"
	case execute(b) > execute(a):
		return "the time to execute"
	case b.SelfConfirm && !a.SelfConfirm:
		return "the confirmation"
	case b.Grant.Calls > a.Grant.Calls || b.Grant.Within > a.Grant.Within:
		return "the grant"
	case a.ApproveWith.MaxAge > 0 && (b.ApproveWith.MaxAge == 0 || b.ApproveWith.MaxAge > a.ApproveWith.MaxAge):
		return "the age of the authentication"
	case len(a.ApproveWith.ACR) > 0 && (len(b.ApproveWith.ACR) == 0 || slices.ContainsFunc(b.ApproveWith.ACR, func(c string) bool { return !slices.Contains(a.ApproveWith.ACR, c) })):
		return "the class of the authentication"
	default:
		return ""
	}
}

// decidedByRules reports whether, for every principal of the call, rules determine the decision and no default applies.
func decidedByRules(t *rapid.T, documents []engine.Document, call engine.Call) bool {
	for _, p := range append([]engine.Principal{call.Subject.Caller}, call.Subject.Chain...) {
		alone := call
		alone.Subject = engine.Subject{Caller: p}
		if byDefault(documents, decide(t, documents, alone)) {
			return false
		}
	}
	return true
}

// checkTerms fails the test if the stricter set makes approval easier. It also fails the test if a call becomes
// idempotent that was not idempotent before. Both checks are made only if the parameter ruled is true, which means that
// rules and no default determined the decision before.
func checkTerms(t *rapid.T, before, after engine.Decision, ruled bool) {
	if before.Approval != nil && after.Approval != nil && ruled {
		if easier := easierTerm(before.Approval, after.Approval); easier != "" {
			t.Fatalf("%s is easier:\n%+v\n%+v", easier, before.Approval, after.Approval)
		}
	}
	if after.Idempotent && !before.Idempotent && before.Effect != engine.Deny && ruled {
		t.Fatalf("the call may be sent again:\n%+v\n%+v", before, after)
	}
}

func TestDecide_IsIndependentOfOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		one, err := engine.Compile(documents, options)
		if err != nil {
			t.Fatal(err)
		}
		shuffled := rapid.Permutation(documents).Draw(t, "order of documents")
		for i := range shuffled {
			shuffled[i].Rules = rapid.Permutation(shuffled[i].Rules).Draw(t, "order of rules")
		}
		two, err := engine.Compile(shuffled, options)
		if err != nil {
			t.Fatal(err)
		}
		if one.Revision() != two.Revision() {
			t.Error("order changes the revision")
		}
		if diff := gocmp.Diff(one.Explain(call), two.Explain(call)); diff != "" {
			t.Errorf("order changes the answer:\n%s", diff)
		}
	})
}

// TestDecide_AddedRulesOnlyTighten checks that adding a rule never makes a decision by another rule less strict, and
// that no limit is lost. The added rule may allow more only if a default determined the decision before.
func TestDecide_AddedRulesOnlyTighten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		before := decide(t, documents, call)
		rule := drawRule(t, "added")
		more := slices.Clone(documents)
		if len(more) > 0 && rapid.Bool().Draw(t, "to a document that is there") {
			i := rapid.IntRange(0, len(more)-1).Draw(t, "document")
			if more[i].Default == engine.DefaultAllow && rule.Action == engine.ActionAllow {
				removeCondition(&rule)
			}
			more[i].Rules = withRule(more[i].Rules, rule)
		} else {
			more = append(more, engine.Document{Name: "z", Server: rapid.SampledFrom(someServers).Draw(t, "server"), Rules: []engine.Rule{rule}})
		}
		after := decide(t, more, call)
		lenient := byDefault(documents, before) && (rule.Action == engine.ActionAllow || rule.Action == engine.ActionRequireApproval)
		if strictness(after) < strictness(before) && !lenient {
			t.Fatalf("adding %+v turns\n%+v into\n%+v", rule, before, after)
		}
		if rule.Action >= engine.ActionDeny && strictness(after) < strictness(before) {
			t.Fatalf("adding a denial lets more through:\n%+v\n%+v", before, after)
		}
		checkTerms(t, before, after, decidedByRules(t, documents, call))
		if before.Effect != engine.Deny && after.Effect != engine.Deny {
			for _, l := range before.Limits {
				if l.Rule.Rule != "default:by_risk" && !slices.ContainsFunc(after.Limits, func(o engine.Limit) bool { return o.Bucket == l.Bucket }) {
					t.Fatalf("adding %+v loses the limit %+v", rule, l)
				}
			}
		}
	})
}

// TestDecide_MergedSetsDenyWhatEitherDenies checks that a merged set never allows a call that a rule in one of the two
// original sets denies.
func TestDecide_MergedSetsDenyWhatEitherDenies(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, two, call := drawDocuments(t, "a"), drawDocuments(t, "b"), drawCall(t)
		drawScopes(t, &call)
		merged := decide(t, slices.Concat(one, two), call)
		for _, documents := range [][]engine.Document{one, two} {
			own := decide(t, documents, call)
			if !byDefault(documents, own) && strictness(merged) < strictness(own) {
				t.Fatalf("merging turns\n%+v into\n%+v", own, merged)
			}
			checkTerms(t, own, merged, decidedByRules(t, documents, call))
		}
	})
}

func TestDecide_ChainsOnlyTighten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		alone := call
		alone.Subject.Chain = nil
		with, without := decide(t, documents, call), decide(t, documents, alone)
		if strictness(with) < strictness(without) {
			t.Fatalf("a chain turns\n%+v into\n%+v", without, with)
		}
		checkTerms(t, without, with, true)
		if with.Effect == engine.Deny {
			return
		}
		for _, l := range without.Limits {
			if !slices.ContainsFunc(with.Limits, func(o engine.Limit) bool { return o.Bucket == l.Bucket }) {
				t.Fatalf("a chain loses the limit %+v", l)
			}
		}
	})
}

func TestVisible_AgreesWithDecide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		set, call := drawSet(t), drawCall(t)
		call.Method, call.Ref = "", "" // Visible concerns only tools
		d, got := set.Decide(call), set.Visible(call.Subject, call.Server, call.Tool, call.Facts)
		if !got.Visible && d.Effect != engine.Deny || d.Hidden && got.Visible {
			t.Fatalf("Visible = %+v, but the decision is %+v", got, d)
		}
		if set.EvaluatesConditions(call) { // the visibility may be the one of other arguments
			return
		}
		want := engine.Visibility{Visible: d.Effect != engine.Deny || modelSpeaks(d), Rule: d.Rule}
		if d.Effect != engine.Allow {
			want.Code = d.Code
		}
		if got != want {
			t.Fatalf("Visible = %+v, but the decision is %+v", got, d)
		}
	})
}
