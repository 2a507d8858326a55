package stdio_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// A caller together with its agents may have a quarter of the processes, and a person may have half, no matter how the
// agents were created. Ended processes do not count.
func TestOpen_AgentsShareTheLimitOfTheirMaker(t *testing.T) {
	t.Parallel()
	bot := &identityv1.Principal{Tenant: "acme", Subject: "bot", Owner: "olga"}
	agent := func(i int, chain ...*identityv1.Principal) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "acme", Subject: fmt.Sprint("agent:acme/", i), Owner: "olga", Chain: chain}
	}
	for name, c := range map[string]struct {
		makes func(i int) *identityv1.Principal
		most  int
		says  string
	}{
		"agents of a caller":  {func(i int) *identityv1.Principal { return agent(i, bot) }, 2, "bot and agents made by bot hold 2 of 2 processes"},
		"agents of its agent": {func(i int) *identityv1.Principal { return agent(i, agent(100), bot) }, 2, "bot and agents made by bot hold 2 of 2 processes"},
		"a chain of four": {
			func(i int) *identityv1.Principal { return agent(i, agent(100+i), agent(200+i), agent(300+i), bot) }, 2, "bot and agents made by bot hold 2 of 2 processes",
		},
		"agents of a person": {func(i int) *identityv1.Principal { return agent(i) }, 4, "olga and all that work for olga hold 4 of 4 processes"},
		"tokens of a person": {
			func(i int) *identityv1.Principal {
				return &identityv1.Principal{Tenant: "acme", Subject: fmt.Sprint("bot", i), Owner: "olga"}
			}, 4, "olga and all that work for olga hold 4 of 4 processes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "good", func(c *stdio.Config) { c.MaxProcesses, c.IdleTimeout = 8, 20*time.Millisecond })
			open := func(p *identityv1.Principal) (upstream.Conn, error) {
				hello := hello(0)
				hello.Room = r.all.Open(&limits.Owner{Accounts: principal.AccountsOf(p), Server: "fake"})
				conn, _, err := r.Open(t.Context(), principal.Of(p), hello)
				return conn, err
			}
			var conns []upstream.Conn
			for i := range c.most {
				conn, err := open(c.makes(i))
				if err != nil {
					t.Fatalf("process %d: %v", i, err)
				}
				conns = append(conns, conn)
			}
			if _, err := open(c.makes(c.most)); !errors.Is(err, quota.ErrFull) || !errors.Is(err, upstream.ErrNeverSent) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("one more: %v", err)
			}
			for _, p := range []*identityv1.Principal{{Tenant: "acme", Subject: "ben"}, {Tenant: "globex", Subject: "bot", Owner: "olga"}} {
				if conn, err := open(p); err != nil {
					t.Errorf("%s of %s: %v", p.GetSubject(), p.GetTenant(), err)
				} else {
					conns = append(conns, conn)
				}
			}
			for _, conn := range conns {
				if err := conn.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			eventually.Holds(t, "what has ended is counted no more", func() bool {
				conn, err := open(c.makes(c.most))
				return err == nil && conn.Close(t.Context()) == nil
			})
		})
	}
}
