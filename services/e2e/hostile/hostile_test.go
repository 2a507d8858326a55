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
	// byDefault is how long it lasts where SLUICE_HOSTILE does not say.
	byDefault = 24 * time.Second
	// stretch is how long the agent is looked at while the attackers rest, and then how
	// long while they attack; settling is how long it goes on unseen before, so that
	// neither is judged by the other's end.
	stretch  = 6 * time.Second
	settling = 2 * time.Second
	// slower is how many times slower the 99th of 100 calls may be under attack, in the
	// middle one of all rounds: a hiccup of the machine decides nothing.
	slower = 2
	// mostMemory is what the mesh may have resident, in MiB: what it has at rest, and four
	// times the shares of a principal's requests and answers, 64 MiB each, and of a
	// person's, 32 MiB. The collector goes over what is used once it has doubled, and the
	// system has back what was used before only later.
	mostMemory = 768
	// told is how often the log says how it goes, and afterwards is what is kept of the
	// test's own time for the end.
	told, afterwards = time.Minute, 3 * time.Minute
	// patience is how much longer it lasts until each attack was done: on a busy machine
	// little is left for attackers.
	patience = time.Minute
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
  judged:
    action: require_approval
    grant: {calls: 100, within: 1h, critical: true, where: 'path.within(args.path, "/srv") && args.paths.all(p, path.within(p, "/srv"))'}
  ask: {action: require_approval, reason: a person is asked}
  secret: {action: hide}
`

// TestAWellBehavedCallerBesideAttackers lets agents, servers and strangers do their
// worst, in turns with rest, while one agent calls as it always does. Each of its calls
// must pass, reach its server once and be on record, and the mesh must keep to its
// memory. How much slower its calls are is judged where SLUICE_HOSTILE asks for a run of
// a length, and only told otherwise. Ctrl-C ends it with what is known by then.
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

// startMesh starts a mesh in front of the good agent's server and the hostile ones.
func startMesh(t *testing.T, good string, bad map[string]string) *stack.Process {
	t.Helper()
	servers := "  good: {http: {url: " + good + "}}\n  spam: {stdio: {command: [chrt, --idle, \"0\", sh, -c, \"yes\"]}}\n"
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		servers += fmt.Sprintf("  %s: {http: {url: %s}}\n", name, bad[name])
	}
	s := stack.Write(t, stack.Options{
		Servers: servers, Policy: policy,
		Tokens: fmt.Sprintf("    - {name: attackers, token: %q, agent: bad, role: agent}\n", badToken),
		// In an hour the good agent makes more calls than its share of the journal holds as it is set.
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
	t.Logf("%d calls, each at its server once; the journal is whole and holds of them %v", made, kinds)
}
