package policy_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// reloads is the name of an environment variable. Its value is how often the test changes 1,000 documents, while
	// two replicas that share a database evaluate 1,000 calls per second. If the variable is not set, the test changes
	// fewer documents and uses only one replica.
	reloads = "SLUICE_RELOADS"
	// reloadCallers is the number of concurrent callers.
	reloadCallers = 8
)

// reloadDocuments returns a version of n documents with ten rules each. Two documents determine the decision on each
// tool call: a rule in one document allows the call, and a rule in the other document limits it. The names of both
// rules and the limit contain the version.
func reloadDocuments(n, version int) (out []*policyv1.Document) {
	for i := range n {
		var b strings.Builder
		fmt.Fprintf(&b, "version: 1\nname: d%d\ndefault: deny\nrules:\n", i)
		for j := range 9 {
			fmt.Fprintf(&b, "  - {name: allow-%d-v%d, match: {tool: t%d-%d}, action: allow}\n", j, version, i, j)
		}
		fmt.Fprintf(&b, "  - {name: limit-v%d, match: {tool: t%d-*}, rate_limit: {max: %d, window: 60, per: [principal]}}\n", version, (i+1)%n, version+1)
		out = append(out, &policyv1.Document{Path: fmt.Sprintf("d%d.yaml", i), Text: b.String()})
	}
	return out
}

// A reload is the state of a test that changes documents under load. Versions are counted from 1.
type reload struct {
	*stopFixture
	documents int
	// begun is the newest version that may be active. The field acknowledged is the oldest version that may still be
	// active. The field calls is the number of checked calls.
	begun, acknowledged, calls atomic.Int64

	mu        sync.Mutex
	revisions map[string]int // the version of each revision
	seen      map[int]int    // the number of decisions by each version
}

var versionInName = regexp.MustCompile(`-v([0-9]+)$`)

// check returns what is wrong with the decision on a call, or "" if nothing is wrong. The parameter least is the newest
// version that had been acknowledged when the call began.
func (r *reload) check(d *policyv1.Decision, least int) (version int, wrong string) {
	match := versionInName.FindStringSubmatch(d.GetRule().GetRule())
	if d.GetEffect() != allow || match == nil || len(d.GetLimits()) != 1 {
		return 0, fmt.Sprintf("the decision is %v", d)
	}
	version, _ = strconv.Atoi(match[1])
	if limit := d.GetLimits()[0]; limit.GetRule().GetRule() != fmt.Sprintf("limit-v%d", version) || limit.GetLimit().GetMax() != strconv.Itoa(version+1) {
		return version, fmt.Sprintf("the decision of version %d has the limit %v", version, limit)
	}
	if int64(version) > r.begun.Load() || version < least {
		return version, fmt.Sprintf("version %d decided, but %d was acknowledged before the call", version, least)
	}
	return version, ""
}

// call makes one call to a replica and checks the decision.
func (r *reload) call(t *testing.T, client policyv1.PolicyServiceClient, n int) {
	least := int(r.acknowledged.Load())
	tool := fmt.Sprintf("t%d-%d", n*7919%r.documents, n%9)
	resp, err := client.DecideCall(authn.OnBehalfOf(t.Context(), ana()), &policyv1.DecideCallRequest{Call: call(tool)})
	if err != nil {
		t.Errorf("%s: %v", tool, err)
		return
	}
	version, wrong := r.check(resp.GetDecision(), least)
	if wrong != "" {
		t.Errorf("%s: %s", tool, wrong)
		return
	}
	r.calls.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[version]++
	if known, ok := r.revisions[resp.GetDecision().GetPolicyRevision()]; ok && known != version {
		t.Errorf("%s: version %d names the revision of version %d", tool, version, known)
	}
	r.revisions[resp.GetDecision().GetPolicyRevision()] = version
}

// apply applies a version and waits until the service has acknowledged it.
func (r *reload) apply(version int) {
	r.t.Helper()
	r.begun.Store(int64(version))
	resp, err := r.operator.ApplyDocuments(r.t.Context(), &policyv1.ApplyDocumentsRequest{Documents: reloadDocuments(r.documents, version), Comment: fmt.Sprint("version ", version)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.acknowledged.Store(int64(version))
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.revisions[resp.GetPolicyRevision()]; ok && known != version {
		r.t.Errorf("version %d is acknowledged as the revision of version %d", version, known)
	}
	r.revisions[resp.GetPolicyRevision()] = version
}

// Documents are replaced while callers make calls. Each decision is based on a single version and contains the revision
// of that version. The version is not older than the version that had been acknowledged when the call began.
func TestApplyDocuments_NoDecisionIsTornOrOld(t *testing.T) {
	t.Parallel()
	changes, documents, opts := 3, 50, stored(options{})
	text, isStress := os.LookupEnv(reloads)
	if isStress {
		var err error
		if changes, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s=%q is not a number of changes", reloads, text)
		}
		documents, opts.source = 1000, sqlstoretest.Postgres(t)
	}
	r := &reload{stopFixture: newStopFixture(t, opts), documents: documents, revisions: make(map[string]int), seen: make(map[int]int)}
	clients := []policyv1.PolicyServiceClient{r.gateway}
	if isStress {
		clients = append(clients, newStopFixture(t, opts).gateway)
	}
	r.apply(1)
	ended, began := make(chan struct{}), time.Now()
	var callers sync.WaitGroup
	for i := range reloadCallers {
		callers.Go(func() {
			pace := time.NewTicker(time.Second * reloadCallers / 1000)
			defer pace.Stop()
			for n := i; ; n += reloadCallers {
				select {
				case <-ended:
					return
				case <-pace.C:
					r.call(t, clients[n%len(clients)], n)
				}
			}
		})
	}
	var slowest time.Duration
	for version := 2; version <= changes+1; version++ {
		at := time.Now()
		r.apply(version)
		slowest = max(slowest, time.Since(at))
		for seen := 0; seen == 0; { // the version decides calls before the next one is applied
			r.mu.Lock()
			seen = r.seen[version]
			r.mu.Unlock()
			time.Sleep(time.Millisecond)
			if t.Failed() {
				break
			}
		}
	}
	close(ended)
	callers.Wait()
	t.Logf("%d changes of %d documents, %d calls, %.0f a second; the slowest change took %v", changes, documents, r.calls.Load(), float64(r.calls.Load())/time.Since(began).Seconds(), slowest)
	if r.calls.Load() < int64(changes) {
		t.Errorf("only %d calls were decided", r.calls.Load())
	}
}
