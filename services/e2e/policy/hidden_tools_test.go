package policy_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// pairsVariable is the name of the environment variable that sets the number of pairs of calls to time. If it is not
// set, the timing test is skipped.
const pairsVariable = "SLUICE_PAIRS"

// hidingPolicies contains policies that hide some of the server's tools and some names of tools that do not exist. The
// other tools are allowed, need approval, or are denied.
var hidingPolicies = map[string]string{
	"allowed by default": "version: 1\nname: p\ndefault: allow\ntools:\n  secret-a: {action: hide}\n" +
		"rules:\n  - {name: paced, match: {tool: \"*\"}, rate_limit: {max: 1000000, window: 60, per: [session]}}\n  - {name: unseen, match: {tool: hidden-*}, action: hide, reason: not for you}\n",
	"asked for by default": "version: 1\nname: p\ndefault: deny\ntools:\n  secret-a: {action: hide}\nrules:\n  - {name: all, match: {tool: \"*\"}, action: require_approval}\n  - {name: unseen, match: {tool: hidden-*}, action: hide}\n",
	"denied by default":    "version: 1\nname: p\ndefault: deny\ntools:\n  secret-a: {action: hide}\n  safe: {action: allow}\nrules:\n  - {name: unseen, match: {tool: hidden-*}, action: hide}\n",
}

const hidingTools = `[{"name":"safe","inputSchema":{}},{"name":"secret-a","inputSchema":{}},{"name":"hidden-b","inputSchema":{}},{"name":"plain-c","inputSchema":{}}]`

// These patterns match the values that differ between the responses to any two calls. The policy revision can also
// differ: the server's first tool list creates a new revision, which may happen between the two calls.
var (
	decisionID     = regexp.MustCompile(`"id":"[0-9a-f]{8}-[^"]*"`)
	policyRevision = regexp.MustCompile(`"policyRevision":"[0-9a-f]{64}"`)
)

// startHidingMesh starts a mesh with a policy that hides tools, and connects a client to it.
func startHidingMesh(t *testing.T, policy string) (*rawmesh.Mesh, *stack.Client) {
	t.Helper()
	f := rawmesh.StartUnpinned(t, policy, "", hidingTools)
	f.Connect(t).Call("safe", "{}") // adds the server to the catalog, so that the revision does not change later
	return f, f.Connect(t)
}

// Case X9. A call to a hidden tool gets the same response as a call to an absent tool, except for the decision id. The
// server receives no request, and the records differ only in fields that also differ between records of other calls.
// This is true before and after the client has listed the tools.
func TestHiddenTool_AnswersLikeAnAbsentOne(t *testing.T) {
	t.Parallel()
	for name, policy := range hidingPolicies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, c := startHidingMesh(t, policy)
			told := func(tool string) string {
				resp := c.Call(tool, `{"x":1}`)
				body := decisionID.ReplaceAllString(string(resp.Body), `"id":""`)
				return fmt.Sprint(resp.Status, len(resp.Header), " ") + policyRevision.ReplaceAllString(body, `"policyRevision":""`)
			}
			want := told("secret-a")
			if !strings.Contains(want, `"code":"tool_unknown"`) || strings.Contains(want, "rule") || strings.Contains(want, "secret") {
				t.Fatalf("the response for a hidden tool is %s", want)
			}
			reached := len(f.Upstream.Requests())
			for range 2 {
				for _, tool := range []string{"secret-a", "hidden-b", "absent", "secret-z", "hidden-z", "hidden-", "tools.secret-a", "SECRET-A"} {
					if got := told(tool); got != want {
						t.Errorf("the response for %s is %s\nwant %s", tool, got, want)
					}
				}
				if len(f.Upstream.Requests()) != reached {
					t.Errorf("%d messages reached the server", len(f.Upstream.Requests())-reached)
				}
				if listed := string(c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).Body); strings.Contains(listed, "secret") || strings.Contains(listed, "hidden") {
					t.Errorf("the listed tools are %s", listed)
				}
				reached = len(f.Upstream.Requests())
			}
			checkRecordShapes(t, f)
		})
	}
}

