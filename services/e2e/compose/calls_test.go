//go:build compose

package compose_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/story"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// decision is the value of `_meta["dev.sluice/decision"]` in a refusal.
type decision struct {
	ID           string `json:"id"`
	Code         string `json:"code"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMs int64  `json:"retryAfterMs"`
}

// caller is an agent that uses the official TypeScript SDK.
type caller struct {
	d      *deployment
	client *npmtest.Client
	// denied is the id of the decision on a denied call.
	denied string
	// reopensAt is the time at which the limit allows another call. It comes from the refusal.
	reopensAt time.Time
}

func newCaller(t *testing.T, d *deployment) *caller {
	t.Helper()
	return &caller{d: d, client: npmtest.StartClient(t, d.mcp(), d.agent)}
}

// createNote calls the tool create_note, which is limited to four calls per minute and session.
func (c *caller) createNote(t *testing.T) npmtest.ToolResult {
	t.Helper()
	return c.client.CallTool(npmtest.ToolCall{Name: "create_note", Arguments: map[string]any{"title": "tea"}}).ToolResult(t)
}

func (c *caller) stories(t *testing.T) {
	t.Run("lists the tools that it may call, and those that are denied with a reason", func(t *testing.T) {
		want := []string{"create_note", "delete_note", "get_note", "list_notes", "refund", "run_report", "sluice_approval_wait"}
		if diff := cmp.Diff(want, c.client.ListTools().ToolNames(t)); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
	})
	t.Run("makes an allowed call", func(t *testing.T) {
		before := c.countReceived(t)
		result := c.client.CallTool(npmtest.ToolCall{Name: "list_notes"}).ToolResult(t)
		if result.IsError || !strings.Contains(result.Text(), "note-1") {
			t.Errorf("got %+v", result)
		}
		if got := c.countReceived(t)["list_notes"] - before["list_notes"]; got != 1 {
			t.Errorf("%d calls reached the server, want 1", got)
		}
	})
	t.Run("receives an integer that no double can represent", func(t *testing.T) {
		message := c.client.CallTool(npmtest.ToolCall{Name: "run_report"}).Message(t)
		if !regexp.MustCompile(`"fingerprint":[0-9]{17,20}[,}]`).MatchString(message) {
			t.Errorf("got %s", message)
		}
	})
	t.Run("is refused, and the server receives nothing", c.refusals)
	t.Run("is limited", c.limit)
}

func (c *caller) refusals(t *testing.T) {
	before := c.countReceived(t)
	for _, tt := range []struct {
		tool, code, text string
		args             map[string]any
	}{
		{"delete_note", "denied_by_rule", "Denied by policy: notes are kept; ask a person to remove one", map[string]any{"id": "note-1"}},
		{"list_accounts", "denied_by_default", "Denied by policy: ", nil},
		{"refund", "approval_pending", "Not executed: ", map[string]any{"account": "ana", "amount": "1.00"}},
	} {
		result := c.client.CallTool(npmtest.ToolCall{Name: tt.tool, Arguments: tt.args}).ToolResult(t)
		got := decisionOf(t, result)
		if !result.IsError || got.Code != tt.code || !strings.HasPrefix(result.Text(), tt.text) || got.ID == "" {
			t.Errorf("%s: got %q, %+v; want %q, %s", tt.tool, result.Text(), got, tt.text, tt.code)
		}
		if tt.tool == "delete_note" {
			c.denied = got.ID
		}
	}
	after := c.countReceived(t)
	delete(before, "get_note") // countReceived itself calls get_note
	delete(after, "get_note")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("calls that reached the server (-before +after):\n%s", diff)
	}
}

func (c *caller) limit(t *testing.T) {
	before := c.countReceived(t)
	for i := range 4 {
		if result := c.createNote(t); result.IsError {
			t.Fatalf("call %d of 4 was refused: %s", i+1, result.Text())
		}
	}
	result := c.createNote(t)
	got := decisionOf(t, result)
	if !result.IsError || got.Code != "rate_limited" || !got.Retryable || got.RetryAfterMs < 1 || got.RetryAfterMs > 60_000 {
		t.Errorf("the fifth call: %q, %+v", result.Text(), got)
	}
	c.reopensAt = time.Now().Add(time.Duration(got.RetryAfterMs) * time.Millisecond)
	if n := c.countReceived(t)["create_note"] - before["create_note"]; n != 4 {
		t.Errorf("%d calls reached the server, want 4", n)
	}
}

// checkShorterLimit shortens the limit's window while the mesh is running, and then makes calls at random times for a
// minute.
func (c *caller) checkShorterLimit(t *testing.T) {
	const was, is = "rate_limit: {max: 4, window: 60}", "rate_limit: {max: 4, window: 6}"
	c.d.changePolicy(t, was, is)
	eventually.Within(t, healTime, "the changed policy is in force", func() bool {
		return strings.Contains(c.d.cli(t, "policy", "explain", "--server", "demo", "--tool", story.LimitedTool, "--output", "json"), `"6s"`)
	})
	story.Limit{MCP: c.d.mcp(), Token: c.d.agent, Decisions: func(t *testing.T) string {
		return c.d.cli(t, "decisions", "tail", "-n", "10000", "--tool", story.LimitedTool, "--output", "json")
	}}.CallAtRandom(t, time.Minute)
}

// checkLimitReopens waits until the time in the refusal, and then checks that a call succeeds.
func (c *caller) checkLimitReopens(t *testing.T) {
	<-time.After(time.Until(c.reopensAt))
	if result := c.createNote(t); result.IsError {
		t.Errorf("refused at the time that the refusal named: %s", result.Text())
	}
}

// countReceived returns the number of calls to each tool that the demo server has logged. It makes an allowed call and
// waits for its log line, so that the lines of all earlier calls are complete.
func (c *caller) countReceived(t *testing.T) map[string]int {
	t.Helper()
	before := countByTool(c.d.demoCalls(t))
	if result := c.client.CallTool(npmtest.ToolCall{Name: "get_note", Arguments: map[string]any{"id": "note-1"}}).ToolResult(t); result.IsError {
		t.Fatalf("get_note was refused: %s", result.Text())
	}
	var after map[string]int
	eventually.Within(t, commandTime, "the demo server logs a call", func() bool {
		after = countByTool(c.d.demoCalls(t))
		return after["get_note"] > before["get_note"]
	})
	return after
}

// demoCall is the demo server's log line for a call.
type demoCall struct {
	Message     string `json:"msg"`
	Tool        string `json:"tool"`
	TraceID     string `json:"trace_id"`
	TraceParent string `json:"traceparent"`
}

func (d *deployment) demoCalls(t *testing.T) []demoCall {
	t.Helper()
	var calls []demoCall
	for line := range strings.Lines(d.compose(t, "logs", "--no-color", "--no-log-prefix", "demo")) {
		var call demoCall
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			t.Fatalf("read the demo server's log: %v: %s", err, line)
		}
		if call.Message == "tool call" {
			calls = append(calls, call)
		}
	}
	return calls
}

func countByTool(calls []demoCall) map[string]int {
	n := make(map[string]int)
	for _, call := range calls {
		n[call.Tool]++
	}
	return n
}

func decisionOf(t *testing.T, result npmtest.ToolResult) decision {
	t.Helper()
	var d decision
	if err := json.Unmarshal(result.Meta["dev.sluice/decision"], &d); err != nil {
		t.Fatalf("no decision in %+v: %v", result, err)
	}
	return d
}
