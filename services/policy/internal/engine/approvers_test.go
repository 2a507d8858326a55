package engine_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

func newPrincipal(tenant, name string, groups ...string) engine.Principal {
	return engine.Principal{Tenant: tenant, Name: name, Groups: groups}
}

const (
	noPeople = "give more people a token with role approver or operator"
	noGroup  = noPeople + ", in one of these groups"
)

// TestApprovers_Check checks the errors and warnings about rules for which there are too few approvers.
func TestApprovers_Check(t *testing.T) {
	t.Parallel()
	ask := func(change ...func(*engine.Rule)) engine.Rule {
		r := engine.Rule{Name: "r", Action: engine.ActionRequireApproval}
		for _, c := range change {
			c(&r)
		}
		return r
	}
	quorum := func(n int, groups ...string) func(*engine.Rule) {
		return func(r *engine.Rule) { r.Quorum, r.Approvers = n, groups }
	}
	tenant := func(names ...string) func(*engine.Rule) {
		return func(r *engine.Rule) { r.Match.Tenant = names }
	}
	confirmed := func(r *engine.Rule) { r.SelfConfirm = true }
	signedIn := func(r *engine.Rule) { r.ApproveWith.MaxAge = time.Minute }
	ana, ben, twin := newPrincipal("default", "ana", "finance"), newPrincipal("default", "ben", "finance", "legal"), newPrincipal("acme", "ana", "finance")
	bot := func(owner string, of engine.Principal) engine.OwnedAgent {
		return engine.OwnedAgent{Principal: of, Owner: owner}
	}
	laptop := newPrincipal("default", "laptop", "developers")
	tests := []struct {
		name   string
		people engine.Approvers
		rule   engine.Rule
		want   []engine.ParseError
	}{
		{"enough", engine.Approvers{Deciders: []engine.Principal{ana, ben}}, ask(quorum(2, "finance")), nil},
		{"two tokens of one person", engine.Approvers{Deciders: []engine.Principal{ana, ana}}, ask(quorum(2, "finance")), []engine.ParseError{{
			Message: "can never be approved: it asks for 2 operators or approvers of finance, and there is 1", Suggestion: "that is ana: " + noGroup,
		}}},
		{"members of either group", engine.Approvers{Deciders: []engine.Principal{ana, newPrincipal("default", "carl", "legal")}}, ask(quorum(2, "finance", "legal")), nil},
		{"members of other groups", engine.Approvers{Deciders: []engine.Principal{ana, ben}}, ask(quorum(2, "legal")), []engine.ParseError{{
			Message: "can never be approved: it asks for 2 operators or approvers of legal, and there is 1", Suggestion: "that is ben: " + noGroup,
		}}},
		{"no people", engine.Approvers{}, ask(), []engine.ParseError{{
			Message: "can never be approved: it asks for 1 operator or approver, and there are 0", Suggestion: noPeople,
		}}},
		{"too few without groups", engine.Approvers{Deciders: []engine.Principal{ana, ben}}, ask(quorum(3)), []engine.ParseError{{
			Message: "can never be approved: it asks for 3 operators or approvers, and there are 2", Suggestion: "those are ana, ben: " + noPeople,
		}}},
		{"people of two tenants", engine.Approvers{Deciders: []engine.Principal{ana, twin, newPrincipal("acme", "zoe")}}, ask(quorum(3)), []engine.ParseError{{
			Message: "can never be approved: it asks for 3 operators or approvers, and there are 2", Suggestion: "those are ana, zoe: " + noPeople,
		}}},
		{"a tenant that the rule is not about", engine.Approvers{Deciders: []engine.Principal{ana, ben, twin}}, ask(quorum(2), tenant("ac*")), []engine.ParseError{{
			Message: "can never be approved: it asks for 2 operators or approvers, and there is 1", Suggestion: "that is ana: " + noPeople,
		}}},
		{"the person at the agent", engine.Approvers{}, ask(confirmed), nil},
		{"a sign-in where people can't sign in", engine.Approvers{Deciders: []engine.Principal{ana}}, ask(signedIn), []engine.ParseError{{
			Warning: true, Message: "can never be approved: approve_with asks for people who have signed in, and people can't sign in as operator or approver",
			Suggestion: "set sign_in and people of an issuer (auth.issuers), or remove approve_with",
		}}},
		{"a sign-in where people can sign in", engine.Approvers{OthersMayDecide: true}, ask(signedIn), nil},
		{"a sign-in, but too few people", engine.Approvers{}, ask(signedIn), []engine.ParseError{{
			Message: "can never be approved: it asks for 1 operator or approver, and there are 0", Suggestion: noPeople,
		}}},
		{"a rule that does not ask", engine.Approvers{}, engine.Rule{Name: "r", Action: engine.ActionAllow}, nil},
		{"the owner alone", engine.Approvers{Deciders: []engine.Principal{ana}, Callers: []engine.OwnedAgent{bot("ana", laptop)}}, ask(quorum(1, "finance")), []engine.ParseError{{
			Warning: true, Message: "calls of laptop can't be approved: it asks for 1 operator or approver of finance of their tenant, who are neither the caller nor its owner",
			Suggestion: noGroup,
		}}},
		{"the owner alone, who may", engine.Approvers{Deciders: []engine.Principal{ana}, Callers: []engine.OwnedAgent{bot("ana", laptop)}, OwnersMayApprove: true}, ask(quorum(1, "finance")), nil},
		{"the caller alone", engine.Approvers{Deciders: []engine.Principal{ana}, Callers: []engine.OwnedAgent{bot("", ana)}, OwnersMayApprove: true}, ask(), []engine.ParseError{{
			Warning: true, Message: "calls of ana can't be approved: it asks for 1 operator or approver of their tenant, who are neither the caller nor its owner",
			Suggestion: noPeople,
		}}},
		{"an owner whose agent the rule is not about", engine.Approvers{Deciders: []engine.Principal{ana}, Callers: []engine.OwnedAgent{bot("ana", laptop)}},
			ask(func(r *engine.Rule) { r.Match.Groups = []string{"contractors"} }), nil},
		{"a caller of a tenant without people", engine.Approvers{Deciders: []engine.Principal{ana, ben}, Callers: []engine.OwnedAgent{bot("", newPrincipal("acme", "bot"))}}, ask(quorum(2)), []engine.ParseError{{
			Warning: true, Message: "calls of bot can't be approved: it asks for 2 operators or approvers of their tenant, who are neither the caller nor its owner",
			Suggestion: noPeople,
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := engine.Document{Name: "d", Rules: []engine.Rule{tt.rule}}
			compile(t, d)
			if diff := cmp.Diff(tt.want, tt.people.Check(&d)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestApprovers_CheckNamesTheRule checks that an error contains the index of its rule, and that long lists of people
// are shortened.
func TestApprovers_CheckNamesTheRule(t *testing.T) {
	t.Parallel()
	var p engine.Approvers
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		p.Deciders = append(p.Deciders, newPrincipal("default", name))
	}
	d := engine.Document{Name: "d", Rules: []engine.Rule{
		{Tool: "t", Action: engine.ActionRequireApproval}, {Tool: "u", Action: engine.ActionRequireApproval, Quorum: 8},
	}}
	got := p.Check(&d)
	want := "those are a, b, c, d, e and 2 more: " + noPeople
	if len(got) != 1 || got[0].Rule != 1 || got[0].Suggestion != want {
		t.Errorf("got %+v", got)
	}
}

// TestApprovers_CheckFindsNothingIfOthersMayDecide checks that rules are accepted if people can sign in, because the
// mesh does not know these people.
func TestApprovers_CheckFindsNothingIfOthersMayDecide(t *testing.T) {
	t.Parallel()
	ana := newPrincipal("default", "ana", "finance")
	d := engine.Document{Name: "d", Rules: []engine.Rule{
		{Tool: "t", Action: engine.ActionRequireApproval, Quorum: 3, Approvers: []string{"legal"}}, {Tool: "u", Action: engine.ActionRequireApproval},
	}}
	compile(t, d)
	for name, p := range map[string]engine.Approvers{
		"no people":              {},
		"too few people":         {Deciders: []engine.Principal{ana}},
		"an agent of the person": {Deciders: []engine.Principal{ana}, Callers: []engine.OwnedAgent{{Principal: newPrincipal("default", "bot"), Owner: "ana"}}},
	} {
		if got := p.Check(&d); len(got) == 0 {
			t.Errorf("%s: nothing was found, although no other people may decide", name)
		}
		p.OthersMayDecide = true
		if got := p.Check(&d); len(got) != 0 {
			t.Errorf("%s, and others may decide: found %+v", name, got)
		}
	}
}
