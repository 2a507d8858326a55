package hostile_test

import (
	"context"
	"maps"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestHostile_CostsOfAttacks logs the processor time that the mesh spends on each attack. A single worker makes the
// attacks one after another, each for the duration in SLUICE_ATTACK_COSTS. With these numbers, two builds can be
// compared on a machine that is too busy for TestHostile_WellBehavedCallerIsServedUnderAttack.
func TestHostile_CostsOfAttacks(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("SLUICE_ATTACK_COSTS"))
	if err != nil {
		t.Skip("SLUICE_ATTACK_COSTS is not set: it holds the duration of each attack")
	}
	stack.Program(t, "sluice")
	good := httptest.NewServer(newCountingServer())
	defer good.Close()
	urls := make(map[string]string)
	for name, handler := range servers() {
		server := httptest.NewServer(handler)
		defer server.Close()
		urls[name] = server.URL + "/mcp"
	}
	mesh := startMesh(t, good.URL+"/mcp", maps.Clone(urls))
	at, seen := target{MCP: mesh.URL, GRPC: mesh.GRPC, Token: badToken}, measurements{pid: mesh.PID()}
	for _, a := range selectedAttacks() {
		ctx, cancel := context.WithTimeout(t.Context(), lasts)
		done, before, began := 0, seen.cpuTime(t), time.Now()
		for ctx.Err() == nil {
			if a.do(ctx, at) {
				done++
			} else {
				sleep(ctx, 10*time.Millisecond)
			}
		}
		cancel()
		used, took := seen.cpuTime(t)-before, time.Since(began)
		t.Logf("%9.3f ms each, %5.2f processors, %7d × %s", used.Seconds()*1000/float64(max(1, done)), used.Seconds()/took.Seconds(), done, a.name)
	}
	if err := mesh.Stop(t); err != nil {
		t.Errorf("the mesh stopped with %v", err)
	}
}
