package mesh_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/network"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	// stopsByDefault is the number of stops if SLUICE_STOPS is not set. stopCallers is the number of concurrent callers
	// at each gateway.
	stopsByDefault = 6
	stopCallers    = 6
)

// A stopPeriod is the time of one stop: when it was requested and acknowledged, and when its end was requested.
type stopPeriod struct{ requested, acknowledged, resumed time.Time }

// stopTest is a mesh with two gateways, at which agents call a tool while an operator stops and resumes them.
type stopTest struct {
	t        *testing.T
	gateways [2]*stack.Distributed
	// proxy is between the second gateway and the policy service.
	proxy  *network.Proxy
	policy policyv1.PolicyServiceClient
	// ran and refused count the calls that the server received and the calls that were stopped. away counts the calls
	// that a gateway refused because the policy service was unavailable.
	ran, refused, away atomic.Int64
	wrong              atomic.Pointer[string]

	mu       sync.Mutex
	arrivals []time.Time
}

func newStopTest(t *testing.T) *stopTest {
	t.Helper()
	c := &stopTest{t: t}
	up := rawmcp.Start(t, `[{"name":"say"}]`)
	up.SetAnswer("say", func(w http.ResponseWriter, r *http.Request, id string) {
		at := time.Now()
		c.mu.Lock()
		c.arrivals = append(c.arrivals, at)
		c.mu.Unlock()
		rawmcp.Result(`{"content":[{"type":"text","text":"ran"}]}`)(w, r, id)
		up.DropRequests()
	})
	first := stack.StartDistributed(t, stack.Options{
		Servers: fmt.Sprintf("  echo: {http: {url: %q}}", up.URL), Policy: "version: 1\nname: stops\ndefault: allow\n",
		Extra: "journal: {calls_mib: 8192, share: 1}",
	})
	c.proxy = network.Start(t, first.Addr(policyRole))
	c.gateways = [2]*stack.Distributed{first, first.StartReplica(t, gatewayRole, map[authv1.Role]string{policyRole: c.proxy.Addr})}
	c.policy = policyv1.NewPolicyServiceClient(first.DialWithToken(t, policyRole, stack.OperatorToken))
	for _, g := range c.gateways {
		g.AwaitReady(t)
	}
	return c
}

// callTool calls the tool until ctx ends.
func (c *stopTest) callTool(ctx context.Context, gateway *stack.Distributed, token string) {
	client := stack.NewClient(nil, gateway.MCP("echo"), token)
	open := false
	for ctx.Err() == nil {
		if !open {
			if open = client.Open() == nil; !open {
				<-time.After(10 * time.Millisecond)
				continue
			}
		}
		resp, err := client.TryPost([]byte(stack.CallRequest(`{"name":"say"}`)))
		switch {
		case err != nil || resp.Status != http.StatusOK:
			open = false
		case bytes.Contains(resp.Body, []byte(`"text":"ran"`)):
			c.ran.Add(1)
		case bytes.Contains(resp.Body, []byte(`"code":"stopped"`)) && bytes.Contains(resp.Body, []byte("Stopped by an operator: a test.")):
			c.refused.Add(1)
		case bytes.Contains(resp.Body, []byte(`"code":"policy_unavailable"`)):
			c.away.Add(1)
		default:
			text := string(resp.Body)
			c.wrong.Store(&text)
		}
	}
}

// await waits until a counter has grown.
func (c *stopTest) await(what string, counter *atomic.Int64, by int64) {
	c.t.Helper()
	from := counter.Load()
	for deadline := time.Now().Add(30 * time.Second); counter.Load() < from+by; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("in 30 s not: %s", what)
		}
	}
}

// stopOnce stops calls and resumes them. In the meantime, callers of each gateway that is connected are refused.
func (c *stopTest) stopOnce(selector *policyv1.StopSelector) stopPeriod {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	c.await("calls run", &c.ran, 20)
	p := stopPeriod{requested: time.Now()}
	_, err := c.policy.StopCalls(ctx, &policyv1.StopCallsRequest{Selector: selector, Reason: "a test"})
	p.acknowledged = time.Now()
	if err != nil {
		c.t.Fatalf("stop: %v", err)
	}
	c.await("calls are refused", &c.refused, 20)
	p.resumed = time.Now()
	if _, err := c.policy.ResumeCalls(ctx, &policyv1.ResumeCallsRequest{Selector: selector}); err != nil {
		c.t.Fatalf("resume: %v", err)
	}
	return p
}

