package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
)

// Ctrl-C while a call is on its way: the caller has its answer, and the journal
// what came of it.
func TestCtrlCLosesNothing(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, tools)
	arrived, release := make(chan struct{}), make(chan struct{})
	up.On("safe", func(w http.ResponseWriter, r *http.Request, id string) {
		close(arrived)
		<-release
		rawmcp.Result(`{"content":[{"type":"text","text":"late"}]}`)(w, r, id)
	})
	p := stack.Start(t, stack.Write(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: openPolicy}))
	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	type outcome struct {
		resp stack.Response
		err  error
	}
	answer := make(chan outcome, 1)
	go func() {
		resp, err := c.Try([]byte(call(`{"name":"safe"}`)))
		answer <- outcome{resp, err}
	}()
	<-arrived
	p.Interrupt(t)
	eventually(t, "the stopping gateway takes no new connections", func() bool {
		_, err := stack.NewClient(t, p.MCP("raw"), stack.AgentToken).Try([]byte("{}"))
		return err != nil
	})
	close(release)
	if got := <-answer; got.err != nil || got.resp.Text(t) != "late" {
		t.Errorf("the caller got %q, %v", got.resp.Body, got.err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("Ctrl-C ended it with %v, want exit code 0\n%s", err, p.Stderr())
	}
	calls := newChain(p.Journal(), "calls")
	calls.readOn(t)
	if calls.records() != 2 || len(calls.intents) != 1 || calls.torn != 0 {
		t.Fatalf("the journal has %d records of %d calls, want an intent and its outcome", calls.records(), len(calls.intents))
	}
	for trace := range calls.intents {
		if calls.outcomes[trace] != 1 {
			t.Error("the call's outcome is not in the journal")
		}
	}
}
