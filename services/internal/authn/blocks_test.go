package authn_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// A token is refused while its subject or its owner is blocked. Blocks of other tenants do not matter.
func TestTokens_RefuseBlockedCallers(t *testing.T) {
	t.Parallel()
	secret, previous := authn.NewAgentSecret(), authn.NewAgentSecret()
	sum, before := authn.HashSecret(secret), authn.HashSecret(previous)
	record := &identityv1.TokenRecord{
		Sha256: sum[:], Previous: []*identityv1.PreviousSecret{{Sha256: before[:], Expires: timestamppb.New(time.Now().Add(time.Hour))}},
		Token: &identityv1.Token{Name: "bot", Tenant: "default", Subject: "bot", Owner: "corp/ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT},
	}
	for name, c := range map[string]struct {
		block   *identityv1.BlockedCaller
		refused bool
	}{
		"no block":                       {},
		"the subject":                    {&identityv1.BlockedCaller{Tenant: "default", Subject: "bot"}, true},
		"the owner":                      {&identityv1.BlockedCaller{Tenant: "default", Subject: "corp/ana"}, true},
		"another subject":                {&identityv1.BlockedCaller{Tenant: "default", Subject: "corp/an"}, false},
		"the subject in another tenant":  {&identityv1.BlockedCaller{Tenant: "acme", Subject: "bot"}, false},
		"a client of the subject's name": {&identityv1.BlockedCaller{Tenant: "default", Client: "bot"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens, set := new(authn.Tokens), &identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{record}}
			if c.block != nil {
				set.Blocks = []*identityv1.BlockedCaller{c.block}
			}
			if err := tokens.Update(set); err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{secret, previous} {
				if _, err := tokens.Lookup(text); errors.Is(err, authn.ErrBlocked) != c.refused || (err != nil) != c.refused {
					t.Errorf("the lookup: %v", err)
				}
			}
			// For example, a blocked person can't decide with a button in Slack.
			if found, err := tokens.PrincipalsOf("default", "bot"); err != nil || (len(found) == 0) != c.refused {
				t.Errorf("the subject has the principals %v, %v", found, err)
			}
		})
	}
}

// A principal is blocked because of its own names, or because of the names of the principals on whose behalf it acts.
func TestTokens_IsBlocked(t *testing.T) {
	t.Parallel()
	tokens := new(authn.Tokens)
	if err := tokens.Update(&identityv1.TokenSet{Blocks: []*identityv1.BlockedCaller{{Tenant: "default", Subject: "ana"}, {Tenant: "default", Client: "c1"}}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		principal *identityv1.Principal
		want      bool
	}{
		"another":                {&identityv1.Principal{Tenant: "default", Subject: "ben"}, false},
		"the subject":            {&identityv1.Principal{Tenant: "default", Subject: "ana"}, true},
		"the owner":              {&identityv1.Principal{Tenant: "default", Subject: "agent:default/1", Owner: "ana"}, true},
		"the actor":              {&identityv1.Principal{Tenant: "default", Subject: "act:corp/ana/ben", Owner: "ben", Actor: "ana"}, true},
		"a prior actor":          {&identityv1.Principal{Tenant: "default", Subject: "act:corp/bot/ben", Owner: "ben", Chain: []*identityv1.Principal{{Tenant: "default", Subject: "act:corp/ana/ben", Owner: "ben", Actor: "ana"}}}, true},
		"another actor":          {&identityv1.Principal{Tenant: "default", Subject: "act:corp/bot/ben", Owner: "ben", Actor: "bot"}, false},
		"the client":             {&identityv1.Principal{Tenant: "default", Subject: "ben", Client: "c1"}, true},
		"a creator in the chain": {&identityv1.Principal{Tenant: "default", Subject: "agent:default/1", Chain: []*identityv1.Principal{{Tenant: "default", Subject: "agent:default/2", Owner: "ana"}}}, true},
		"another tenant":         {&identityv1.Principal{Tenant: "acme", Subject: "ana", Client: "c1"}, false},
	} {
		if got := tokens.IsBlocked(c.principal); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
