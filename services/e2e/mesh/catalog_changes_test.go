package mesh_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/network"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	// changesByDefault is the number of changes if SLUICE_CHANGES is not set. changeCallers is the number of concurrent
	// callers per gateway.
	changesByDefault = 60
	changeCallers    = 6
)

const changesPolicy = `version: 1
name: changes
default: deny
rules:
  - {name: loss, match: {category: destructive}, action: deny, reason: never}
  - {name: all, match: {tool: "*"}, action: allow}
`

// A fate is the result of a call.
type fate uint8

const (
	fateUnknown fate = iota
	fateRan
	fateStopped // refused because of a change
	fateRefused // refused for another reason
)

// A timedCall is one call with its start time, its end time and its result.
type timedCall struct {
	begin, end time.Time
	fate       fate
}

// A change is an action by an operator. begin is its start time, and acknowledged is the time of its acknowledgement.
// stops is true if the change stops calls, and false if it permits them again.
type change struct {
	begin, acknowledged time.Time
	stops               bool
	err                 error
}

// changeTest is a mesh with two gateways. Operators change the catalog state of two tools while agents call them.
type changeTest struct {
	t        *testing.T
	gateways [2]*stack.Distributed
	// proxy is a network proxy between the second gateway and the policy service.
	proxy    *network.Proxy
	upstream *rawmcp.Server
	catalog  policyv1.CatalogServiceClient
	count    atomic.Int64

	mu    sync.Mutex
	calls map[string][]timedCall
}

func newChangeTest(t *testing.T) *changeTest {
	t.Helper()
	up := rawmcp.Start(t, `[{"name":"say"},{"name":"echo"}]`)
	a := stack.StartDistributed(t, stack.Options{
		Servers: fmt.Sprintf("  echo: {http: {url: %q}}", up.URL), Policy: changesPolicy,
		Extra: "journal: {calls_mib: 8192, share: 1}",
	})
	between := network.Start(t, a.Addr(policyRole))
	c := &changeTest{
		t: t, proxy: between, upstream: up, calls: make(map[string][]timedCall),
		gateways: [2]*stack.Distributed{a, a.StartReplica(t, gatewayRole, map[authv1.Role]string{policyRole: between.Addr})},
		catalog:  policyv1.NewCatalogServiceClient(a.DialWithToken(t, policyRole, stack.OperatorToken)),
	}
	for _, g := range c.gateways {
		g.AwaitReady(t)
	}
	return c
}

