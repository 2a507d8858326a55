package catalog_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A mesh has many servers with a hundred tools each. The gateway lists all servers, and the policy service evaluates
// calls by the class of each tool. SLUICE_SERVERS sets the number of servers. The default is 20.
func TestManyServers_AreListedAndCallsAreDecidedByClass(t *testing.T) {
	t.Parallel()
	many, tools := 20, 100
	if text := os.Getenv("SLUICE_SERVERS"); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil || many < 1 {
			t.Fatalf("SLUICE_SERVERS=%q is not a number of servers", text)
		}
	}
	var list []string
	for i := range tools {
		verb := []string{"Gets", "Updates", "Runs", "Deletes"}[i%4]
		list = append(list, toolDefinition(fmt.Sprintf("tool_%03d", i), fmt.Sprintf("%s the thing of number %d, with all that belongs to it, for whoever asks.", verb, i)))
	}
	up := rawmcp.Start(t, "["+strings.Join(list, ",")+"]")
	var servers strings.Builder
	for i := range many {
		fmt.Fprintf(&servers, "  server-%04d: {http: {url: %q}}\n", i, up.URL)
	}
	s := stack.WriteConfig(t, stack.Options{Servers: servers.String(), Policy: classPolicy, GRPC: stack.FreeAddr(t), Extra: "approvals: {hold: 0s}"})
	stack.Program(t, "sluice") // builds the program before the test measures the first start
	begin := time.Now()
	p := stack.Start(t, s)
	pages := policyv1.NewCatalogServiceClient(p.Operator(t))
	total := func() int32 {
		resp, err := pages.ListTools(stack.TimeoutContext(t), &policyv1.ListToolsRequest{PageSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetTotal()
	}
	eventually.Within(t, 10*time.Minute, "every server is listed", func() bool { return int(total()) == many*tools })
	t.Logf("%d servers of %d tools are listed after %v; %d MiB resident", many, tools, time.Since(begin).Round(100*time.Millisecond), p.PeakMemory(t))
	last := fmt.Sprintf("server-%04d", many-1)
	c := stack.Connect(t, p.MCP(last), stack.AgentToken)
	if resp := c.Call("tool_000", "{}"); resp.IsError(t) {
		t.Errorf("the tool that reads: %s", resp.Body)
	}
	if d := c.Call("tool_003", "{}").Decision(t); d.Code != "approval_pending" {
		t.Errorf("the tool that deletes: %+v", d)
	}
	shown := time.Now()
	page, err := pages.GetTool(stack.TimeoutContext(t), &policyv1.GetToolRequest{Server: last, Tool: "tool_003"})
	if err != nil || page.GetTool().GetAdvice().GetWhy() == "" {
		t.Errorf("the page of the tool: %v, %v", page, err)
	}
	t.Logf("a page takes %v", time.Since(shown).Round(10*time.Microsecond))
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	p = stack.Start(t, s)
	pages = policyv1.NewCatalogServiceClient(p.Operator(t))
	if got := total(); int(got) != many*tools {
		t.Errorf("after a restart the catalog has %d tools", got)
	}
	t.Logf("after a restart the mesh serves again, with the whole catalog, after %v; %d MiB resident", time.Since(begin).Round(10*time.Millisecond), p.PeakMemory(t))
}
