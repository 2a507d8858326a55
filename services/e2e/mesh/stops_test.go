package mesh_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/network"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// stopsByDefault is the number of times that the operator stops calls if SLUICE_STOPS is not set.
	stopsByDefault = 40
	// stopsDuringFault is the number of stops of calls that are requested and acknowledged before a fault is ended.
	// stopsBetweenFaults is the number of stops between the end of a fault and the start of the next fault.
	stopsDuringFault, stopsBetweenFaults = 5, 20
	// stopTimeLimit is the maximum time to stop calls and resume them, and the maximum time for the first calls. It
	// allows for a busy machine.
	stopTimeLimit = time.Minute
)

// stopTest is a mesh with two gateways. An operator stops and resumes the calls of several targets.
type stopTest struct {
	t        *testing.T
	gateways [2]*stack.Distributed
	// proxy is a network proxy between the second gateway and its policy service.
	proxy *network.Proxy
	// policies contains the policy services. There are two of them if the stops that the operator requests are stored
	// in PostgreSQL. The second gateway uses the last policy service in the list.
	policies []*stack.Distributed
	// operator contains a connection to each policy service. The test's only operator uses all of these connections.
	operator []policyv1.PolicyServiceClient
	targets  []*stopTarget
	// callers are the goroutines that call tools. workers are the goroutines that stop and resume targets.
	callers, workers sync.WaitGroup
	// requested is the number of times that the operator has requested to stop calls. It determines the policy service
	// at which the next stop is requested.
	requested atomic.Int64
	// faulty reports whether the second gateway is cut off or suspended.
	faulty atomic.Bool
	faults []stopFault
	began  time.Time // the start of the callers

	mu           sync.Mutex
	acknowledged []time.Time // the times at which the acknowledged stops were requested
	periods      []stopPeriod
	wrong        []string // responses that are not expected
}

// A stopFault is a fault of the second gateway.
type stopFault struct{ began, ended time.Time }

// A stopPeriod is one stop of the calls of one or more targets: the times at which the stop was requested and
// acknowledged, and the time at which its end was requested.
type stopPeriod struct {
	targets                          []*stopTarget
	requested, acknowledged, resumed time.Time
}

func newStopTest(t *testing.T) *stopTest {
	t.Helper()
	c := &stopTest{t: t}
	t.Cleanup(func() { // runs after the processes were killed, because a suspended gateway does not respond
		c.callers.Wait()
		c.workers.Wait()
	})
	opts := stack.Options{Policy: "version: 1\nname: stops\ndefault: allow\n", Extra: "journal: {calls_mib: 8192, share: 1}"}
	c.addTargets(&opts)
	store, postgres := os.LookupEnv("SLUICE_STOPS_STORE")
	if postgres && store != "postgres" {
		t.Fatalf("SLUICE_STOPS_STORE=%q is not postgres", store)
	}
	if postgres {
		opts.Extra += fmt.Sprintf("\nstores: {policy: %q}", sqlstoretest.Start(t).Database(t))
	}
	first := stack.StartDistributed(t, opts)
	c.policies = []*stack.Distributed{first}
	if postgres {
		c.policies = append(c.policies, first.StartReplica(t, policyRole, nil))
	}
	for _, p := range c.policies {
		c.operator = append(c.operator, policyv1.NewPolicyServiceClient(p.DialWithToken(t, policyRole, stack.OperatorToken)))
	}
	c.proxy = network.Start(t, c.policies[len(c.policies)-1].Addr(policyRole))
	c.gateways = [2]*stack.Distributed{first, first.StartReplica(t, gatewayRole, map[authv1.Role]string{policyRole: c.proxy.Addr})}
	for _, g := range c.gateways {
		g.AwaitReady(t)
	}
	c.callTools()
	return c
}

