package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// withScopes returns a caller with a JWT of an issuer that has these scopes.
func withScopes(name string, scopes ...string) engine.Principal {
	return engine.Principal{Tenant: "default", Name: name, Issuer: "corp", Client: "cli", Scopes: scopes}
}

// scopeText describes a decision: its effect and code, the rule, the needed and the missing scopes, and the principal.
func scopeText(d engine.Decision) string {
	text := d.Effect.String()
	if d.Code != "" {
		text += " " + string(d.Code)
	}
	if d.Code == engine.ScopeMissing {
		text += fmt.Sprintf(" %s needs %s, lacks %s, principal %d", d.Rule.Rule, strings.Join(d.NeededScopes, "+"), strings.Join(d.MissingScopes, "+"), d.ChainIndex)
	}
	return text
}

func scopeRules() []engine.Rule {
	return []engine.Rule{
		{Tool: "write", Action: engine.ActionAllow, NeedsScope: []string{"repo.write"}},
		{Tool: "pay", Action: engine.ActionRequireApproval, NeedsScope: []string{"pay"}},
		{Tool: "plain", Action: engine.ActionAllow},
		{Tool: "denied", Action: engine.ActionDeny},
		{Name: "audit", Match: engine.Match{Tool: []string{"plain", "write", "denied"}, Principal: []string{"ben"}}, Action: engine.ActionAllow, NeedsScope: []string{"audit", "repo.write"}},
		{Name: "large", Match: engine.Match{Tool: []string{"plain"}}, When: "args.n > 10", Action: engine.ActionAllow, NeedsScope: []string{"large"}},
		{Name: "split", Match: engine.Match{Tool: []string{"split"}}, When: `caller.issuer == ""`, Action: engine.ActionAllow},
		{Name: "split", Match: engine.Match{Tool: []string{"split"}}, When: `caller.issuer == ""`, Otherwise: true, Action: engine.ActionAllow, NeedsScope: []string{"split"}},
		{Name: "reads", Match: engine.Match{Tool: []string{"split"}, Principal: []string{"ben"}}, Action: engine.ActionAllow, NeedsScope: []string{"read"}},
		{Name: "prompts", Match: engine.Match{Method: []string{"prompts/get"}}, Action: engine.ActionAllow, NeedsScope: []string{"prompts"}},
	}
}

