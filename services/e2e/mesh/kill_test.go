package mesh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	// killsByDefault is the number of kills if SLUICE_KILLS is not set.
	killsByDefault = 12
	killCallers    = 32
	// longestLife is the maximum time for which a gateway serves before it is killed.
	longestLife = 400 * time.Millisecond
	// restartTimeLimit is the maximum for the median time from a restart to the first response to a call. It is checked
	// only if SLUICE_KILLS is set. busyRestartTimeLimit is the maximum for any single restart. It allows for a machine
	// that also runs other tests.
	restartTimeLimit, busyRestartTimeLimit = 3 * time.Second, time.Minute
)

// waitTimeLimit is the maximum time that a test waits for one event.
const waitTimeLimit = time.Minute

const killPolicy = `version: 1
name: kill
server: log
default: deny
tools:
  run: {action: allow}
  forbidden: {action: deny, reason: never}
`

// The test kills a gateway with SIGKILL at random times while 32 callers make calls. Every request to a server has an
// intent record in the journal, every result that a caller received is recorded, and the hash chains are intact.
func TestKill_JournalHasEveryCall(t *testing.T) {
	t.Parallel()
	kills := killsByDefault
	text, measured := os.LookupEnv("SLUICE_KILLS")
	if measured {
		var err error
		if kills, err = strconv.Atoi(text); err != nil || kills < 1 {
			t.Fatalf("SLUICE_KILLS=%q is not a number of kills", text)
		}
	}
	stack.Program(t, "sluice") // builds the program before the first start is measured
	k := newKillTest(t)
	var callers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range killCallers {
		callers.Go(func() { k.makeCalls(ctx) })
	}
	for round := range kills {
		k.runRound(t)
		if (round+1)%10 == 0 {
			t.Log(k.summary(round + 1))
		}
	}
	p := stack.Launch(t, k.Stack)
	k.awaitService(t, p, time.Now())
	stop()
	callers.Wait()
	k.compareWithRPC(t)
	if err := p.Stop(t); err != nil {
		t.Errorf("after the last restart the gateway stopped with %v\n%s", err, p.Stderr())
	}
	k.check(t)
	k.verifyFromStart(t)
	t.Log(k.summary(kills))
	if median := k.starts[len(k.starts)/2]; measured && median > restartTimeLimit {
		t.Errorf("half of the restarts took %v or more to serve again, want %v", median, restartTimeLimit)
	}
	if k.answered.Load() == 0 || k.refused.Load() == 0 || int64(len(k.upstream.traces())) == k.answered.Load() {
		t.Error("no call was answered, or no call was in flight at a kill: this run proves nothing")
	}
}

// killTest is a mesh that is killed repeatedly, together with what its callers and its server have observed.
type killTest struct {
	*stack.Stack

	upstream        *traceLog
	calls, refusals *hashChain
	answered        atomic.Int64
	refused         atomic.Int64
	starts          []time.Duration // time from each start to the first answer, sorted

	mu sync.Mutex
	// received contains the trace ids of the calls whose results the callers have received. denied contains the
	// decision ids of the refusals that the callers have received.
	received, denied []string
}

func newKillTest(t *testing.T) *killTest {
	t.Helper()
	k := &killTest{upstream: startTraceLog(t)}
	opts := stack.Options{
		Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t), Policy: killPolicy,
		Servers: fmt.Sprintf("  log: {http: {url: %q}}", k.upstream.url),
	}
	k.Stack = stack.WriteConfig(t, opts)
	k.URL, k.GRPC = "http://"+opts.Listen, opts.GRPC
	k.calls, k.refusals = newHashChain(k.Journal(), "calls"), newHashChain(k.Journal(), "refusals")
	return k
}

// makeCalls makes calls until ctx is done. It opens a new session after each restart of the gateway.
func (k *killTest) makeCalls(ctx context.Context) {
	c := stack.NewClient(nil, k.MCP("log"), stack.AgentToken)
	open := false
	for ctx.Err() == nil {
		if !open && c.Open() != nil {
			<-time.After(10 * time.Millisecond)
			continue
		}
		tool := "run"
		if rand.IntN(4) == 0 {
			tool = "forbidden"
		}
		resp, err := c.TryPost([]byte(stack.CallRequest(fmt.Sprintf(`{"name":%q,"arguments":{"n":%d}}`, tool, rand.Int32()))))
		if open = err == nil && resp.Status == http.StatusOK; open {
			k.storeResult(tool, resp.Body)
		}
	}
}

func (k *killTest) storeResult(tool string, body []byte) {
	var a struct {
		Result struct {
			IsError bool
			Content []struct{ Text string }
			Meta    map[string]stack.Decision `json:"_meta"`
		}
	}
	if json.Unmarshal(body, &a) != nil || len(a.Result.Content) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch d := a.Result.Meta["dev.sluice/decision"]; {
	case !a.Result.IsError && tool == "run":
		k.received = append(k.received, a.Result.Content[0].Text)
		k.answered.Add(1)
	case d.Code == "denied_by_rule":
		k.denied = append(k.denied, d.ID)
		k.refused.Add(1)
	}
}

// runRound starts the gateway, kills it after some time, and checks the records.
func (k *killTest) runRound(t *testing.T) {
	t.Helper()
	started := time.Now()
	p := stack.Launch(t, k.Stack)
	if rand.IntN(6) == 0 {
		<-time.After(rand.N(longestLife)) // kills the gateway during its start or shortly after
	} else {
		k.awaitService(t, p, started)
		k.compareWithRPC(t)
		<-time.After(rand.N(longestLife))
	}
	p.Kill()
	k.check(t)
	if t.Failed() {
		t.Fatalf("the log of the killed gateway:\n%s", p.Stderr())
	}
}

