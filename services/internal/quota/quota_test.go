package quota_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

func who(subject string, chain ...*identityv1.Principal) *identityv1.Principal {
	return &identityv1.Principal{Tenant: "acme", Subject: subject, Chain: chain}
}

func owned(subject, owner string, chain ...*identityv1.Principal) *identityv1.Principal {
	p := who(subject, chain...)
	p.Owner = owner
	return p
}

// A caller has agents, which have created further agents. The usage of each agent is counted against the caller.
func TestTake_CountsAgentsAgainstTheirCreators(t *testing.T) {
	t.Parallel()
	for name, agent := range map[string]func(i int) *identityv1.Principal{
		"agents of a caller": func(i int) *identityv1.Principal { return who(fmt.Sprint("agent:acme/", i), who("ana")) },
		"agents of an agent": func(i int) *identityv1.Principal {
			return who(fmt.Sprint("agent:acme/", i), who("agent:acme/x"), who("ana"))
		},
		"a chain of four": func(i int) *identityv1.Principal {
			return who(fmt.Sprint("agent:acme/", i), who("agent:acme/x"), who("agent:acme/y"), who("agent:acme/z"), who("ana"))
		},
		"agents of many agents": func(i int) *identityv1.Principal {
			return who(fmt.Sprint("agent:acme/", i), who(fmt.Sprint("agent:acme/maker", i)), who("ana"))
		},
		"forks, which are their forker's": func(i int) *identityv1.Principal {
			return owned(fmt.Sprint("agent:acme/fork", i), "olga", owned("ana", "olga"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := quota.New("things", quota.For(3))
			var taken []principal.Accounts
			for i := range 3 {
				a := principal.AccountsOf(agent(i))
				if err := q.Acquire(&a, 1); err != nil {
					t.Fatalf("%d: %v", i, err)
				}
				taken = append(taken, a)
			}
			for who, p := range map[string]*identityv1.Principal{"a fourth agent": agent(4), "the caller": who("ana")} {
				a := principal.AccountsOf(p)
				if err := q.Acquire(&a, 1); !errors.Is(err, quota.ErrFull) || !strings.Contains(err.Error(), "ana and agents made by ana hold 3 of 3 things") {
					t.Errorf("%s: %v", who, err)
				}
			}
			for _, p := range []*identityv1.Principal{who("ben"), {Tenant: "other", Subject: "ana"}} {
				a := principal.AccountsOf(p)
				if err := q.Acquire(&a, 1); err != nil {
					t.Errorf("%s of %s: %v", p.GetSubject(), p.GetTenant(), err)
				}
				q.Release(&a, 1)
			}
			for i := range taken {
				q.Release(&taken[i], 1)
			}
			if q.Len() != 0 {
				t.Errorf("%d keys are still counted", q.Len())
			}
		})
	}
}

// Two tokens with the same subject are one principal. Tokens with the same owner share the quota of that person. Agents
// that these principals or the person create share it too.
func TestTake_TokensOfPersonShareQuota(t *testing.T) {
	t.Parallel()
	q := quota.New("things", quota.For(2))
	take := func(p *identityv1.Principal) error {
		a := principal.AccountsOf(p)
		return q.Acquire(&a, 1)
	}
	one, two := owned("bot", "olga"), owned("bot", "olga")
	one.TokenId, one.Agent, two.TokenId, two.Agent = "t1", "claude", "t2", "codex"
	if err := errors.Join(take(one), take(two)); err != nil {
		t.Fatal(err)
	}
	if err := take(one); err == nil || !strings.Contains(err.Error(), "bot and agents made by bot hold 2 of 2") {
		t.Errorf("a third use of one subject: %v", err)
	}
	for i := range 6 {
		if err := take(owned(fmt.Sprint("agent:acme/", i), "olga")); err != nil {
			t.Fatal(err)
		}
	}
	for name, p := range map[string]*identityv1.Principal{
		"another token": owned("other", "olga"), "the person": who("olga"), "an agent of another token": owned("agent:acme/z", "olga", owned("other", "olga")),
		"an agent without an owner of a token with one": who("agent:acme/z", owned("other", "olga")),
	} {
		if err := take(p); err == nil || !strings.Contains(err.Error(), "olga and all that work for olga hold 8 of 8 things") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(take(&identityv1.Principal{Tenant: "other", Subject: "x", Owner: "olga"}), take(who("ben"))); err != nil {
		t.Error(err)
	}
}

// The message of the error does not name a principal of another tenant. Names in the message are escaped.
func TestFullError_HidesOtherTenants(t *testing.T) {
	t.Parallel()
	q := quota.New("things", quota.For(1))
	foreign := &identityv1.Principal{Tenant: "secret-tenant", Subject: "zoe"}
	a, b := principal.AccountsOf(foreign), principal.AccountsOf(who("x", foreign))
	if err := q.Acquire(&a, 1); err != nil {
		t.Fatal(err)
	}
	if err := q.Acquire(&b, 1); err == nil || strings.Contains(err.Error(), "zoe") || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "1") {
		t.Errorf("the error is %v", err)
	}
	odd := principal.AccountsOf(who("a\nb\u202e"))
	_ = q.Acquire(&odd, 1)
	if err := q.Acquire(&odd, 1); err == nil || strings.ContainsAny(err.Error(), "\n\u202e") {
		t.Errorf("the error is %q", err)
	}
}

// Usage without an account can't be limited, so it is refused.
func TestTake_FailsWithoutAccount(t *testing.T) {
	t.Parallel()
	if err := quota.New("things", quota.For(1)).Acquire(new(principal.Accounts), 1); !errors.Is(err, quota.ErrFull) {
		t.Error(err)
	}
}

func TestTake_DoesNotAllocateWithoutChain(t *testing.T) {
	q := quota.New("things", quota.For(100))
	p := owned("bot", "olga")
	a := principal.AccountsOf(p)
	_ = q.Acquire(&a, 1)
	if n := testing.AllocsPerRun(100, func() {
		a := principal.AccountsOf(p)
		if q.Acquire(&a, 1) == nil {
			q.Release(&a, 1)
		}
	}); n != 0 {
		t.Errorf("Acquire allocates %v times", n)
	}
}