func TestScope_MissingScopeIsRefused(t *testing.T) {
	t.Parallel()
	set := compileRules(t, scopeRules()...)
	mesh := engine.Principal{Tenant: "default", Name: "bot"}
	for name, tt := range map[string]struct {
		tool, params string
		caller       engine.Principal
		chain        []engine.Principal
		want         string
	}{
		"the scope":                         {tool: "write", caller: withScopes("ana", "a", "repo.write"), want: "allow"},
		"another scope":                     {tool: "write", caller: withScopes("ana", "repo", "repo.writer"), want: "deny scope_missing tools.write needs repo.write, lacks repo.write, principal 0"},
		"scopes are case-sensitive":         {tool: "write", caller: withScopes("ana", "Repo.Write"), want: "deny scope_missing tools.write needs repo.write, lacks repo.write, principal 0"},
		"a token of the mesh":               {tool: "write", caller: mesh, want: "deny scope_missing tools.write needs repo.write, lacks repo.write, principal 0"},
		"before an approval":                {tool: "pay", caller: withScopes("ana"), want: "deny scope_missing tools.pay needs pay, lacks pay, principal 0"},
		"an approval with the scope":        {tool: "pay", caller: withScopes("ana", "pay"), want: "require_approval approval_required"},
		"no rule needs a scope":             {tool: "plain", params: `{"arguments":{"n":1}}`, caller: mesh, want: "allow"},
		"the scopes of all rules":           {tool: "write", caller: withScopes("ben", "repo.write"), want: "deny scope_missing audit needs audit+repo.write, lacks audit, principal 0"},
		"the first rule that lacks a scope": {tool: "write", caller: withScopes("ben"), want: "deny scope_missing audit needs audit+repo.write, lacks audit+repo.write, principal 0"},
		"all scopes of all rules":           {tool: "write", caller: withScopes("ben", "audit", "repo.write"), want: "allow"},
		"a denial comes first":              {tool: "denied", caller: withScopes("ben"), want: "deny denied_by_rule"},
		"a condition is true":               {tool: "plain", params: `{"arguments":{"n":11}}`, caller: mesh, want: "deny scope_missing large needs large, lacks large, principal 0"},
		"a condition fails":                 {tool: "plain", params: `{"arguments":{}}`, caller: mesh, want: "deny scope_missing large needs large, lacks large, principal 0"},
		"callers without an issuer":         {tool: "split", caller: mesh, want: "allow"},
		"callers with an issuer":            {tool: "split", caller: withScopes("ana"), want: "deny scope_missing split.otherwise needs split, lacks split, principal 0"},
		"an agent of a caller with scopes":  {tool: "write", caller: mesh, chain: []engine.Principal{withScopes("ana", "repo.write")}, want: "deny scope_missing tools.write needs repo.write, lacks repo.write, principal 0"},
		"an agent's creator lacks a scope":  {tool: "split", caller: mesh, chain: []engine.Principal{withScopes("ana")}, want: "deny scope_missing split.otherwise needs split, lacks split, principal 1"},
		"a JWT with a prior actor":          {tool: "write", caller: withScopes("ana"), chain: []engine.Principal{withScopes("ben")}, want: "deny scope_missing tools.write needs audit+repo.write, lacks audit+repo.write, principal 0"},
		"only a prior actor needs more":     {tool: "write", caller: withScopes("ana", "repo.write"), chain: []engine.Principal{withScopes("ben", "repo.write")}, want: "deny scope_missing audit needs audit+repo.write, lacks audit, principal 1"},
		"a JWT with all scopes":             {tool: "write", caller: withScopes("ana", "audit", "repo.write"), chain: []engine.Principal{withScopes("ben", "audit", "repo.write")}, want: "allow"},
		"the creator has a prior actor":     {tool: "split", caller: mesh, chain: []engine.Principal{withScopes("ana"), withScopes("ben")}, want: "deny scope_missing split.otherwise needs read+split, lacks read+split, principal 1"},
		"an agent of an agent":              {tool: "split", caller: mesh, chain: []engine.Principal{mesh, withScopes("ana"), withScopes("ben")}, want: "deny scope_missing split.otherwise needs read+split, lacks read+split, principal 2"},
		"two agents of the mesh":            {tool: "write", caller: mesh, chain: []engine.Principal{{Tenant: "default", Name: "ben"}}, want: "deny scope_missing tools.write needs repo.write, lacks repo.write, principal 0"},
	} {
		call := callOf(tt.tool)
		call.Params, call.Subject = tt.params, engine.Subject{Caller: tt.caller, Chain: tt.chain}
		got := set.Decide(call)
		if diff := cmp.Diff(tt.want, scopeText(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.Effect == engine.Deny && (got.Limits != nil || got.Approval != nil || got.Idempotent || got.RuleDigest == ([32]byte{}) || got.Message == "" && got.Code == engine.ScopeMissing) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	prompt := engine.Call{Method: "prompts/get", Server: "s", Tool: "p", Facts: engine.Facts{Status: engine.Callable}, Subject: ana()}
	if got := scopeText(set.Decide(prompt)); got != "deny scope_missing prompts needs prompts, lacks prompts, principal 0" {
		t.Errorf("a prompt: %s", got)
	}
}

func TestScope_MessageSaysWhatToDo(t *testing.T) {
	t.Parallel()
	set := compileRules(t,
		engine.Rule{Tool: "t", Action: engine.ActionAllow, NeedsScope: []string{"c", "a", "b"}, Reason: "writes need consent"},
		engine.Rule{Name: "agents", Match: engine.Match{Principal: []string{"bot"}, Tool: []string{"u"}}, Action: engine.ActionAllow},
		engine.Rule{Name: "people", Match: engine.Match{Principal: []string{"ana"}, Tool: []string{"u"}}, Action: engine.ActionAllow, NeedsScope: []string{"a"}},
		engine.Rule{Name: "planners", Match: engine.Match{Principal: []string{"planner"}, Tool: []string{"u"}}, Action: engine.ActionAllow, NeedsScope: []string{"b"}},
	)
	for name, tt := range map[string]struct {
		tool    string
		subject engine.Subject
		want    string
	}{
		"a JWT": {
			"t", engine.Subject{Caller: withScopes("ana", "b")},
			"the call needs the OAuth scopes a, b and c, and the token does not have the scopes a and c: sign in again with all scopes that the call needs; writes need consent",
		},
		"a token of the mesh": {
			"t", ana(),
			"the call needs the OAuth scopes a, b and c, and a caller without a JWT of an issuer has no scopes: sign in at an issuer of the mesh, or ask an operator for a rule for such callers; writes need consent",
		},
		"the creator of an agent": {
			"u", engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "bot"}, Chain: []engine.Principal{withScopes("ana")}},
			"the call needs the OAuth scope a, and ana, for whom the caller works, did not have the scope a: create the agent again with a token that has them",
		},
		"a JWT with a prior actor": {
			"u", engine.Subject{Caller: withScopes("ana", "c"), Chain: []engine.Principal{withScopes("planner", "c")}},
			"the call needs the OAuth scopes a and b, and the token does not have the scopes a and b: sign in again with all scopes that the call needs",
		},
		"only the rule of a prior actor": {
			"u", engine.Subject{Caller: withScopes("ana", "a"), Chain: []engine.Principal{withScopes("planner", "a")}},
			"the call needs the OAuth scopes a and b, and the token does not have the scope b: sign in again with all scopes that the call needs",
		},
		"the creator of an agent has a prior actor": {
			"u", engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "bot"}, Chain: []engine.Principal{withScopes("ana", "c"), withScopes("planner", "c")}},
			"the call needs the OAuth scopes a and b, and ana, for whom the caller works, did not have the scopes a and b: create the agent again with a token that has them",
		},
	} {
		call := callOf(tt.tool)
		call.Subject = tt.subject
		if diff := cmp.Diff(tt.want, set.Decide(call).Message); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The catalog's refusals come first, because signing in again would not help. Arguments are checked only if the caller
// has the scopes.
func TestScope_OrderOfTheChecks(t *testing.T) {
	t.Parallel()
	set := compileRules(t, engine.Rule{Tool: "t", Action: engine.ActionAllow, NeedsScope: []string{"a"}, Strict: true})
	call := callOf("t")
	call.CheckArguments = func(string) error { t.Error("the arguments were checked"); return nil }
	if got := set.Decide(call); got.Code != engine.ScopeMissing {
		t.Errorf("%+v", got)
	}
	call.Facts.Status = engine.Quarantined
	if got := set.Decide(call); got.Code != engine.ToolQuarantined {
		t.Errorf("in quarantine: %+v", got)
	}
}

// A tool stays in the caller's list if only a scope is missing, so that the client can sign in again.
func TestScope_ListsStayTheSame(t *testing.T) {
	t.Parallel()
	set := compileRules(t, scopeRules()...)
	for _, tool := range []string{"write", "pay", "split"} {
		if got := set.Visible(engine.Subject{Caller: withScopes("ana")}, "s", tool, callable); !got.Visible {
			t.Errorf("%s: %+v", tool, got)
		}
	}
	if got := set.Access(ana(), "s"); !got.CouldAllow || !got.CouldList {
		t.Errorf("%+v", got)
	}
	if !set.ShowsEntry(ana(), "s", engine.EntryPrompt, "p", callable) {
		t.Error("the prompt is not listed")
	}
	access := set.ToolAccess(ana(), "s", "write", callable)
	if got := scopeText(access.Cases[0].Decision); !access.Visible || len(access.Cases) != 1 || got != "deny scope_missing tools.write needs repo.write, lacks repo.write, principal 0" {
		t.Errorf("%s, %+v", got, access)
	}
}

func TestScope_ExplanationShowsTheScopes(t *testing.T) {
	t.Parallel()
	set := compileRules(t, scopeRules()...)
	call := callOf("write")
	call.Subject.Caller = withScopes("ana", "x", "y")
	e := set.Explain(call)
	at := slices.IndexFunc(e.Rules, func(r engine.ConsideredRule) bool { return r.Rule.Rule == "tools.write" })
	want := engine.Check{Name: "needs_scope", Want: "repo.write", Got: "x, y"}
	if at < 0 || !e.Rules[at].Matched || !slices.Contains(e.Rules[at].Checks, want) {
		t.Errorf("%+v", e.Rules)
	}
	if !strings.HasPrefix(e.Why, "The strictest action of the rules that match is allow, but the call needs the OAuth scope repo.write") {
		t.Error(e.Why)
	}
}

// Under mode: observe, a missing scope refuses no call and is recorded. No client is asked to request these scopes.
func TestScope_ObservedRulesNeedNoScope(t *testing.T) {
	t.Parallel()
	now := time.Now()
	until := now.Add(time.Hour)
	rules := []engine.Rule{
		{Tool: "plain", Action: engine.ActionAllow},
		{Name: "draft", Match: engine.Match{Tool: []string{"plain"}}, Action: engine.ActionAllow, NeedsScope: []string{"a"}, ObserveUntil: until},
		{Tool: "write", Action: engine.ActionAllow, NeedsScope: []string{"b"}},
	}
	observed := options
	observed.Now = now
	set, err := engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultDeny, Rules: rules}}, observed)
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Decide(callOf("plain")); got.Effect != engine.Allow || got.Observed == nil || got.Observed.Code != engine.ScopeMissing {
		t.Errorf("an observed rule: %+v", got)
	}
	if got := set.NeededScopes("s"); !slices.Equal(got, []string{"b"}) {
		t.Errorf("the needed scopes are %q", got)
	}
	observed.Observe = engine.Observe{Servers: map[string]time.Time{"s": until}}
	if set, err = engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultDeny, Rules: rules}}, observed); err != nil {
		t.Fatal(err)
	}
	if got := set.Decide(callOf("write")); got.Effect != engine.Allow || got.Observed == nil || got.Observed.Code != engine.ScopeMissing {
		t.Errorf("an observed server: %+v", got)
	}
	if got := set.NeededScopes("s"); got != nil {
		t.Errorf("an observed server needs %q", got)
	}
}

