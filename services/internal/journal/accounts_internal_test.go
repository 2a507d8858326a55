package journal

import (
	"slices"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// A record is charged once to each of these principals: the record's principal, the principals in its delegation chain,
// and the people for whom they work.
func TestAppendAccounts_ChargesChainAndPersons(t *testing.T) {
	t.Parallel()
	key := func(subject string) principal.Key { return principal.Key{Tenant: "t", Subject: subject} }
	of := func(subject, owner string) Principal { return Principal{Tenant: "t", Subject: subject, Owner: owner} }
	for name, c := range map[string]struct {
		rec  Record
		want []principal.Key
	}{
		"no principal":     {Record{}, nil},
		"a principal":      {Record{Principal: of("bot", "")}, []principal.Key{key("bot")}},
		"a person's agent": {Record{Principal: of("agent:t/1", "olga")}, []principal.Key{key("agent:t/1"), key("olga")}},
		"a chain of two": {
			Record{Principal: of("agent:t/1", "olga"), Chain: []Principal{of("agent:t/2", "olga"), of("bot", "olga")}},
			[]principal.Key{key("agent:t/1"), key("olga"), key("agent:t/2"), key("bot")},
		},
	} {
		if got := appendAccounts(nil, &c.rec); !slices.Equal(got, c.want) {
			t.Errorf("%s: charged are %v, want %v", name, got, c.want)
		}
	}
}
