package mesh_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/failpoint"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// failpointCase contains a failpoint, and a function that reports whether a call was interrupted at this failpoint.
type failpointCase struct {
	point string
	// hits is the maximum number of hits of the failpoint in a run, including the hit at which the process is killed.
	hits int
	// interrupted reports whether a call that was open at the kill was interrupted at the failpoint. It is nil if the
	// journal can't show this.
	interrupted func(c interruptedCall) bool
}

// interruptedCall is a call that was open when the mesh was killed.
type interruptedCall struct {
	kind string // the kind of the call's newest record
	ran  int
	// history is the history of the call's approval. killed is the time at which the mesh was killed.
	history []*approvalv1.Move
	killed  time.Time
}

// reachedBeforeKill reports whether the approval reached the given state before the mesh was killed.
func (c interruptedCall) reachedBeforeKill(state approvalv1.ApprovalState) bool {
	return slices.ContainsFunc(c.history, func(m *approvalv1.Move) bool { return m.GetTo() == state && m.GetTime().AsTime().Before(c.killed) })
}

const (
	claimedState = approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED
	doneState    = approvalv1.ApprovalState_APPROVAL_STATE_DONE
)

// failpointCases returns all failpoints in the order in which an approved call reaches them.
func failpointCases() []failpointCase {
	return []failpointCase{
		{"gatewayBeforeClaim", 6, func(c interruptedCall) bool { return c.kind == "claim" }},
		{"gatewayAfterClaim", 6, func(c interruptedCall) bool {
			return c.kind == "claim" && c.reachedBeforeKill(claimedState) && c.ran == 1
		}},
		{"gatewayBeforeSend", 6, func(c interruptedCall) bool { return c.kind == "intent" && c.ran == 0 }},
		{"gatewayAfterSend", 6, func(c interruptedCall) bool { return c.kind == "intent" && c.ran == 1 }},
		{"gatewayBeforeComplete", 6, func(c interruptedCall) bool {
			return c.kind == "outcome" && c.ran == 1 && !c.reachedBeforeKill(doneState)
		}},
		{"gatewayAfterComplete", 6, func(c interruptedCall) bool {
			return c.kind == "outcome" && c.ran == 1 && c.reachedBeforeKill(doneState)
		}},
		{"approvalBeforeCommit", 24, nil},
		{"approvalAfterCommit", 24, nil},
	}
}

// Case A2. The test kills a mesh with SIGKILL while an approved call is at a failpoint, several times for each
// failpoint. The seed determines the number of callers, how many of them make the same call, and the hit at which the
// process is killed. A quarter of the seeds run a second time with approvals in PostgreSQL. At the approval service's
// failpoints, a quarter of the seeds also run a test that kills only the approval service.
//
// To run a single seed:
//
//	SLUICE_SEEDS=200 go test ./e2e/mesh -run 'TestFailpoints_ApprovedCallsSurviveAKillAtEachPoint/POINT/seed=17$' -v
func TestFailpoints_ApprovedCallsSurviveAKillAtEachPoint(t *testing.T) {
	t.Parallel()
	seeds := repetitions(t, "SLUICE_SEEDS", 4) // `make stress RUN=failpoints` runs many more
	build, err := failpoint.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkAllPointsKnown(t, build.Points)
	done := openReport(t, os.Getenv("SLUICE_REPORT"), build.Digest)
	for _, at := range failpointCases() {
		t.Run(at.point, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				done.runSeed(t, at.point, seed+1, func(t *testing.T) { killMeshAt(t, build, at, seed+1, "") })
			}
		})
	}
	for _, at := range failpointCases() {
		name := at.point + "-postgres"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := sqlstoretest.Start(t)
			for seed := range (seeds + 3) / 4 {
				done.runSeed(t, name, seed+1, func(t *testing.T) { killMeshAt(t, build, at, seed+1, server.Database(t)) })
			}
		})
	}
	for _, at := range failpointCases() {
		if !strings.HasPrefix(at.point, "approval") {
			continue
		}
		name := at.point + "-distributed"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, a := newDistributedPaymentRun(t, sqlstoretest.Start(t).Database(t))
			for seed := range (seeds + 3) / 4 { // starting a role in its own process takes longer
				done.runSeed(t, name, seed+1, func(t *testing.T) { p.killApprovalAt(t, a, build, at, seed+1) })
				if t.Failed() {
					return // all seeds share this mesh, so more seeds would not test anything new
				}
			}
		})
	}
}

// checkAllPointsKnown checks that [failpointCases] returns exactly the failpoints in the code.
func checkAllPointsKnown(t *testing.T, points []string) {
	t.Helper()
	var known []string
	for _, at := range failpointCases() {
		known = append(known, at.point)
	}
	slices.Sort(known)
	if diff := cmp.Diff(points, known); diff != "" {
		t.Errorf("failpointCases and the code have different failpoints (-code +test):\n%s", diff)
	}
}

