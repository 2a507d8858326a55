package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	// callers is the number of concurrent callers. Each caller pauses after a call.
	callers = 4
	pause   = 40 * time.Millisecond
)

// goodAgent is the well-behaved agent whose calls the test measures. Each call contains a unique number.
type goodAgent struct {
	clients []*stack.Client
	// made is the number of calls that the agent has made. refused is the number of refusals after which it made the
	// same call again.
	made, refused atomic.Int64
	// strict is true if no call may be refused. Otherwise a retryable refusal is accepted, because on a busy machine
	// the evaluation of a call may take longer than its timeout.
	strict bool
}

func newGoodAgent(t *testing.T, url string, strict bool) *goodAgent {
	t.Helper()
	a := &goodAgent{strict: strict}
	for range callers {
		a.clients = append(a.clients, stack.Connect(t, url, stack.AgentToken))
	}
	return a
}

// makeCalls makes calls until the duration length has passed or ctx is done, and returns the calls' durations, sorted.
// The test fails if a call fails.
func (a *goodAgent) makeCalls(ctx context.Context, t *testing.T, length time.Duration) []time.Duration {
	t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var calling sync.WaitGroup
	end := time.Now().Add(length)
	for _, client := range a.clients {
		calling.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				start := time.Now()
				resp, err := a.call(ctx, client)
				one := time.Since(start)
				if err != nil || resp.Status != http.StatusOK || resp.IsError(t) {
					t.Errorf("a call of the well-behaved agent returned %d %s, %v", resp.Status, resp.Body, err)
					return
				}
				mu.Lock()
				took = append(took, one)
				mu.Unlock()
				sleep(ctx, pause)
			}
		})
	}
	calling.Wait()
	slices.Sort(took)
	return took
}

// call makes one call. It makes the call again after a retryable refusal, unless the agent is strict.
func (a *goodAgent) call(ctx context.Context, client *stack.Client) (stack.Response, error) {
	text := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":{"q":"tea","n":%d}}}`, a.made.Add(1))
	for {
		resp, err := client.TryPost(text)
		if a.strict || err != nil || ctx.Err() != nil || !bytes.Contains(resp.Body, []byte(`"retryable":true`)) {
			return resp, err
		}
		a.refused.Add(1)
	}
}

// percentile returns the n-th percentile of sorted durations, or 0 if there are no durations.
func percentile(sorted []time.Duration, n int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*n/100].Round(10 * time.Microsecond)
}

// countingServer is the well-behaved agent's server. It counts the requests for each call.
type countingServer struct {
	mcpServer

	mu       sync.Mutex
	received map[int64]int
}

func newCountingServer() *countingServer {
	list := `[{"name":"safe","inputSchema":{"type":"object"}}]`
	return &countingServer{mcpServer: mcpServer{func() string { return list }, `{"content":[{"type":"text","text":"done"}]}`}, received: make(map[int64]int)}
}

func (s *countingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var m struct {
		Params struct{ Arguments struct{ N int64 } }
	}
	if err == nil && json.Unmarshal(raw, &m) == nil && m.Params.Arguments.N > 0 {
		s.mu.Lock()
		s.received[m.Params.Arguments.N]++
		s.mu.Unlock()
	}
	r.Body = io.NopCloser(bytes.NewReader(raw))
	s.mcpServer.ServeHTTP(w, r)
}

// check checks that the server received each of the agent's calls exactly once. made is the number of calls that the
// agent has made.
func (s *countingServer) check(t *testing.T, made int64) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(len(s.received)) != made {
		t.Errorf("%d calls were made and %d reached the server", made, len(s.received))
	}
	if again := slices.Max(append(slices.Collect(maps.Values(s.received)), 0)); again > 1 {
		t.Errorf("a call reached the server %d times", again)
	}
}
