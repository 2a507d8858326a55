package e2e_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/network"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// awayVariable names the environment variable with the time that each network fault lasts, as a duration.
	awayVariable = "SLUICE_AWAY"
	// refusedWithin is the longest time in which a call is refused while the database is unavailable: 2 s for each
	// call of the approval service, and the rest for a busy machine.
	refusedWithin = 10 * time.Second
	// backWithin is the longest time until approvals can be requested again after the network fault, on an otherwise
	// idle machine. `make away` uses it, and other runs use busyWithin. The test measures until a caller receives
	// the response, which comes after the hold, heldFor.
	backWithin = 5 * time.Second
	busyWithin = 30 * time.Second
	heldFor    = time.Second
)

// fault is a way in which the network to the database fails.
type fault struct {
	name  string
	begin func(p *network.Proxy)
	// again is set if the fault is started repeatedly, with calls passing in between.
	again bool
}

func faultsOf(t *testing.T) []fault {
	t.Helper()
	return []fault{
		{name: "refused", begin: func(p *network.Proxy) { p.Refuse(t) }},
		{name: "silent", begin: func(p *network.Proxy) { p.Silence(t) }},
		{name: "lost", begin: func(p *network.Proxy) { p.Lose(t) }},
		{name: "slow", begin: func(p *network.Proxy) { p.Slow(t, time.Second) }},
		{name: "reset", begin: func(p *network.Proxy) { p.Reset(t) }},
		{name: "commits", begin: func(p *network.Proxy) { p.LoseCommits(t) }, again: true},
	}
}

// Checks the approvals of a mesh while the network between the approval service and its database fails in every way of
// package network. Calls that need approval are refused within a bounded time, and others pass. After each fault the
// same processes accept approval requests again. No decision is lost, and no call runs twice.
func TestApprovalsOutliveTheirNetwork(t *testing.T) {
	t.Parallel()
	lasts := 2 * time.Second
	if text, ok := os.LookupEnv(awayVariable); ok {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts <= 0 {
			t.Fatalf("%s=%q is not a duration above 0", awayVariable, text)
		}
	}
	server := sqlstoretest.Start(t)
	proxy := network.Start(t, server.Addr())
	a := newApart(t, payPolicy, fmt.Sprintf("approvals: {hold: %v, max_pending: 1000, max_asked: {max: 100000}}\nstores: {approval: %q}", heldFor, server.Through(proxy.Addr, server.Database(t))))
	busy := trade(t, a)
	for _, f := range faultsOf(t) {
		<-time.After(time.Second) // some calls run in between
		suffer(t, a, proxy, f, lasts)
	}
	busy.close(t)
	busy.check(t)
}

// suffer injects a fault, makes calls until the fault ends, and checks how fast they are refused and accepted again.
func suffer(t *testing.T, a *apart, proxy *network.Proxy, f fault, lasts time.Duration) {
	t.Helper()
	c := a.connect(t)
	var refused, passed int
	var slowest time.Duration
	f.begin(proxy)
	for begin := time.Now(); time.Since(begin) < lasts; <-time.After(100 * time.Millisecond) {
		if f.again {
			proxy.Mend(t)
			<-time.After(200 * time.Millisecond)
			f.begin(proxy)
		}
		asked := time.Now()
		code := c.Call("pay", fmt.Sprintf(`{"probe":"%s %d"}`, f.name, refused)).Decision(t).Code
		if code == "approval_unavailable" {
			refused++
		} else if !f.again {
			t.Errorf("%s: a call that needs approval: %q", f.name, code)
		}
		slowest = max(slowest, time.Since(asked))
		asked = time.Now()
		if resp := c.Call("safe", `{}`); resp.IsError(t) || time.Since(asked) > refusedWithin {
			t.Errorf("%s: another call, after %v: %s", f.name, time.Since(asked), resp.Body)
		}
		passed++
	}
	proxy.Mend(t)
	back := time.Now()
	for c.Call("pay", fmt.Sprintf(`{"probe":"after %s"}`, f.name)).Decision(t).Code == "approval_unavailable" && time.Since(back) < 10*backWithin {
		<-time.After(20 * time.Millisecond)
	}
	t.Logf("%s for %v: %d calls refused, the slowest after %v; %d others passed; accepted again after %v",
		f.name, lasts, refused, slowest.Round(time.Millisecond), passed, (time.Since(back) - heldFor).Round(time.Millisecond))
	within := busyWithin
	if os.Getenv(awayVariable) != "" {
		within = backWithin
	}
	if took := time.Since(back) - heldFor; took > within || slowest > refusedWithin || refused == 0 {
		t.Errorf("%s: accepted again after %v, refused within %v, %d times", f.name, took, slowest, refused)
	}
}