// drawParameters derives a run's parameters from its seed: the number of callers, how many of them make the same call,
// the calls that the approver denies, and the number of hits before the kill.
func (p *paymentRun) drawParameters(t *testing.T, at failpointCase, seed int) (callers int, trap failpoint.Trap) {
	t.Helper()
	name := fnv.New64a()
	fmt.Fprint(name, at.point)
	draw := rand.New(rand.NewPCG(uint64(seed), name.Sum64()))
	callers, p.racers = 1+draw.IntN(4), 1+draw.IntN(3)
	against := draw.IntN(4)
	p.denies = func(n int) bool { return n%4 == against }
	trap = failpoint.Trap{Point: at.point, Pass: draw.IntN(at.hits), Addr: stack.FreeAddr(t)}
	t.Logf("%d callers, %d at each call, killed at hit %d", callers, p.racers, trap.Pass+1)
	return callers, trap
}

// killApprovalAt kills only the approval service at a failpoint. The gateway keeps running, so the outcome of every
// approved call is eventually known.
func (p *paymentRun) killApprovalAt(t *testing.T, a *rawmesh.Distributed, build failpoint.Build, at failpointCase, seed int) {
	t.Helper()
	callers, trap := p.drawParameters(t, at, seed)
	a.Kill(t, approvalRole)
	a.ReplaceProgram(approvalRole, build.Approval, trap.Env()...)
	a.Start(t, approvalRole)
	a.AwaitServing(t, approvalRole)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeLimit)
	defer cancel()
	stop, wait := p.startWork(ctx, t, callers)
	if err := trap.Await(stack.TimeoutContext(t)); err != nil {
		t.Fatalf("%v\n%s", err, a.Log(approvalRole))
	}
	a.Kill(t, approvalRole)
	stop()
	a.ReplaceProgram(approvalRole, "")
	a.Start(t, approvalRole)
	a.AwaitServing(t, approvalRole)
	wait()
	p.checkResults(t)
	if t.Failed() {
		t.Logf("the log of the gateway:\n%s", a.Log(gatewayRole))
	}
}

// killMeshAt starts a new mesh, kills it at a failpoint, starts it again, and checks the result. database is the URL of
// the approval database. If it is empty, the mesh uses the embedded database.
func killMeshAt(t *testing.T, build failpoint.Build, at failpointCase, seed int, database string) {
	t.Helper()
	p := startTrapped(t, build, at, seed, database)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeLimit)
	defer cancel()
	stop, wait := p.startWork(ctx, t, p.callers)
	if err := p.trap.Await(stack.TimeoutContext(t)); err != nil {
		t.Fatalf("%v\n%s", err, p.mesh.Stderr())
	}
	left, killed := p.killMesh(t, p.mesh), time.Now()
	stop()
	p.meshConfig.Env = nil
	mesh := stack.Start(t, p.meshConfig)
	wait()
	p.checkResults(t)
	if at.interrupted != nil && !slices.ContainsFunc(p.interruptedCalls(t, left, killed), at.interrupted) {
		t.Errorf("no call was interrupted at %s; the open calls are %v", at.point, left)
	}
	if t.Failed() {
		t.Logf("the log of the mesh:\n%s", mesh.Stderr())
	}
}

// trappedMesh is a mesh that blocks at a failpoint. callers is the number of its callers.
type trappedMesh struct {
	*paymentRun
	callers int
	trap    failpoint.Trap
	mesh    *stack.Process
}

// startTrapped starts a mesh that blocks at a failpoint. If another process takes one of the mesh's addresses first,
// startTrapped tries again with other addresses.
func startTrapped(t *testing.T, build failpoint.Build, at failpointCase, seed int, database string) trappedMesh {
	t.Helper()
	for {
		p := trappedMesh{paymentRun: newPaymentRun(t, database)}
		p.callers, p.trap = p.drawParameters(t, at, seed)
		p.meshConfig.Program, p.meshConfig.Env = build.Sluice, p.trap.Env()
		if p.mesh = stack.Launch(t, p.meshConfig, "--output", "json"); p.mesh.AwaitServing() {
			return p
		}
		p.mesh.Kill()
		if said := p.mesh.Stdout() + p.mesh.Stderr(); !strings.Contains(said, "address already in use") {
			t.Fatalf("the mesh did not serve:\n%s", said)
		}
	}
}

// interruptedCalls returns the calls that were open when the mesh was killed, with their approvals' histories.
func (p *paymentRun) interruptedCalls(t *testing.T, left map[string]openCall, killed time.Time) []interruptedCall {
	t.Helper()
	numbers := make(map[string]int)
	for n, id := range p.decided {
		numbers[id] = n
	}
	ran := p.countReceived(t)
	client := p.approvalClient(t)
	var out []interruptedCall
	for _, call := range left {
		resp, err := client.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: call.approval})
		if err != nil {
			t.Errorf("approval %s of the journal: %v", call.approval, err)
		}
		out = append(out, interruptedCall{kind: call.kind, ran: ran[numbers[call.approval]], history: resp.GetHistory(), killed: killed})
	}
	return out
}
