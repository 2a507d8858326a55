package mesh_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/network"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// faultTimeVariable is the name of the environment variable that sets the duration of each network fault.
	faultTimeVariable = "SLUICE_AWAY"
	// databaseRefusalTimeLimit is the maximum time until a call is refused while the database is unavailable: 2 s for each
	// call to the approval service, and the rest for a busy machine.
	databaseRefusalTimeLimit = 15 * time.Second
	// recoveryTimeLimit is the maximum time from the end of a network fault until approvals can be requested again, on
	// an otherwise idle machine. It applies to `make stress RUN=away`. Other runs use busyRecoveryTimeLimit. The test
	// subtracts holdTime from the measured time, because the gateway responds only after the hold time.
	recoveryTimeLimit     = 5 * time.Second
	busyRecoveryTimeLimit = 30 * time.Second
	holdTime              = time.Second
)

// networkFault is one way in which the network to the database can fail.
type networkFault struct {
	name   string
	inject func(p *network.Proxy)
	// repeated reports whether the fault is started repeatedly, with calls between the repetitions.
	repeated bool
}

func networkFaults(t *testing.T) []networkFault {
	t.Helper()
	return []networkFault{
		{name: "refused", inject: func(p *network.Proxy) { p.Refuse(t) }},
		{name: "silent", inject: func(p *network.Proxy) { p.Silence(t) }},
		{name: "lost", inject: func(p *network.Proxy) { p.DropSilently(t) }},
		{name: "slow", inject: func(p *network.Proxy) { p.Delay(t, time.Second) }},
		{name: "reset", inject: func(p *network.Proxy) { p.Reset(t) }},
		{name: "commits", inject: func(p *network.Proxy) { p.DropCommitResponses(t) }, repeated: true},
	}
}

// The network between the approval service and its database fails in every way that package network can simulate.
// Meanwhile, calls that need approval are refused within a bounded time, and other calls run. After each fault the same
// processes accept approval requests again. No vote is lost, and no call runs twice.
func TestApprovals_SurviveDatabaseNetworkFaults(t *testing.T) {
	t.Parallel()
	lasts := 2 * time.Second
	if text, ok := os.LookupEnv(faultTimeVariable); ok {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts <= 0 {
			t.Fatalf("%s=%q is not a duration above 0", faultTimeVariable, text)
		}
	}
	server := sqlstoretest.Start(t)
	proxy := network.Start(t, server.Addr())
	a := rawmesh.StartDistributed(t, rawmesh.PayPolicy, fmt.Sprintf("approvals: {hold: %v, max_pending: 1000, max_asked: {max: 100000}}\nstores: {approval: %q}", holdTime, server.Through(proxy.Addr, server.Database(t))))
	busy := startApprovalLoad(t, a)
	for _, f := range networkFaults(t) {
		<-time.After(time.Second) // some calls run in between
		callDuringFault(t, a, proxy, f, lasts)
	}
	busy.finish(t)
	busy.checkResults(t)
}

// callDuringFault injects a fault and makes calls until the fault ends. It checks how long it takes until calls are
// refused, and until calls are accepted again.
func callDuringFault(t *testing.T, a *rawmesh.Distributed, proxy *network.Proxy, f networkFault, lasts time.Duration) {
	t.Helper()
	c := a.Connect(t)
	var refused, passed int
	var slowest time.Duration
	f.inject(proxy)
	for begin := time.Now(); time.Since(begin) < lasts; <-time.After(100 * time.Millisecond) {
		if f.repeated {
			proxy.EndFault(t)
			<-time.After(200 * time.Millisecond)
			f.inject(proxy)
		}
		asked := time.Now()
		code := c.Call("pay", fmt.Sprintf(`{"probe":"%s %d"}`, f.name, refused)).Decision(t).Code
		if code == "approval_unavailable" {
			refused++
		} else if !f.repeated {
			t.Errorf("%s: a call that needs approval: %q", f.name, code)
		}
		slowest = max(slowest, time.Since(asked))
		asked = time.Now()
		if resp := c.Call("safe", `{}`); resp.IsError(t) || time.Since(asked) > databaseRefusalTimeLimit {
			t.Errorf("%s: another call, after %v: %s", f.name, time.Since(asked), resp.Body)
		}
		passed++
	}
	proxy.EndFault(t)
	back := time.Now()
	for c.Call("pay", fmt.Sprintf(`{"probe":"after %s"}`, f.name)).Decision(t).Code == "approval_unavailable" && time.Since(back) < 10*recoveryTimeLimit {
		<-time.After(20 * time.Millisecond)
	}
	t.Logf("%s for %v: %d calls refused, the slowest after %v; %d others passed; accepted again after %v",
		f.name, lasts, refused, slowest.Round(time.Millisecond), passed, (time.Since(back) - holdTime).Round(time.Millisecond))
	within := busyRecoveryTimeLimit
	if os.Getenv(faultTimeVariable) != "" {
		within = recoveryTimeLimit
	}
	if took := time.Since(back) - holdTime; took > within || slowest > databaseRefusalTimeLimit || refused == 0 {
		t.Errorf("%s: accepted again after %v, refused within %v, %d times", f.name, took, slowest, refused)
	}
}
