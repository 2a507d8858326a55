package hostile_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// byDefault is the duration of the test if SLUICE_HOSTILE is not set.
	byDefault = 24 * time.Second
	// stretch is how long the agent is measured while the attackers rest, and again while they attack. settling is
	// the unmeasured time before each measurement, so that neither is affected by the end of the other.
	stretch  = 6 * time.Second
	settling = 2 * time.Second
	// slower is the highest permitted ratio of the 99th percentiles under attack and at rest. The median of all
	// rounds is compared, so that a single delay of the machine does not matter.
	slower = 2
	// mostMemory is the highest permitted resident memory of the mesh, in MiB. It allows for the memory at rest,
	// and four times the quotas of a principal's requests and answers, 64 MiB each, and of a person's, 32 MiB. The
	// factor is there because the garbage collector runs when the heap has doubled, and memory is returned to the
	// system only later.
	mostMemory = 768
	// told is the interval of the log lines. afterwards is the part of the test's own time limit that is reserved
	// for the end.
	told, afterwards = time.Minute, 3 * time.Minute
	// patience is how much longer the test runs until each attack was made: on a busy machine attackers get little
	// processor time.
	patience = time.Minute
	// badToken is the token of the attackers.
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
  judged:
    action: require_approval
    grant: {calls: 100, within: 1h, critical: true, where: 'path.within(args.path, "/srv") && args.paths.all(p, path.within(p, "/srv"))'}
  ask: {action: require_approval, reason: a person is asked}
  secret: {action: hide}
`

// TestAWellBehavedCallerBesideAttackers makes agents, servers and unauthenticated clients attack, in turns with
// rest, while one agent calls as usual. Each of its calls must pass, reach its server once and be on record, and
// the mesh must stay within its memory limit. The latency is judged only if SLUICE_HOSTILE sets a duration;
// otherwise it is only logged. Ctrl-C ends the test with the results so far.
func TestAWellBehavedCallerBesideAttackers(t *testing.T) {
	lasts, judged := byDefault, false
	if text, ok := os.LookupEnv("SLUICE_HOSTILE"); ok {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SLUICE_HOSTILE: %v", err)
		}
		judged = true
	}
	stack.Program(t, "sluice") // building it is not part of the run
	server := newCounting()
	good := httptest.NewServer(server)
	defer good.Close()
	bad := startAttackers(t)
	mesh := startMesh(t, good.URL+"/mcp", bad.urls)
	bad.aim(target{MCP: mesh.URL, GRPC: mesh.GRPC, Token: badToken})
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if deadline, ok := t.Deadline(); ok {
		ctx, stop = context.WithDeadline(ctx, deadline.Add(-afterwards))
		defer stop()
	}

	caller, seen := newAgent(t, mesh.MCP("good")), watch{pid: mesh.PID(), began: time.Now()}
	end, next := seen.began.Add(lasts), seen.began.Add(told)
	for now := time.Now(); ctx.Err() == nil && (now.Before(end) || now.Before(end.Add(patience)) && seen.lacks() != ""); now = time.Now() {
		if seen.round(ctx, t, caller, bad); time.Now().After(next) {
			seen.tell(t)
			next = next.Add(told)
		}
	}
	seen.summary(t)
	if lacks := seen.lacks(); lacks != "" {
		t.Errorf("%s was never done", lacks)
	}
	if err := mesh.Stop(t); err != nil {
		t.Errorf("the mesh stopped with %v", err)
	}
	server.check(t, caller.made.Load())
	recorded(t, mesh.Stack, int(caller.made.Load()))
	if seen.most > mostMemory {
		t.Errorf("%d MiB resident, want at most %d", seen.most, mostMemory)
	}
	if ratio := seen.ratio(); judged && ratio > slower {
		t.Errorf("the 99th of 100 calls took %.1f times as long under attack, want at most %d", ratio, slower)
	}
}

// startMesh starts a mesh in front of the well-behaved agent's server and the hostile servers.
func startMesh(t *testing.T, good string, bad map[string]string) *stack.Process {
	t.Helper()
	servers := "  good: {http: {url: " + good + "}}\n  spam: {stdio: {command: [chrt, --idle, \"0\", sh, -c, \"yes\"]}}\n"
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		servers += fmt.Sprintf("  %s: {http: {url: %s}}\n", name, bad[name])
	}
	s := stack.Write(t, stack.Options{
		Servers: servers, Policy: policy,
		Tokens: fmt.Sprintf("    - {name: attackers, token: %q, agent: bad, role: agent}\n", badToken),
		// In an hour the well-behaved agent makes more calls than its default quota of the journal holds.
		Extra: "approvals: {hold: 0s}\njournal: {calls_mib: 8192}\n",
	})
	s.OwnGroup = true
	if os.Getenv(comesFirst) == "" {
		t.Log("the agent and its server share processors with the mesh: a user who may not have SCHED_RR measures its calls as slower than they are")
	} else {
		s.Under = []string{"chrt", "--other", "0"}
	}
	return stack.Start(t, s)
}

// recorded checks that the journal is intact and holds the records of all calls that the well-behaved agent made.
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
	t.Logf("%d calls, each at its server once; the journal is whole and holds of them %v", made, kinds)
}
