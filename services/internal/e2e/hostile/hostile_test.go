package hostile_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// byDefault is how long it lasts where SLUICE_HOSTILE does not say.
	byDefault = 24 * time.Second
	// stretch is how long the attackers rest, and then how long they attack.
	stretch = 6 * time.Second
	// goodCallers call so often each.
	goodCallers = 4
	pause       = 20 * time.Millisecond
	// mostMemory is what the mesh may have resident, in MiB.
	mostMemory = 1536
	// slower is how many times slower the 99th of 100 calls may be under attack.
	slower = 2
	// badToken is the attackers'.
	badToken = "test-attackers-token-B5n4M3c2X1z0L9"
)

const policy = `version: 1
name: hostile
default: deny
tools:
  safe:
    action: allow
    rate_limit: {max: 1000000, window: 60, per: [principal]}
  big: {action: allow}
  free: {action: allow}
  t: {action: allow}
  ask: {action: require_approval, reason: a person is asked}
  secret: {action: hide}
`

// TestAWellBehavedCallerBesideAttackers lets agents, servers and strangers do their
// worst, in turns with rest, while one agent calls as it always does. Each of its calls
// must pass and be on record, and the mesh must keep to its memory. How much slower its
// calls are is judged where SLUICE_HOSTILE asks for a long run, and only told otherwise.
func TestAWellBehavedCallerBesideAttackers(t *testing.T) {
	lasts, judged := byDefault, false
	if text, ok := os.LookupEnv("SLUICE_HOSTILE"); ok {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SLUICE_HOSTILE: %v", err)
		}
		judged = true
	}
	stack.Program(t, "sluice") // building it is no part of the run
	bad := startAttackers(t)
	good := rawmcp.Start(t, `[{"name":"safe","inputSchema":{"type":"object"}}]`)
	servers := "  good: {http: {url: " + good.URL + "}}\n  spam: {stdio: {command: [sh, -c, \"yes\"]}}\n"
	for _, name := range slices.Sorted(maps.Keys(bad.urls)) {
		servers += fmt.Sprintf("  %s: {http: {url: %s}}\n", name, bad.urls[name])
	}
	mesh := stack.Start(t, stack.Write(t, stack.Options{
		Servers: servers, Policy: policy,
		Tokens: fmt.Sprintf("    - {name: attackers, token: %q, agent: bad, role: agent}\n", badToken),
		Extra:  "approvals: {hold: 0s}\n",
	}))
	told, err := json.Marshal(target{MCP: mesh.URL, GRPC: mesh.GRPC, Token: badToken})
	if err != nil {
		t.Fatal(err)
	}
	bad.tell(string(told))

	var quiet, attacked calls
	memory := []int{resident(t, mesh.PID())}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		bad.turn("rest")
		quiet.during(t, mesh.Stack, stretch)
		bad.turn("attack")
		attacked.during(t, mesh.Stack, stretch)
		memory = append(memory, resident(t, mesh.PID()))
	}
	report(t, bad.end())
	made := len(quiet.took) + len(attacked.took)
	before, beside := quiet.percentile(99), attacked.percentile(99)
	t.Logf("%d calls at rest, p50 %v, p99 %v; %d under attack, p50 %v, p99 %v, %.1f times; at most %d MiB resident",
		len(quiet.took), quiet.percentile(50), before, len(attacked.took), attacked.percentile(50), beside,
		float64(beside)/float64(before), slices.Max(memory))
	if n := len(good.Calls("safe")); n != made {
		t.Errorf("%d calls were made and %d reached the server", made, n)
	}
	if err := mesh.Stop(t); err != nil {
		t.Errorf("the mesh stopped with %v", err)
	}
	recorded(t, mesh.Stack, made)
	if most := slices.Max(memory); most > mostMemory {
		t.Errorf("%d MiB resident, want at most %d", most, mostMemory)
	}
	if judged && beside > slower*before {
		t.Errorf("the 99th of 100 calls took %v under attack and %v without, want at most %d times as long", beside, before, slower)
	}
}

// recorded looks for the records of all the calls that the well-behaved agent made, and
// whether the journal is whole.
func recorded(t *testing.T, mesh *stack.Stack, made int) {
	t.Helper()
	if _, err := journal.Verify(mesh.Journal()); err != nil {
		t.Errorf("the journal: %v", err)
	}
	cfg := journal.DefaultConfig(mesh.Journal(), t.TempDir())
	cfg.Log = slog.New(slog.DiscardHandler)
	j, err := journal.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	kinds := make(map[journal.Kind]int)
	for rec, err := range j.Calls(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Server == "good" {
			kinds[rec.Kind]++
		}
	}
	if kinds[journal.KindIntent] != made || kinds[journal.KindOutcome] != made {
		t.Errorf("%d calls were made and the journal holds of them %v", made, kinds)
	}
}

// report logs how often each attack was done; one that was not is a failure.
func report(t *testing.T, counts map[string]int64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%8d × %s", counts[name], name)
		if counts[name] == 0 {
			t.Errorf("%s was never done", name)
		}
	}
}

// calls are how long calls took.
type calls struct {
	mu   sync.Mutex
	took []time.Duration
}

// during calls for a while, each caller in a session of its own. A call that does not
// pass is a failure.
func (c *calls) during(t *testing.T, mesh *stack.Stack, length time.Duration) {
	t.Helper()
	var calling sync.WaitGroup
	end := time.Now().Add(length)
	for range goodCallers {
		calling.Go(func() {
			client := stack.Connect(t, mesh.MCP("good"), stack.AgentToken)
			for time.Now().Before(end) {
				start := time.Now()
				resp := client.Call("safe", `{"q":"tea"}`)
				took := time.Since(start)
				if resp.Status != 200 || resp.IsError(t) {
					t.Errorf("a well-behaved call was answered %d %s", resp.Status, resp.Body)
				}
				c.mu.Lock()
				c.took = append(c.took, took)
				c.mu.Unlock()
				<-time.After(pause)
			}
		})
	}
	calling.Wait()
}

// percentile is how long so many of 100 calls took at the most.
func (c *calls) percentile(n int) time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	slices.Sort(c.took)
	return c.took[(len(c.took)-1)*n/100].Round(10 * time.Microsecond)
}

// resident is the most memory that a process has had resident, in MiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatalf("no VmHWM in %s", raw)
	return 0
}