// check compares the times at which the server received calls with the stops. It returns the times from the requests of
// stops to the last calls that the server received after them.
func (c *stopTest) check(periods []stopPeriod) (lastCalls []time.Duration) {
	c.t.Helper()
	slices.SortFunc(c.arrivals, time.Time.Compare)
	for i, p := range periods {
		from, _ := slices.BinarySearchFunc(c.arrivals, p.requested, time.Time.Compare)
		var last time.Duration
		for _, at := range c.arrivals[from:] {
			if at.After(p.resumed) {
				break
			}
			if last = at.Sub(p.requested); at.After(p.acknowledged) {
				c.t.Errorf("a call reached the server %v after stop %d was acknowledged", at.Sub(p.acknowledged), i)
			}
		}
		lastCalls = append(lastCalls, last)
	}
	slices.Sort(lastCalls)
	return lastCalls
}

// Checks that no call of two gateways reaches the server after a stop was acknowledged. In every fifth stop, the second
// gateway has no connection to the policy service or is suspended: it refuses calls when its lease ends, and must not
// send a call that it was about to send when it was suspended.
func TestStops_NoCallBeginsAfterTheAcknowledgement(t *testing.T) {
	t.Parallel()
	number := stopsByDefault
	if text, ok := os.LookupEnv("SLUICE_STOPS"); ok {
		var err error
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			t.Fatalf("SLUICE_STOPS=%q is not a number of stops", text)
		}
	}
	c := newStopTest(t)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer stop()
	for _, g := range c.gateways {
		for i := range stopCallers {
			callers.Go(func() { c.callTool(ctx, g, []string{stack.AgentToken, stack.OtherToken}[i%2]) })
		}
	}
	selectors := []*policyv1.StopSelector{{All: true}, {Agent: "dev"}, {Server: "echo"}, {Tenant: "default"}}
	var periods []stopPeriod
	var acknowledged []time.Duration
	for n := range number {
		end := c.disturb(n)
		p := c.stopOnce(selectors[n%len(selectors)])
		end()
		periods, acknowledged = append(periods, p), append(acknowledged, p.acknowledged.Sub(p.requested))
	}
	c.await("calls run after the last resume", &c.ran, 20)
	stop()
	callers.Wait()
	if wrong := c.wrong.Load(); wrong != nil {
		t.Errorf("a response is %s", *wrong)
	}
	lastCalls := c.check(periods)
	slices.Sort(acknowledged)
	at := func(all []time.Duration, percent int) time.Duration {
		return all[(len(all)-1)*percent/100].Round(time.Millisecond)
	}
	t.Logf("%d calls ran, %d were stopped, %d were refused without policy; %d stops were acknowledged in %v (median), %v (p99), %v (longest)",
		c.ran.Load(), c.refused.Load(), c.away.Load(), number, at(acknowledged, 50), at(acknowledged, 99), at(acknowledged, 100))
	t.Logf("from the request of a stop to the last call that the server received: %v (median), %v (p99), %v (longest)", at(lastCalls, 50), at(lastCalls, 99), at(lastCalls, 100))
	if number >= 5 && c.away.Load() == 0 {
		t.Error("the second gateway was cut off, and has refused no call")
	}
}

// disturb begins the fault of a stop. The returned function ends the fault.
func (c *stopTest) disturb(n int) (end func()) {
	switch n % 10 {
	case 4: // the network drops everything, including the closing of connections
		c.proxy.DropSilently(c.t)
		return func() {
			c.await("the gateway refuses calls", &c.away, 1)
			c.proxy.EndFault(c.t)
			c.gateways[1].AwaitReady(c.t)
		}
	case 9:
		c.gateways[1].Signal(c.t, gatewayRole, stack.SIGSTOP)
		resumed := time.AfterFunc(1500*time.Millisecond, func() { c.gateways[1].Signal(c.t, gatewayRole, stack.SIGCONT) })
		return func() {
			if resumed.Stop() {
				c.gateways[1].Signal(c.t, gatewayRole, stack.SIGCONT)
			}
		}
	default:
		return func() {}
	}
}
