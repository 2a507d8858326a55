package failpoint_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/failpoint"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }

const policy = "version: 1\nname: p\nserver: raw\ndefault: deny\ntools: {safe: {action: allow}}\n"

// A program that package failpoint has built contains all failpoints in the code. It blocks at a failpoint when the
// number of hits exceeds Pass.
func TestTrap_ProgramBlocksAtTheFailpoint(t *testing.T) {
	t.Parallel()
	build, err := failpoint.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := failpoint.Open(t.Context())
	if diff := cmp.Diff(build, again); err != nil || diff != "" {
		t.Errorf("the same sources are built again: %v (-first +again):\n%s", err, diff)
	}
	up := rawmcp.Start(t, `[{"name":"safe","inputSchema":{"type":"object"}}]`)
	site := stack.WriteConfig(t, stack.Options{Policy: policy, Servers: "  raw: {http: {url: \"" + up.URL + "\"}}"})
	trap := failpoint.Trap{Point: "gatewayAfterSend", Pass: 2, Addr: stack.FreeAddr(t)}
	site.Program, site.Env = build.Sluice, trap.Env()
	mesh := stack.Start(t, site)
	if points, err := trap.Points(t.Context()); err != nil || !slices.Equal(points, build.Points) || !slices.Contains(points, trap.Point) {
		t.Errorf("the program has the points %v, the code %v: %v", points, build.Points, err)
	}
	c := stack.Connect(t, mesh.MCP("raw"), stack.AgentToken)
	for range 2 {
		if resp := c.Call("safe", "{}"); resp.IsError(t) {
			t.Fatalf("a call before the trap: %s", resp.Body)
		}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := c.TryPost([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":{}}}`))
		answered <- err
	}()
	if err := trap.Await(stack.TimeoutContext(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		t.Errorf("the third call returned (%v)", err)
	case <-time.After(50 * time.Millisecond):
	}
	mesh.Kill()
	if err := <-answered; err == nil || len(up.Calls()) != 3 {
		t.Errorf("a killed mesh responded; the server received %d calls", len(up.Calls()))
	}
}

func TestProgram_HasNoFailpointsForUsers(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "version", "-m", stack.Program(t, "sluice")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "google.golang.org/grpc") || strings.Contains(string(out), "gofail") {
		t.Errorf("the modules of the program: %v\n%s", err, out)
	}
}

func TestTrap_UnreachedPointIsAnError(t *testing.T) {
	t.Parallel()
	trap := failpoint.Trap{Point: "nowhere", Addr: stack.FreeAddr(t)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := trap.Await(ctx); err == nil || !strings.Contains(err.Error(), "nowhere was not hit") {
		t.Errorf("Await returned %v", err)
	}
}