func TestNeededScopes_OfTheRulesForTheServer(t *testing.T) {
	t.Parallel()
	rule := func(name string, scopes ...string) engine.Rule {
		return engine.Rule{Name: name, Match: engine.Match{Tool: []string{name}}, Action: engine.ActionAllow, NeedsScope: scopes}
	}
	elsewhere := rule("e", "elsewhere")
	elsewhere.Match.Server = []string{"other-*"}
	set := compile(t,
		engine.Document{Name: "all", Rules: []engine.Rule{rule("a", "z", "all"), elsewhere}},
		engine.Document{Name: "one", Server: "one", Rules: []engine.Rule{rule("b", "all", "one")}},
	)
	for server, want := range map[string]string{"one": "all one z", "two": "all z", "other-1": "all elsewhere z"} {
		if got := strings.Join(set.NeededScopes(server), " "); got != want {
			t.Errorf("%s needs %q, want %q", server, got, want)
		}
	}
}

func TestCompile_FailsForTooManyScopes(t *testing.T) {
	t.Parallel()
	documents := func(count, length int) []engine.Document {
		d := engine.Document{Name: "d"}
		for i := range count {
			d.Rules = append(d.Rules, engine.Rule{Name: fmt.Sprintf("r%d", i), Action: engine.ActionAllow, NeedsScope: []string{fmt.Sprintf("%0*d", length, i)}})
		}
		return []engine.Document{d, {Name: "e", Rules: slices.Clone(d.Rules)}} // the second document has the same scopes
	}
	for name, tt := range map[string]struct {
		count, length int
		fails         bool
	}{
		"most scopes":    {engine.MaxScopes, 63, false},
		"one too many":   {engine.MaxScopes + 1, 2, true},
		"too many bytes": {engine.MaxScopes, 64, true},
	} {
		_, err := engine.Compile(documents(tt.count, tt.length), options)
		if (err != nil) != tt.fails || err != nil && !strings.Contains(err.Error(), "let rules share scopes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The callers that a comparison tries include callers with a JWT, without and with the scopes of a rule.
func TestMentionedCallers_HaveTheScopesOfRules(t *testing.T) {
	t.Parallel()
	documents := []engine.Document{{Name: "d", Rules: []engine.Rule{
		{Name: "any", Action: engine.ActionAllow, NeedsScope: []string{"a"}},
		{Name: "ops", Match: engine.Match{Groups: []string{"ops"}}, Action: engine.ActionAllow, NeedsScope: []string{"b"}},
	}}}
	var got []string
	all, _ := engine.MentionedCallers(documents, 100)
	for _, s := range all {
		got = append(got, fmt.Sprint(s.Caller.Issuer, s.Caller.Groups, s.Caller.Scopes))
	}
	for _, want := range []string{"[] []", "any-issuer[] []", "any-issuer[] [a]", "[ops] []", "any-issuer[ops] []", "any-issuer[ops] [b]", "any-issuer[ops] [a b]"} {
		if !slices.Contains(got, want) {
			t.Errorf("no caller is %q: %q", want, got)
		}
	}
}
