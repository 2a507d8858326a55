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
	// defaultDuration is the test's duration if SLUICE_HOSTILE is not set.
	defaultDuration = 24 * time.Second
	// measureTime is the duration of each measurement of the well-behaved agent. One measurement is made while the
	// attackers rest, and then one while they attack. settleTime is the pause before each measurement, in which the
	// effects of the previous measurement subside.
	measureTime = 6 * time.Second
	settleTime  = 2 * time.Second
	// maxSlowdown is the maximum ratio of the 99th percentile under attack to the 99th percentile at rest. The test
	// uses the median of all rounds, so that a single delay of the machine does not matter.
	maxSlowdown = 2
	// maxMemory is the maximum resident memory of the mesh, in MiB. It is the memory at rest plus four times these
	// quotas: 64 MiB each for a principal's requests and responses, and 32 MiB for an operator's responses. The factor
	// is four, because the garbage collector runs only when the heap has doubled, and because freed memory is returned
	// to the system later.
	maxMemory = 768
	// logInterval is the time between two log lines. endReserve is the time before the test timeout that is reserved for
	// the checks at the end.
	logInterval, endReserve = time.Minute, 3 * time.Minute
	// patience is the maximum time by which the test is extended so that each attack is made at least once. On a busy
	// machine, attackers get little processor time.
	patience = 5 * time.Minute
	// badToken is the attackers' token.
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

// TestHostile_WellBehavedCallerIsServedUnderAttack checks the calls of one agent while other agents, servers and
// unauthenticated clients alternately attack the mesh and rest. Each of the agent's calls must succeed, reach its
// server once and be recorded, and the mesh must stay within its memory limit. The latency is always logged, but
// checked only if SLUICE_HOSTILE sets a duration. If SLUICE_HOSTILE is not set, one of a hundred calls may be refused
// and repeated. After Ctrl-C the test ends with the results so far.
func TestHostile_WellBehavedCallerIsServedUnderAttack(t *testing.T) {
	lasts, judged := defaultDuration, false
	if text, ok := os.LookupEnv("SLUICE_HOSTILE"); ok {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SLUICE_HOSTILE: %v", err)
		}
		judged = true
	}
	stack.Program(t, "sluice") // builds the program before the test starts
	server := newCountingServer()
	good := httptest.NewServer(server)
	defer good.Close()
	bad := startAttackers(t)
	mesh := startMesh(t, good.URL+"/mcp", bad.urls)
	bad.sendTarget(target{MCP: mesh.URL, GRPC: mesh.GRPC, Token: badToken})
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if deadline, ok := t.Deadline(); ok {
		ctx, stop = context.WithDeadline(ctx, deadline.Add(-endReserve))
		defer stop()
	}

	caller, seen := newGoodAgent(t, mesh.MCP("good"), judged), measurements{pid: mesh.PID(), began: time.Now()}
	end, next := seen.began.Add(lasts), seen.began.Add(logInterval)
	for now := time.Now(); ctx.Err() == nil && (now.Before(end) || now.Before(end.Add(patience)) && seen.missingAttack() != ""); now = time.Now() {
		if seen.measureRound(ctx, t, caller, bad); time.Now().After(next) {
			seen.logProgress(t)
			next = next.Add(logInterval)
		}
	}
	seen.logSummary(t)
	if made, refused := caller.made.Load(), caller.refused.Load(); refused > made/100 {
		t.Errorf("%d of %d calls were refused and had to be made again", refused, made)
	}
	if lacks := seen.missingAttack(); lacks != "" {
		t.Errorf("the attack %s was never made", lacks)
	}
	if err := mesh.Stop(t); err != nil {
		t.Errorf("the mesh stopped with %v", err)
	}
	server.check(t, caller.made.Load())
	checkRecords(t, mesh.Stack, int(caller.made.Load()))
	if seen.most > maxMemory {
		t.Errorf("%d MiB resident, want at most %d", seen.most, maxMemory)
	}
	if ratio := seen.ratio(); judged && ratio > maxSlowdown {
		t.Errorf("the 99th percentile of calls took %.1f times as long under attack, want at most %d", ratio, maxSlowdown)
	}
}

// startMesh starts a mesh with the well-behaved agent's server and the hostile servers.
func startMesh(t *testing.T, good string, bad map[string]string) *stack.Process {
	t.Helper()
	servers := "  good: {http: {url: " + good + "}}\n  spam: {stdio: {command: [chrt, --idle, \"0\", sh, -c, \"yes\"]}}\n"
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		servers += fmt.Sprintf("  %s: {http: {url: %s}}\n", name, bad[name])
	}
	s := stack.WriteConfig(t, stack.Options{
		Servers: servers, Policy: policy,
		Tokens: fmt.Sprintf("    - {name: attackers, token: %q, agent: bad, role: agent}\n  issuers:\n    - {name: hostile, issuer: %s, key_set: %q, audiences: [%s]}\n",
			badToken, jwtIssuer, startIssuer(t), jwtAudience),
		// In an hour, the well-behaved agent makes more calls than fit in the default journal quota.
		Extra: "approvals: {hold: 0s}\njournal: {calls_mib: 8192}\n",
	})
	s.OwnGroup = true
	if os.Getenv(priorityVariable) == "" {
		t.Log("the agent and its server share processors with the mesh, because this user may not use SCHED_RR: the measured times are too long")
	} else {
		s.Wrapper = []string{"chrt", "--other", "0"}
	}
	return stack.Start(t, s)
}

// checkRecords checks that the journal is intact and contains the records of all the well-behaved agent's calls.
func checkRecords(t *testing.T, mesh *stack.Stack, made int) {
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
		t.Errorf("%d calls were made, and the journal has %v of them", made, kinds)
	}
	t.Logf("%d calls, each received once; the journal is intact and has %v of them", made, kinds)
}