// awaitService waits until the restarted gateway answers a call, and stores the time that this took.
func (k *killTest) awaitService(t *testing.T, p *stack.Process, started time.Time) {
	t.Helper()
	before := k.answered.Load()
	for k.answered.Load() == before {
		if time.Since(started) > busyRestartTimeLimit {
			t.Fatalf("no call was answered within %v of a restart:\n%s", busyRestartTimeLimit, p.Stderr())
		}
		<-time.After(time.Millisecond)
	}
	k.starts = append(k.starts, time.Since(started))
	slices.Sort(k.starts)
}

// check reads the journal's new records, and compares them with the calls that the server received and with the results
// that the callers received.
func (k *killTest) check(t *testing.T) {
	t.Helper()
	seen := k.upstream.traces()
	k.mu.Lock()
	told, denied := slices.Clone(k.received), slices.Clone(k.denied)
	k.mu.Unlock()
	k.calls.readNewRecords(t)
	k.refusals.readNewRecords(t)
	for trace, n := range seen {
		if k.calls.intents[trace] != n {
			t.Errorf("the server received trace %s %d times, but the journal has %d intents of it", trace, n, k.calls.intents[trace])
		}
	}
	for _, trace := range told {
		if k.calls.intents[trace] != 1 || k.calls.outcomes[trace] != 1 {
			t.Errorf("a caller received the result of trace %s: %d intents, %d outcomes", trace, k.calls.intents[trace], k.calls.outcomes[trace])
		}
	}
	for _, id := range denied {
		if !k.refusals.decisions[id] {
			t.Errorf("a caller received the refusal %s, which the journal does not have", id)
		}
	}
	k.calls.orphans = 0
	for trace := range k.calls.intents {
		if k.calls.outcomes[trace] == 0 {
			k.calls.orphans++
		}
	}
}

// compareWithRPC compares the newest records that the gateway's API returns with the lines in the journal.
func (k *killTest) compareWithRPC(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeLimit)
	defer cancel()
	resp, err := gatewayv1.NewGatewayServiceClient(k.Operator(t)).ListDecisions(ctx, &gatewayv1.ListDecisionsRequest{
		PageSize: 200,
		Filter:   &gatewayv1.DecisionFilter{Kinds: []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_INTENT, gatewayv1.RecordKind_RECORD_KIND_OUTCOME}},
	}, grpc.WaitForReady(true)) // a response from before the restart may be counted after it
	if err != nil {
		t.Fatalf("list the decisions after a restart: %v", err)
	}
	k.calls.readNewRecords(t)
	if len(resp.GetRecords()) == 0 {
		t.Error("after a restart the gateway lists no records")
	}
	for _, r := range resp.GetRecords() {
		if at := int(r.GetSequence()) - 1; at < 0 || at >= len(k.calls.prevs) || k.calls.prevs[at] != r.GetPreviousHash() {
			t.Errorf("the gateway lists record %d with the previous hash %q, which differs from the file", r.GetSequence(), r.GetPreviousHash())
		}
	}
}

// verifyFromStart verifies both hash chains again from the first record.
func (k *killTest) verifyFromStart(t *testing.T) {
	t.Helper()
	for _, old := range []*hashChain{k.calls, k.refusals} {
		again := newHashChain(old.dir, old.name)
		again.readNewRecords(t)
		if again.incompleteBytes > 0 || again.recordCount() != old.recordCount() || again.head != old.head {
			t.Errorf("%s has %d records and the head %.12s… if read at once, and %d and %.12s… if read in parts; %d bytes are incomplete",
				old.name, again.recordCount(), again.head, old.recordCount(), old.head, again.incompleteBytes)
		}
	}
}

func (k *killTest) summary(kills int) string {
	return fmt.Sprintf("%d kills under %d callers: %d results and %d refusals received; %d calls reached the server; "+
		"calls: %d records, %d intents without an outcome, %d recoveries; refusals: %d records, %d recoveries; "+
		"serving again after %v (median), %v (worst)",
		kills, killCallers, k.answered.Load(), k.refused.Load(), len(k.upstream.traces()),
		k.calls.recordCount(), k.calls.orphans, k.calls.recoveries, k.refusals.recordCount(), k.refusals.recoveries,
		k.starts[len(k.starts)/2].Round(time.Millisecond), k.starts[len(k.starts)-1].Round(time.Millisecond))
}

// traceLog is an MCP server that keeps running when the gateway restarts, and stores the trace of every call.
type traceLog struct {
	url string

	mu   sync.Mutex
	seen map[string]int
}

func startTraceLog(t *testing.T) *traceLog {
	t.Helper()
	l := &traceLog{seen: make(map[string]int)}
	web := httptest.NewServer(l)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	l.url = web.URL + "/mcp"
	return l
}

// ServeHTTP stores a call before it responds. The result in the response is the trace id of the call.
func (l *traceLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil || m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if m.Method == "initialize" {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"log","version":"1"}}}`, m.ID)
		return
	}
	if m.Method == "tools/list" {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":%s}}`, m.ID, rawmcp.ToolList("run", "forbidden"))
		return
	}
	parts := strings.Split(r.Header.Get("Traceparent"), "-")
	trace := parts[min(1, len(parts)-1)]
	l.mu.Lock()
	l.seen[trace]++
	l.mu.Unlock()
	<-time.After(rand.N(20 * time.Millisecond))
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, trace)
}

// traces returns the number of received calls for each trace id.
func (l *traceLog) traces() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.seen)
}
