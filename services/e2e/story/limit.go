// Package story contains test scenarios that are shared by several test packages. Some of these packages run the mesh
// as local processes, others in containers.
package story

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The tests use the rate limit `rate_limit: {max: 4, window: 6}`, which applies to [LimitedTool] in each session.
const (
	// LimitedTool is a tool of the demo server.
	LimitedTool = "create_note"

	limitMax    = 4
	limitWindow = 6 * time.Second
	sessions    = 3
)

// Limit describes a mesh in which calls to [LimitedTool] are rate limited.
type Limit struct {
	// MCP is the gateway's URL for the demo server. Token is an agent's token.
	MCP, Token string
	// Decisions returns the journal's records for calls to [LimitedTool], as `sluice decisions tail --output json`
	// prints them.
	Decisions func(t *testing.T) string
}

// CallAtRandom makes calls at random times in several sessions for the given duration. Then it checks that no session
// had more than 4 calls within any closed interval of 6 s, according to the clock of the service that enforces the
// limit.
func (l Limit) CallAtRandom(t *testing.T, length time.Duration) {
	t.Helper()
	end := time.Now().Add(length)
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for range sessions {
		client := npmtest.StartClient(t, l.MCP, l.Token)
		for _, heedful := range []bool{true, false, false} {
			wg.Go(func() {
				for time.Now().Before(end) {
					<-time.After(callAtRandom(t, client, heedful, &passed, &refused))
				}
			})
		}
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	granted := reservationTimes(t, l.Decisions(t))
	total, closest := 0, time.Duration(1<<62)
	for session, times := range granted {
		slices.SortFunc(times, time.Time.Compare)
		total += len(times)
		for i := limitMax; i < len(times); i++ {
			gap := times[i].Sub(times[i-limitMax])
			closest = min(closest, gap)
			if gap <= limitWindow {
				t.Errorf("session %s: %d calls within %v, from %v on", session, limitMax+1, gap, times[i-limitMax])
			}
		}
	}
	if int64(total) < passed.Load() {
		t.Errorf("%d calls passed, but only %d are recorded", passed.Load(), total)
	}
	if least := int(length/limitWindow) * limitMax * sessions * 2 / 3; total < least || len(granted) < sessions {
		t.Errorf("%d calls of %d sessions passed, want %d or more: the limiter refuses too much", total, len(granted), least)
	}
	t.Logf("in %v: %d passed, %d refused; the shortest interval with 5 calls of a session is %v", length, passed.Load(), refused.Load(), closest)
}

// callAtRandom makes one call and returns the pause before the next call. If heedful is true and the limit was reached,
// the pause is the time stated in the refusal. Otherwise the pause is random.
func callAtRandom(t *testing.T, client *npmtest.Client, heedful bool, passed, refused *atomic.Int64) time.Duration {
	t.Helper()
	reply := client.CallTool(npmtest.ToolCall{Name: LimitedTool, Arguments: map[string]any{"title": "at random"}})
	var result npmtest.ToolResult
	if err := json.Unmarshal(reply.Result, &result); reply.Error != nil || err != nil {
		t.Errorf("a call failed: %v, %v", reply.Error, err)
		return time.Second
	}
	pause := time.Duration(rand.ExpFloat64() * float64(200*time.Millisecond))
	if !result.IsError {
		passed.Add(1)
		return pause / 20 // a burst
	}
	refused.Add(1)
	var d stack.Decision
	err := json.Unmarshal(result.Meta["dev.sluice/decision"], &d)
	switch {
	case err == nil && strings.HasSuffix(d.Code, "_unavailable") && d.Retryable:
		return time.Second // a busy machine may refuse a call, which does not violate the limit
	case err != nil || d.Code != "rate_limited" || d.RetryAfterMs <= 0 || d.RetryAfterMs > limitWindow.Milliseconds():
		t.Errorf("refused with %s: %v", reply.Result, err)
		return time.Second
	}
	if heedful {
		return time.Duration(d.RetryAfterMs) * time.Millisecond
	}
	return pause
}

// reservationTimes returns, for each session, the times at which the ratelimit service reserved calls, according to
// that service's clock.
func reservationTimes(t *testing.T, decisions string) map[string][]time.Time {
	t.Helper()
	var records []struct {
		Kind, Session string
		ReservedAt    time.Time `json:"reservedAt"`
	}
	if err := json.Unmarshal([]byte(decisions), &records); err != nil {
		t.Fatalf("sluice decisions tail: %v\n%s", err, decisions)
	}
	out := make(map[string][]time.Time)
	for _, r := range records {
		if r.Kind == "intent" {
			out[r.Session] = append(out[r.Session], r.ReservedAt)
		}
	}
	return out
}