// Agents and servers are stopped and resumed independently of each other, while 1,000 calls per second are made at two
// gateways. From time to time, all calls are stopped. No call of a target reaches its server after the target's stop
// was acknowledged, and calls are allowed again after each resume. The second gateway is repeatedly suspended or
// disconnected from the policy service. It must then refuse calls as soon as its lease expires. When it continues after
// a suspension, it must not send a call that it was about to send when it was suspended.
func TestStops_NoCallBeginsAfterTheAcknowledgement(t *testing.T) {
	t.Parallel()
	number := stopsWanted(t)
	c := newStopTest(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c.began = time.Now()
	c.startCallers(ctx)
	if err := c.awaitResults(ctx, c.targets, "calls run", (*stopResults).countRan); err != nil {
		t.Fatal(err)
	}
	wide := []*policyv1.StopSelector{{All: true}, {Tenant: "default"}}
	legs := min(max(number/60, 2), 8) // each leg ends with a stop of all targets
	for leg := 0; leg < legs && !t.Failed(); leg++ {
		stops := number*(leg+1)/legs - number*leg/legs
		if stops > 1 {
			c.stopTargets(stops - 1)
		}
		if stops > 0 && !t.Failed() {
			if err := c.stopOnce(c.targets, wide[leg%len(wide)], wideReason); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	c.callers.Wait()
	if len(c.wrong) > 0 {
		t.Errorf("%d responses are wrong, the first one %s", len(c.wrong), c.wrong[0])
	}
	c.report(number, time.Since(c.began))
}

// stopsWanted returns the number of times that the operator stops calls. SLUICE_STOPS overrides the default.
func stopsWanted(t *testing.T) int {
	t.Helper()
	text, ok := os.LookupEnv("SLUICE_STOPS")
	if !ok {
		return stopsByDefault
	}
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 {
		t.Fatalf("SLUICE_STOPS=%q is not a number of stops", text)
	}
	return number
}

// stopTargets stops and resumes the calls of targets until the given number of stops was made. The calls of each target
// are stopped and resumed independently. Meanwhile, the second gateway has faults.
func (c *stopTest) stopTargets(number int) {
	c.t.Helper()
	from := time.Now()
	end := c.beginFault()
	done := c.startStops(number)
	for {
		c.awaitStops(done, from, stopsDuringFault)
		end()
		c.awaitStops(done, time.Now(), stopsBetweenFaults)
		if isClosed(done) {
			return
		}
		from = time.Now()
		end = c.beginFault()
	}
}

// startStops starts a goroutine for each target that stops and resumes the target's calls repeatedly. The returned
// channel is closed when all goroutines have finished.
func (c *stopTest) startStops(number int) chan struct{} {
	var taken atomic.Int64
	for _, target := range c.targets {
		c.workers.Go(func() {
			for taken.Add(1) <= int64(number) {
				if err := c.stopOnce([]*stopTarget{target}, target.selector, target.reason()); err != nil {
					c.t.Errorf("%s: %v", target.name, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.workers.Wait()
	}()
	return done
}

// stopOnce stops the calls of targets and then resumes them. If there are two policy services, it requests the resume
// at the one that did not receive the stop. It waits until both gateways refuse the calls of each target, and later
// until both gateways allow these calls again.
func (c *stopTest) stopOnce(targets []*stopTarget, selector *policyv1.StopSelector, reason string) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), stopTimeLimit)
	defer cancel()
	n := int(c.requested.Add(1))
	p := stopPeriod{targets: targets, requested: time.Now()}
	if _, err := c.operator[n%len(c.operator)].StopCalls(ctx, &policyv1.StopCallsRequest{Selector: selector, Reason: reason}); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	p.acknowledged = time.Now()
	c.mu.Lock()
	c.acknowledged = append(c.acknowledged, p.requested)
	c.mu.Unlock()
	if err := c.awaitResults(ctx, targets, "calls are refused", (*stopResults).countStopped); err != nil {
		return err
	}
	p.resumed = time.Now()
	resumed, err := c.operator[(n+1)%len(c.operator)].ResumeCalls(ctx, &policyv1.ResumeCallsRequest{Selector: selector})
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if ended := len(resumed.GetResumed()); ended != 1 {
		return fmt.Errorf("the resume ended %d stops, want 1", ended)
	}
	if err := c.awaitResults(ctx, targets, "calls pass after the resume", (*stopResults).countRan); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.periods = append(c.periods, p)
	return nil
}

// awaitStops waits until the given number of stops is acknowledged, or until done is closed. It counts only the stops
// that were requested after the time from.
func (c *stopTest) awaitStops(done <-chan struct{}, from time.Time, number int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for c.acknowledgedSince(from) < number {
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// acknowledgedSince returns the number of acknowledged stops of calls that were requested after the time from.
func (c *stopTest) acknowledgedSince(from time.Time) (number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, requested := range c.acknowledged {
		if requested.After(from) {
			number++
		}
	}
	return number
}

// beginFault starts a fault of the second gateway. Two kinds of faults alternate: the network to the policy service
// fails, or the gateway is suspended. The returned function ends the fault and waits until the gateway is ready.
func (c *stopTest) beginFault() (end func()) {
	c.t.Helper()
	began, second := time.Now(), c.gateways[1]
	c.faulty.Store(true)
	recovered := func() {
		second.AwaitReady(c.t)
		c.faulty.Store(false)
		c.faults = append(c.faults, stopFault{began, time.Now()})
	}
	if len(c.faults)%2 == 1 {
		second.Signal(c.t, gatewayRole, stack.SIGSTOP)
		return func() {
			second.Signal(c.t, gatewayRole, stack.SIGCONT)
			recovered()
		}
	}
	before := c.unavailable()
	c.proxy.DropSilently(c.t) // also drops the closing of connections
	return func() {
		eventually.Holds(c.t, "the gateway without policy refuses calls", func() bool { return c.unavailable() > before })
		c.proxy.EndFault(c.t)
		recovered()
	}
}

// unavailable returns the number of calls that the second gateway has refused because the policy service was
// unavailable.
func (c *stopTest) unavailable() (number int64) {
	for _, target := range c.targets {
		number += target.results[1].unavailable.Load()
	}
	return number
}