// checkRecordShapes checks that the record of a call to a hidden tool is equal to the record of a call to an absent
// tool, except for fields such as the tool's name, the time and the ids.
func checkRecordShapes(t *testing.T, f *rawmesh.Mesh) {
	t.Helper()
	var of [2]*gatewayv1.Record
	for _, r := range f.Records(t) {
		switch r.GetTool() {
		case "secret-a":
			of[0] = r
		case "absent":
			of[1] = r
		}
	}
	if of[0] == nil || of[1] == nil || !of[0].GetHidden() {
		t.Fatalf("the records are %v and %v", of[0], of[1])
	}
	if diff := cmp.Diff(of[0], of[1], protocmp.Transform(), protocmp.IgnoreFields(new(gatewayv1.Record),
		"tool", "sequence", "time", "previous_hash", "decision_id", "trace_id", "policy_revision", "latency", "request_bytes")); diff != "" {
		t.Errorf("the records differ in another field:\n%s", diff)
	}
}

// Case X9. A tool that is not hidden can be called before the client has listed the tools, and immediately after.
func TestHiddenTool_ListedToolsCanBeCalled(t *testing.T) {
	t.Parallel()
	f, c := startHidingMesh(t, hidingPolicies["allowed by default"])
	for range 2 {
		if resp := c.Call("safe", "{}"); resp.IsError(t) || resp.Text(t) != "ran" {
			t.Fatalf("%s", resp.Body)
		}
		f.Upstream.SetTools(strings.Replace(hidingTools, "[", `[{"name":"fresh","inputSchema":{}},`, 1))
		c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if resp := c.Call("fresh", "{}"); resp.IsError(t) || resp.Text(t) != "ran" {
			t.Fatalf("%s", resp.Body)
		}
		c = f.Connect(t)
	}
}

// Case X9. The response time does not reveal whether a tool is hidden or absent. The test makes pairs of calls, each
// with one call to a hidden tool and one call to an absent tool. In about half of the pairs, the call to the hidden
// tool must take longer.
func TestHiddenTool_ResponseTimeDoesNotRevealIt(t *testing.T) {
	pairs, _ := strconv.Atoi(os.Getenv(pairsVariable))
	if pairs == 0 {
		t.Skipf("set %s, for example to 10000", pairsVariable)
	}
	for name, policy := range hidingPolicies {
		callers := connectManyAgents(t, policy, pairs/pairsPerCaller+1)
		var took [2][]time.Duration
		for i := range pairs {
			c := callers[i/pairsPerCaller]
			timed := func(tool string) time.Duration {
				begin := time.Now()
				c.Call(tool, `{"x":1}`)
				return time.Since(begin)
			}
			for j := range 2 { // the order alternates
				which := (i + j) % 2
				took[which] = append(took[which], timed([]string{"secret-a", "absent-a"}[which]))
			}
		}
		share, z := mannWhitney(took[0], took[1])
		slices.Sort(took[0])
		slices.Sort(took[1])
		t.Logf("%s: over %d pairs the hidden one is slower in %.2f %% (z %.2f); medians %v and %v", name, pairs, 100*share, z, took[0][pairs/2], took[1][pairs/2])
		if math.Abs(z) > 4.5 { // happens by chance in one of 150,000 runs
			t.Errorf("%s: hidden and absent tools can be distinguished", name)
		}
	}
}

// pairsPerCaller is the number of pairs per caller. It is small, because a caller with more than a thousand refusals in
// a minute is slowed down.
const pairsPerCaller = 400

// connectManyAgents starts a mesh with a policy that hides tools, and connects n agents. Each agent has its own
// session.
func connectManyAgents(t *testing.T, policy string, n int) []*stack.Client {
	t.Helper()
	up := rawmcp.Start(t, hidingTools)
	secret := func(i int) string { return fmt.Sprintf("test-many-agents-token-A1b2C3d4-%04d", i) }
	var tokens strings.Builder
	for i := range n {
		fmt.Fprintf(&tokens, "    - {name: many-%d, token: %q, role: agent}\n", i, secret(i))
	}
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: policy, Tokens: tokens.String()})
	callers := make([]*stack.Client, n)
	for i := range callers {
		callers[i] = stack.Connect(t, s.MCP("raw"), secret(i))
		callers[i].Call("absent", "{}") // the first call lists the tools
	}
	return callers
}

// mannWhitney computes the Mann-Whitney U test. share is the fraction of all pairs in which the value from a is greater
// than the value from b. z is the number of standard deviations between share and one half.
func mannWhitney(a, b []time.Duration) (share, z float64) {
	sorted := slices.Sorted(slices.Values(b))
	u := 0.0
	for _, v := range a {
		low, _ := slices.BinarySearch(sorted, v)
		high, _ := slices.BinarySearch(sorted, v+1)
		u += float64(low) + float64(high-low)/2
	}
	n, m := float64(len(a)), float64(len(b))
	return u / (n * m), (u - n*m/2) / math.Sqrt(n*m*(n+m+1)/12)
}
