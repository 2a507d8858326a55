package mesh_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	// stopAgents is the number of agents whose calls are stopped. stopServers is the number of servers whose calls are
	// stopped.
	stopAgents, stopServers = 20, 10
	// stopCallsPerSecond is the total rate of the calls that are made for all targets.
	stopCallsPerSecond = 1000
	// wideReason is the reason that the operator gives for stopping the calls of all targets.
	wideReason = "a test of all targets"
)

// A stopTarget is an agent or a server whose calls are stopped. It has its own tool, and only the calls made for this
// target use that tool. A stop of another target does not cover these calls: agent targets call a server that is not a
// target, and server targets are called by an agent that is not a target.
type stopTarget struct {
	// name is the name of the target and of its tool.
	name          string
	selector      *policyv1.StopSelector
	server, token string
	results       [2]stopResults // for each gateway

	mu       sync.Mutex
	arrivals []time.Time // the times at which the server received calls
}

func (s *stopTarget) reason() string { return "a test of " + s.name }

// stopResults counts the results of the calls made for one target at one gateway. other counts failed requests, for
// example while the gateway can't check the token.
type stopResults struct{ ran, stopped, unavailable, other atomic.Int64 }

func (r *stopResults) countRan() int64     { return r.ran.Load() }
func (r *stopResults) countStopped() int64 { return r.stopped.Load() }

// addTargets adds the targets to the test, and their servers and tokens to the mesh's options.
func (c *stopTest) addTargets(opts *stack.Options) {
	var agents []*stopTarget
	for i := range stopAgents {
		name := fmt.Sprintf("agent-%02d", i)
		agents = append(agents, &stopTarget{name: name, selector: &policyv1.StopSelector{Agent: name}, server: "shared", token: "token-of-" + name + "-A1b2C3d4E5f6G7h8"})
		opts.Tokens += fmt.Sprintf("    - {name: %s, token: %q, agent: %[1]s, role: agent}\n", name, agents[i].token)
	}
	opts.Servers = c.startTargetServer("shared", agents)
	for i := range stopServers {
		name := fmt.Sprintf("server-%02d", i)
		target := &stopTarget{name: name, selector: &policyv1.StopSelector{Server: name}, server: name, token: stack.AgentToken}
		opts.Servers += c.startTargetServer(name, []*stopTarget{target})
	}
}

// startTargetServer starts a server that has the tools of the given targets, and returns its configuration.
func (c *stopTest) startTargetServer(name string, targets []*stopTarget) string {
	tools := make([]string, len(targets))
	for i, target := range targets {
		tools[i] = target.name
	}
	up := rawmcp.Start(c.t, rawmcp.ToolList(tools...))
	for _, target := range targets {
		up.SetAnswer(target.name, func(w http.ResponseWriter, r *http.Request, id string) {
			at := time.Now()
			target.mu.Lock()
			target.arrivals = append(target.arrivals, at)
			target.mu.Unlock()
			rawmcp.Result(`{"content":[{"type":"text","text":"ran"}]}`)(w, r, id)
			up.DropRequests()
		})
	}
	c.targets = append(c.targets, targets...)
	return fmt.Sprintf("  %s: {http: {url: %q}}\n", name, up.URL)
}

// callTools checks that each gateway permits the first calls to the tools of all targets.
func (c *stopTest) callTools() {
	c.t.Helper()
	for _, g := range c.gateways {
		for _, target := range c.targets {
			client := stack.Connect(c.t, g.MCP(target.server), target.token)
			if text := client.Call(target.name, `{}`).Text(c.t); text != "ran" {
				c.t.Errorf("the first call of %s: %s", target.name, text)
			}
		}
	}
}

// startCallers starts one caller for each target at each gateway. The callers make calls until ctx is done.
func (c *stopTest) startCallers(ctx context.Context) {
	begin, interval := time.Now(), time.Second/stopCallsPerSecond
	callers := len(c.targets) * len(c.gateways)
	for i, target := range c.targets {
		for g := range c.gateways {
			first := begin.Add(time.Duration(i*len(c.gateways)+g) * interval)
			c.callers.Go(func() { c.callTarget(ctx, target, g, first, time.Duration(callers)*interval) })
		}
	}
}

// callTarget calls the tool of a target through a gateway. It makes the first call at the time in the parameter first,
// and then calls the tool at regular intervals. Calls that are behind schedule follow each other without a pause.
func (c *stopTest) callTarget(ctx context.Context, target *stopTarget, gateway int, first time.Time, interval time.Duration) {
	client := stack.NewClient(nil, c.gateways[gateway].MCP(target.server), target.token)
	request := []byte(stack.CallRequest(fmt.Sprintf(`{"name":%q}`, target.name)))
	results := &target.results[gateway]
	open := false
	for due := first; ; due = due.Add(interval) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		if !open {
			if open = client.Open() == nil; !open {
				results.other.Add(1)
				continue
			}
		}
		resp, err := client.TryPost(request)
		if open = err == nil && resp.Status == http.StatusOK; !open {
			results.other.Add(1)
			continue
		}
		c.countResult(target, gateway, resp.Body)
	}
}

// countResult counts the response to a call that was made for a target. If the call was refused, the reason must be the
// reason for the target's stop or the reason for a stop of all targets.
func (c *stopTest) countResult(target *stopTarget, gateway int, body []byte) {
	results := &target.results[gateway]
	stopped := func(reason string) bool { return bytes.Contains(body, []byte("Stopped by an operator: "+reason+".")) }
	switch {
	case bytes.Contains(body, []byte(`"text":"ran"`)):
		results.ran.Add(1)
	case bytes.Contains(body, []byte(`"code":"stopped"`)) && (stopped(target.reason()) || stopped(wideReason)):
		results.stopped.Add(1)
	case bytes.Contains(body, []byte(`"code":"policy_unavailable"`)):
		results.unavailable.Add(1)
	default:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wrong = append(c.wrong, fmt.Sprintf("%v after the start, for %s at gateway %d: %s", time.Since(c.began).Round(time.Millisecond), target.name, gateway+1, body))
	}
}

// A resultGoal is a value that the counter of one target's results at one gateway must reach.
type resultGoal struct {
	target  *stopTarget
	gateway int
	value   int64
}

// awaitResults waits until the counter that the function count selects has grown by two for each target at each
// gateway. An increase by two shows that the last of these calls began after awaitResults was called. During a fault,
// awaitResults does not wait for the second gateway.
func (c *stopTest) awaitResults(ctx context.Context, targets []*stopTarget, what string, count func(*stopResults) int64) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeLimit)
	defer cancel()
	var goals []resultGoal
	for _, target := range targets {
		for g := range c.gateways {
			goals = append(goals, resultGoal{target, g, count(&target.results[g]) + 2})
		}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		goals = slices.DeleteFunc(goals, func(g resultGoal) bool {
			return count(&g.target.results[g.gateway]) >= g.value || g.gateway == 1 && c.faulty.Load()
		})
		if len(goals) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s, of %s at gateway %d: %w", what, goals[0].target.name, goals[0].gateway+1, ctx.Err())
		case <-tick.C:
		}
	}
}
