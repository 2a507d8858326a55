package issuer_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// delegating changes an issuer so that it accepts actors.
func delegating(i *identityv1.Issuer) { i.Delegation = true }

// act returns the claim `act` of an actor. The names are those of the current actor, followed by the prior actors.
func act(names ...string) object {
	var out object
	for _, name := range slices.Backward(names) {
		outer := object{"sub": name}
		if out != nil {
			outer["act"] = out
		}
		out = outer
	}
	return out
}

// delegated returns the principal of an actor who acts for corp/ana.
func delegated(name string, chain ...*identityv1.Principal) *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "default", Subject: "act:corp/" + name + "/corp/ana", Agent: name, Owner: "corp/ana", Person: "corp/ana", Actor: "corp/" + name,
		Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Issuer: "corp", Chain: chain,
	}
}

func TestDelegation_TheActorIsTheAgentAndPriorActorsAreTheChain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		act  object
		want *identityv1.Principal
	}{
		"one actor":           {act("bot"), delegated("bot")},
		"one prior actor":     {act("bot", "planner"), delegated("bot", delegated("planner"))},
		"four prior actors":   {act("bot", "p1", "p2", "p3", "p4"), delegated("bot", delegated("p1"), delegated("p2"), delegated("p3"), delegated("p4"))},
		"the issuer is named": {object{"sub": "bot", "iss": "https://login.example.com"}, delegated("bot")},
		"other claims":        {object{"sub": "bot", "exp": 1, "aud": 2, "groups": []string{"admins"}, "scope": "all", "tenant": "acme"}, delegated("bot")},
	} {
		p, refusal := verified(t, delegating, object{"act": test.act})
		if refusal != nil {
			t.Errorf("%s: %v", name, refusal)
		} else if diff := cmp.Diff(test.want, p, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The claims of the token apply to the person. The principals of all actors have them, and the groups of the
// configuration. An actor does not get groups of its own subject.
func TestDelegation_ActorsHaveTheGroupsAndScopesOfThePerson(t *testing.T) {
	t.Parallel()
	change := func(i *identityv1.Issuer) {
		delegating(i)
		i.GroupsClaim, i.Owner = "/groups", i.GetSubject()
		i.AgentClaim, i.Agents = "/act/sub", map[string]string{"id-1": "bot", "id-2": "planner"}
		i.SubjectGroups = map[string]*identityv1.SubjectGroups{
			"corp/ana": {Groups: []string{"contractors"}}, "corp/id-1": {Groups: []string{"admins"}}, "act:corp/id-2/corp/ana": {Groups: []string{"watched"}},
		}
	}
	p, refusal := verified(t, change, object{
		"act": act("id-1", "id-2"), "groups": []string{"sre"}, "scope": "mcp", "client_id": "c1", "aud": "https://mcp.example.com/mcp/github",
	})
	if refusal != nil {
		t.Fatal(refusal)
	}
	want := func(agent, actor string, groups ...string) *identityv1.Principal {
		return &identityv1.Principal{
			Tenant: "default", Subject: "act:corp/" + actor + "/corp/ana", Agent: agent, Owner: "corp/ana", Person: "corp/ana", Actor: "corp/" + actor, Groups: groups,
			Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Issuer: "corp", Client: "c1", Scopes: []string{"mcp"}, Servers: []string{"github"},
		}
	}
	all := want("bot", "id-1", "contractors", "sre")
	all.Chain = []*identityv1.Principal{want("planner", "id-2", "contractors", "sre", "watched")}
	if diff := cmp.Diff(all, p, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p, refusal := verified(t, change, object{"groups": []string{"sre"}}); refusal == nil {
		t.Errorf("a token without an actor: accepted as %v, although its agent is not known", p)
	}
}

// Limits and blocks apply to the person, and to the person's agents.
func TestDelegation_UsageCountsForThePersonAndTheChain(t *testing.T) {
	t.Parallel()
	p, refusal := verified(t, delegating, object{"act": act("bot", "planner")})
	if refusal != nil {
		t.Fatal(refusal)
	}
	accounts := principal.AccountsOf(p)
	var got []string
	for _, one := range accounts.All() {
		got = append(got, one.Subject)
	}
	want := []string{"act:corp/bot/corp/ana", "corp/ana", "act:corp/planner/corp/ana"}
	if !slices.Equal(got, want) || accounts.Root().Subject != "corp/ana" {
		t.Errorf("the accounts are %q, the root is %q; want %q and corp/ana", got, accounts.Root().Subject, want)
	}
}

// A token without an actor is mapped as without delegation. The claim `may_act` gives no rights (RFC 8693, section 4.4).
func TestDelegation_TokensWithoutAnActorAreMappedAsBefore(t *testing.T) {
	t.Parallel()
	want, refusal := verified(t, nil, nil)
	if refusal != nil {
		t.Fatal(refusal)
	}
	for name, changes := range map[string]object{
		"no actor": nil, "may_act": {"may_act": act("bot")}, "may_act is a text": {"may_act": "bot"},
	} {
		for _, change := range []func(*identityv1.Issuer){nil, delegating} {
			p, refusal := verified(t, change, changes)
			if diff := cmp.Diff(want, p, protocmp.Transform()); refusal != nil || diff != "" {
				t.Errorf("%s: %v (-want +got):\n%s", name, refusal, diff)
			}
		}
	}
}

func TestDelegation_RefusesActorsThatCanNotBeMapped(t *testing.T) {
	t.Parallel()
	listed := func(i *identityv1.Issuer) {
		delegating(i)
		i.AgentClaim, i.Agents = "/act/sub", map[string]string{"bot": "bot"}
	}
	named := func(i *identityv1.Issuer) { i.AgentClaim, i.AgentNamedByClaim = "/act/sub", true }
	bare := func(i *identityv1.Issuer) { delegating(i); i.Subject = "{/sub}" }
	for name, test := range map[string]struct {
		change func(*identityv1.Issuer)
		act    any
	}{
		"the issuer has no delegation":      {nil, act("bot")},
		"no delegation, but named actors":   {named, act("bot")},
		"act is a text":                     {delegating, "bot"},
		"act is a list":                     {delegating, []any{act("bot")}},
		"act is true":                       {delegating, true},
		"no sub":                            {delegating, object{"iss": "https://login.example.com"}},
		"sub is empty":                      {delegating, act("")},
		"sub is a number":                   {delegating, object{"sub": 7}},
		"sub is a list":                     {delegating, object{"sub": []string{"bot"}}},
		"sub has a control character":       {delegating, act("bo\x1bt")},
		"sub has a line break":              {delegating, act("bot\ncorp")},
		"sub is that of a mesh's agent":     {delegating, act("agent:default/1")},
		"sub is that of the mesh":           {delegating, act("system:catalogue")},
		"sub is that of a delegated agent":  {delegating, act("act:corp/bot/corp/ben")},
		"sub is too long":                   {delegating, act(strings.Repeat("a", 129))},
		"the subject is too long":           {delegating, act(strings.Repeat("/", 128))},
		"another issuer":                    {delegating, object{"sub": "bot", "iss": "https://other.example.com"}},
		"another issuer by a slash":         {delegating, object{"sub": "bot", "iss": "https://login.example.com/"}},
		"iss is empty":                      {delegating, object{"sub": "bot", "iss": ""}},
		"iss is a list":                     {delegating, object{"sub": "bot", "iss": []string{"https://login.example.com"}}},
		"iss is an object":                  {delegating, object{"sub": "bot", "iss": object{}}},
		"five prior actors":                 {delegating, act("bot", "1", "2", "3", "4", "5")},
		"a prior actor is a text":           {delegating, object{"sub": "bot", "act": "planner"}},
		"a prior actor has no sub":          {delegating, object{"sub": "bot", "act": object{}}},
		"a prior actor of another issuer":   {delegating, object{"sub": "bot", "act": object{"sub": "p", "iss": "https://other.example.com"}}},
		"a prior actor is reserved":         {delegating, act("bot", "agent:default/1")},
		"the actor is not listed":           {listed, act("stranger")},
		"a prior actor is not listed":       {listed, act("bot", "stranger")},
		"the actor is a mesh's agent, bare": {bare, act("agent:default/1")},
	} {
		p, refusal := verified(t, test.change, object{"act": test.act})
		switch {
		case refusal == nil:
			t.Errorf("%s: accepted as %v", name, p)
		case refusal.Reason != issuer.WrongClaim:
			t.Errorf("%s: refused as %q: %v", name, refusal.Reason, refusal)
		case strings.Contains(refusal.Error(), "stranger"):
			t.Errorf("%s: the refusal contains the value of a claim: %v", name, refusal)
		}
	}
	// A subject of a person can't imitate that of a delegated agent.
	if p, refusal := verified(t, bare, object{"sub": "act:corp/bot/corp/ana"}); refusal == nil {
		t.Errorf("a person with the subject of an agent: accepted as %v", p)
	}
}

// A token with many groups and prior actors would not fit into the header of a call between services.
func TestDelegation_RefusesPrincipalsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	change := func(i *identityv1.Issuer) { delegating(i); i.GroupsClaim = "/groups" }
	groups := make([]string, 90)
	for n := range groups {
		groups[n] = fmt.Sprint(n, strings.Repeat("g", 100))
	}
	if _, refusal := verified(t, change, object{"groups": groups, "act": act("bot", "1", "2")}); refusal != nil {
		t.Errorf("two prior actors: %v", refusal)
	}
	if _, refusal := verified(t, change, object{"groups": groups, "act": act("bot", "1", "2", "3", "4")}); refusal == nil || refusal.Reason != issuer.WrongClaim {
		t.Errorf("four prior actors: %v", refusal)
	}
}

// Two tokens have the same subject only if the same actor acts for the same person, according to the same issuer.
func TestDelegation_SubjectDiffersForEachIssuerActorAndPerson(t *testing.T) {
	t.Parallel()
	values := []string{"a", "b", "a/b", "/", "a/", "/b", "%2F", "a%2Fb", "a%252Fb", "corp", "corp/a", "act", "ä", "a b", "a?b", "a:b", ".", ".."}
	seen := make(map[string]string)
	for _, name := range []string{"corp", "a", "act"} {
		set := newSet(t, func(i *identityv1.Issuer) { delegating(i); i.Name, i.Subject = name, "{/sub}" })
		for _, sub := range values {
			for _, by := range append([]string{""}, values...) {
				changes := object{"sub": sub}
				if by != "" {
					changes["act"] = act(by)
				}
				identity, refusal := set.Verify(sign(t, "EdDSA", object{"alg": "EdDSA", "kid": "ed"}, claims(changes)), now)
				if refusal != nil {
					t.Fatalf("%s, %s for %s: %v", name, by, sub, refusal)
				}
				got, who := identity.Principal.GetSubject(), fmt.Sprintf("%s: %q for %q", name, by, sub)
				if by == "" {
					who = fmt.Sprintf("%q", sub) // two issuers of one realm
				}
				if other, ok := seen[got]; ok && other != who {
					t.Errorf("%s and %s have the subject %q", other, who, got)
				}
				seen[got] = who
			}
		}
	}
	if want := len(values) + 3*len(values)*len(values); len(seen) != want {
		t.Errorf("%d subjects, want %d", len(seen), want)
	}
}

func TestDelegation_ExplainShowsTheActors(t *testing.T) {
	t.Parallel()
	steps, identity := newSet(t, delegating).Explain(token(t, object{"act": act("bot", "planner")}), now)
	shown := make(map[string]string)
	for _, step := range steps {
		shown[step.Name] = step.Text
	}
	want := map[string]string{
		"subject": "corp/ana", "actor": "the agent bot acts for corp/ana, with the subject act:corp/bot/corp/ana", "chain": "act:corp/planner/corp/ana",
	}
	maps.DeleteFunc(shown, func(name, _ string) bool { return want[name] == "" })
	if diff := cmp.Diff(want, shown); diff != "" || identity == nil {
		t.Errorf("(-want +got):\n%s", diff)
	}
	steps, identity = newSet(t, nil).Explain(token(t, object{"act": act("bot")}), now)
	if last := steps[len(steps)-1]; identity != nil || !last.Refused || !strings.Contains(last.Text, "act") {
		t.Errorf("without delegation, the last step is %+v", last)
	}
}

func TestDelegation_RefusesMappingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*identityv1.Issuer){
		"the subject has another claim": func(i *identityv1.Issuer) { i.Subject = "{/email}" },
		"the subject has two claims":    func(i *identityv1.Issuer) { i.Subject = "{/org}/{/sub}" },
		"the owner is another person":   func(i *identityv1.Issuer) { i.Owner = "corp/{/manager}" },
		"the agent is the client":       func(i *identityv1.Issuer) { i.AgentClaim = "/client_id" },
	} {
		if _, err := issuer.NewSet([]*identityv1.Issuer{corp(t, func(i *identityv1.Issuer) { delegating(i); change(i) })}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
