package clients_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// demoServer is a `sluice demo-server` process, which counts the requests it receives.
type demoServer struct{ addr string }

func startDemoServer(t *testing.T) *demoServer {
	t.Helper()
	d := &demoServer{addr: stack.FreeAddr(t)}
	cmd := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "demo-server", "--listen", d.addr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // cancelling the test's context kills the process
	eventually.Holds(t, "the demo server serves", func() bool {
		resp, err := http.Get("http://" + d.addr + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return d
}

// entry returns the server's configuration entry.
func (d *demoServer) entry() string {
	return fmt.Sprintf("  demo: {http: {url: \"http://%s/mcp\"}}", d.addr)
}

// demoStats contains the counts of requests that reached the server.
type demoStats struct {
	Posts, Calls int
	Tools        map[string]int
}

func (d *demoServer) stats(t *testing.T) demoStats {
	t.Helper()
	resp, err := http.Get("http://" + d.addr + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s demoStats
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}