// callTools calls the two tools alternately until ctx is done.
func (c *changeTest) callTools(ctx context.Context, gateway *stack.Distributed, token string) {
	client := stack.NewClient(nil, gateway.MCP("echo"), token)
	own := make(map[string][]timedCall)
	open := false
	for n := 0; ctx.Err() == nil; n++ {
		if !open {
			if open = client.Open() == nil; !open {
				<-time.After(10 * time.Millisecond)
				continue
			}
		}
		tool := []string{"say", "echo"}[n%2]
		one := timedCall{begin: time.Now()}
		resp, err := client.TryPost([]byte(stack.CallRequest(fmt.Sprintf(`{"name":%q,"arguments":{"text":"x"}}`, tool))))
		one.end = time.Now()
		open = err == nil && resp.Status == 200
		switch {
		case !open:
			one.fate = fateUnknown
		case bytes.Contains(resp.Body, []byte(`"code":"quarantined"`)), bytes.Contains(resp.Body, []byte(`"code":"denied_by_rule"`)):
			one.fate = fateStopped
		case bytes.Contains(resp.Body, []byte(`"isError":true`)), bytes.Contains(resp.Body, []byte(`"error":`)):
			one.fate = fateRefused
		default:
			one.fate = fateRan
		}
		own[tool] = append(own[tool], one)
		c.count.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for tool, list := range own {
		c.calls[tool] = append(c.calls[tool], list...)
	}
}

// changeToolState stops the calls to a tool or permits them again. To do so, it quarantines the tool "say", and
// overrides the class of the tool "echo".
func (c *changeTest) changeToolState(tool string, stops bool) change {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	out := change{begin: time.Now(), stops: stops}
	if tool == "say" {
		_, out.err = c.catalog.SetQuarantine(ctx, &policyv1.SetQuarantineRequest{Server: "echo", Tool: tool, Quarantined: stops, Reason: "a test"})
	} else {
		var page *policyv1.GetToolResponse
		page, out.err = c.catalog.GetTool(ctx, &policyv1.GetToolRequest{Server: "echo", Tool: tool})
		req := &policyv1.OverrideToolRequest{Server: "echo", Tool: tool, Etag: page.GetTool().GetEtag()}
		if stops {
			req.Override = &policyv1.ToolOverride{Category: mcpv1.Category_CATEGORY_DESTRUCTIVE, Risk: policyv1.Risk_RISK_CRITICAL, Reason: "a test"}
		}
		if out.err == nil {
			out.begin = time.Now()
			_, out.err = c.catalog.OverrideTool(ctx, req)
		}
	}
	out.acknowledged = time.Now()
	return out
}

// checkCalls compares the result of every call to a tool with the tool's changes. It returns the number of calls that
// could be compared.
func (c *changeTest) checkCalls(tool string, changes []change) (held int) {
	c.t.Helper()
	wrong := 0
	for _, one := range c.calls[tool] {
		// last is the index of the last change that began before the call ended. If that change was acknowledged before
		// the call began, earlier changes do not matter.
		last := len(changes) - 1
		for last >= 0 && changes[last].begin.After(one.end) {
			last--
		}
		if last < 0 || changes[last].err != nil || !changes[last].acknowledged.Before(one.begin) {
			continue
		}
		held++
		if stops := changes[last].stops; stops && one.fate == fateRan || !stops && one.fate == fateStopped {
			if wrong++; wrong <= 5 {
				c.t.Errorf("%s: a call that began %v after a change was acknowledged (it stops calls: %v) has the fate %d", tool, one.begin.Sub(changes[last].acknowledged), stops, one.fate)
			}
		}
	}
	if wrong > 0 {
		c.t.Errorf("%s: %d of %d calls were decided by the state before a change", tool, wrong, held)
	}
	return held
}

// After a change to a tool was acknowledged, neither of two gateways may evaluate a new call by the state before the
// change. During the test, the gateways and the policy service are suspended, killed and restarted, and the network
// between the second gateway and the policy service fails.
func TestCatalogChanges_NoLaterCallIsDecidedByTheOldState(t *testing.T) {
	t.Parallel()
	number := changesByDefault
	if text, ok := os.LookupEnv("SLUICE_CHANGES"); ok {
		var err error
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			t.Fatalf("SLUICE_CHANGES=%q is not a number of changes", text)
		}
	}
	c := newChangeTest(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var callers sync.WaitGroup
	for _, g := range c.gateways {
		for i := range changeCallers {
			callers.Go(func() { c.callTools(ctx, g, []string{stack.AgentToken, stack.OtherToken}[i%2]) })
		}
	}
	for c.count.Load() < 100 { // adds the tools to the catalog
		<-time.After(10 * time.Millisecond)
	}
	changes := make(map[string][]change)
	var quiet []time.Duration
	faults := c.faults()
	for n := range number {
		disturbed := n%10 == 9
		var end func()
		if disturbed {
			end = faults[n/10%len(faults)]()
		}
		for _, tool := range []string{"say", "echo"} {
			done := c.changeToolState(tool, n%2 == 0)
			changes[tool] = append(changes[tool], done)
			switch {
			case done.err == nil && n > 0 && n%10 != 0 && !disturbed:
				quiet = append(quiet, done.acknowledged.Sub(done.begin))
			case done.err != nil && !disturbed:
				t.Errorf("change %d of %s: %v", n, tool, done.err)
			}
		}
		if disturbed {
			end()
		}
		c.upstream.DropRequests()
		<-time.After(20 * time.Millisecond)
	}
	stop()
	callers.Wait()
	held := c.checkCalls("say", changes["say"]) + c.checkCalls("echo", changes["echo"])
	slices.Sort(quiet)
	t.Logf("%d calls, %d of them held to %d changes; acknowledged in %v (median), %v (99 of 100), %v (longest)", c.count.Load(), held, 2*number,
		quiet[len(quiet)/2], quiet[len(quiet)*99/100], quiet[len(quiet)-1])
	if held < 10*number {
		t.Errorf("only %d calls could be compared with a change: this run proves little", held)
	}
}

// faults returns one function for each kind of fault. The function starts the fault in the mesh, and returns a function
// that ends the fault.
func (c *changeTest) faults() []func() (end func()) {
	t, first, second := c.t, c.gateways[0], c.gateways[1]
	stands := func(a *stack.Distributed, role authv1.Role) func() func() {
		return func() func() {
			a.Signal(t, role, stack.SIGSTOP)
			return func() { a.Signal(t, role, stack.SIGCONT) }
		}
	}
	return []func() func(){
		stands(first, gatewayRole),
		func() func() { // the policy role is killed and starts again during a change
			first.Kill(t, policyRole)
			first.Start(t, policyRole)
			return func() {
				first.AwaitServing(t, policyRole)
				// The operator's connection was refused, and the client retries it after a pause.
				if _, err := c.catalog.GetTool(t.Context(), &policyv1.GetToolRequest{Server: "echo", Tool: "say"}, grpc.WaitForReady(true)); err != nil {
					t.Error(err)
				}
			}
		},
		func() func() { // the policy role is suspended for longer than a lease
			first.Signal(t, policyRole, stack.SIGSTOP)
			<-time.After(1200 * time.Millisecond)
			first.Signal(t, policyRole, stack.SIGCONT)
			return func() {}
		},
		func() func() {
			second.Kill(t, gatewayRole)
			second.Start(t, gatewayRole)
			return func() { second.AwaitReady(t) }
		},
		stands(second, gatewayRole),
		func() func() { // the network drops all packets, also those that close connections
			c.proxy.DropSilently(t)
			return func() { c.proxy.EndFault(t) }
		},
	}
}
