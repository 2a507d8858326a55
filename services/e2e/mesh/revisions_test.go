package mesh_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// revisionChanges is the number of changes to the policy. revisionCallers is the number of callers of each tool at
	// each gateway.
	revisionChanges, revisionCallers = 6, 4
	// revisionRuns is the number of calls that must succeed at each gateway after each change.
	revisionRuns = 5
)

// revisionTools contains the tools of the test. Each policy revision allows only one of them.
var revisionTools = [2]string{"even", "odd"}

// revisionsTest is a mesh with two gateways, each with its own policy service. Both policy services use one database.
type revisionsTest struct {
	t        *testing.T
	gateways [2]*stack.Distributed
	operator [2]policyv1.PolicyServiceClient
	// ran contains the number of successful calls to each tool at each gateway.
	ran [2][2]atomic.Int64

	mu sync.Mutex
	// arrivals contains the times at which the server received calls to each tool.
	arrivals [2][]time.Time
}

func newRevisionsTest(t *testing.T) *revisionsTest {
	t.Helper()
	c := &revisionsTest{t: t}
	up := rawmcp.Start(t, rawmcp.ToolList(revisionTools[:]...))
	for i, tool := range revisionTools {
		up.SetAnswer(tool, func(w http.ResponseWriter, r *http.Request, id string) {
			c.mu.Lock()
			c.arrivals[i] = append(c.arrivals[i], time.Now())
			c.mu.Unlock()
			rawmcp.Result(`{"content":[{"type":"text","text":"ran"}]}`)(w, r, id)
			up.DropRequests()
		})
	}
	first := stack.StartDistributed(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), StoredPolicies: true,
		Extra: fmt.Sprintf("stores: {policy: %q}", sqlstoretest.Start(t).Database(t)),
	})
	second := first.StartReplica(t, policyRole, nil)
	c.gateways = [2]*stack.Distributed{first, first.StartReplica(t, gatewayRole, map[authv1.Role]string{policyRole: second.Addr(policyRole)})}
	c.gateways[1].AwaitReady(t)
	for i, p := range []*stack.Distributed{first, second} {
		c.operator[i] = policyv1.NewPolicyServiceClient(p.DialWithToken(t, policyRole, stack.OperatorToken))
	}
	return c
}

// apply activates, at one of the policy services, the policy documents that allow only one of the tools.
func (c *revisionsTest) apply(number int) (requested, acknowledged time.Time) {
	c.t.Helper()
	text := fmt.Sprintf("version: 1\nname: p\ndefault: deny\ntools: {%s: {action: allow}}\n", revisionTools[number%2])
	requested = time.Now()
	_, err := c.operator[number/2%2].ApplyDocuments(stack.TimeoutContext(c.t), &policyv1.ApplyDocumentsRequest{
		Documents: []*policyv1.Document{{Path: "p.yaml", Text: text}}, Comment: fmt.Sprint("change ", number),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return requested, time.Now()
}

// call calls a tool at a gateway until ctx is done.
func (c *revisionsTest) call(ctx context.Context, gateway, tool int) {
	client := stack.NewClient(c.t, c.gateways[gateway].MCP("raw"), stack.AgentToken)
	if err := client.Open(); err != nil {
		c.t.Errorf("open a session: %v", err)
		return
	}
	request := []byte(stack.CallRequest(fmt.Sprintf(`{"name":%q}`, revisionTools[tool])))
	for ctx.Err() == nil {
		resp, err := client.TryPost(request)
		if err != nil {
			c.t.Errorf("call %s: %v", revisionTools[tool], err)
			return
		}
		if resp.Decision(c.t).Code == "" {
			c.ran[gateway][tool].Add(1)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// awaitRuns waits until calls to a tool succeed at both gateways.
func (c *revisionsTest) awaitRuns(tool int) {
	c.t.Helper()
	for gateway := range c.gateways {
		from := c.ran[gateway][tool].Load()
		eventually.Holds(c.t, "calls that the new documents allow run", func() bool { return c.ran[gateway][tool].Load() >= from+revisionRuns })
	}
}

// Two policy services take turns applying policy documents while calls are made at two gateways. After the
// acknowledgement of the newer documents, no call that only the older documents allow reaches the server.
func TestRevisions_NoCallIsDecidedByOlderDocumentsAfterTheAcknowledgement(t *testing.T) {
	t.Parallel()
	c := newRevisionsTest(t)
	_, acknowledged := c.apply(0)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var callers sync.WaitGroup
	for gateway := range c.gateways {
		for tool := range revisionTools {
			for range revisionCallers {
				callers.Go(func() { c.call(ctx, gateway, tool) })
			}
		}
	}
	type period struct {
		tool         int // the tool that is denied
		begin, until time.Time
	}
	var periods []period
	for number := 1; number <= revisionChanges; number++ {
		c.awaitRuns((number - 1) % 2)
		requested, next := c.apply(number)
		periods = append(periods, period{number % 2, acknowledged, requested})
		acknowledged = next
	}
	c.awaitRuns(revisionChanges % 2)
	periods = append(periods, period{1 - revisionChanges%2, acknowledged, time.Now()})
	stop()
	callers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range periods {
		for _, at := range c.arrivals[p.tool] {
			if at.After(p.begin) && at.Before(p.until) {
				t.Errorf("a call of %s reached the server %v after its documents were replaced", revisionTools[p.tool], at.Sub(p.begin))
			}
		}
	}
	t.Logf("%d and %d calls ran", len(c.arrivals[0]), len(c.arrivals[1]))
}
