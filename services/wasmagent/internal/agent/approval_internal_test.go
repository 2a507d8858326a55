package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
)

// slowHost is a host whose calls wait for an approval. The field approved is the time at which the approval is granted.
type slowHost struct {
	Host

	approved time.Time
	// failures is the number of requests that fail before one succeeds. If loseAnswer is set, the call runs, but the
	// first answer to it is lost.
	failures   int
	loseAnswer bool

	requests, runs int
}

var errTest = errors.New("away")

// Call implements [Host].
func (h *slowHost) Call(ctx context.Context, _ *Agent, call ToolCall, pollTime time.Duration) (ToolResult, error) {
	h.requests++
	call.Progress("waiting for a person's approval")
	if h.failures > 0 {
		h.failures--
		return ToolResult{}, errTest
	}
	select {
	case <-time.After(min(pollTime, time.Until(h.approved))):
	case <-ctx.Done():
		return ToolResult{}, ctx.Err()
	}
	switch {
	case time.Now().Before(h.approved):
		return ToolResult{Refused: &abi.Error{Code: "approval_pending"}, Waiting: &wasmagentv1.Waiting{ApprovalId: call.ApprovalID}}, nil
	case h.runs > 0:
		return ToolResult{Refused: &abi.Error{Code: enum.Name(commonv1.Code_CODE_APPROVAL_USED)}}, nil
	}
	h.runs++
	if h.loseAnswer {
		return ToolResult{}, errTest
	}
	return ToolResult{Text: "paid"}, nil
}

// A call that is approved after 30 s, an hour or a day runs exactly once. While the call waits, the agent sends one
// request to the host every 10 min.
func TestPollApproval_CallRunsOnceAfterLongWait(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{30 * time.Second, time.Hour, 24 * time.Hour} {
		t.Run(wait.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begin, reports := time.Now(), 0
				host := &slowHost{approved: begin.Add(wait), failures: 3}
				listens := &progressListener{progress: func(string) { reports++ }}
				a := &Agent{Deps: Deps{Host: host}}
				listens.stop() // the prompt has returned
				result, err := a.pollApproval(&turn{ctx: t.Context()}, ToolCall{ApprovalID: "a-1", Progress: listens.send}, false)
				if err != nil || result.Text != "paid" || host.runs != 1 {
					t.Errorf("%+v, %v, and the call ran %d times", result, err, host.runs)
				}
				if late := time.Since(begin) - wait; late < 0 || late > minPollInterval {
					t.Errorf("the turn continued %v after the approval", late)
				}
				if most := int(wait/approvalPollTime) + 5; host.requests > most {
					t.Errorf("the host got %d requests, want at most %d", host.requests, most)
				}
				if reports != 0 {
					t.Errorf("a caller that is gone got %d texts", reports)
				}
			})
		})
	}
}

func TestPollApproval_CallIsNotRepeatedAfterLostAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := &slowHost{approved: time.Now().Add(24 * time.Hour), loseAnswer: true}
		a := &Agent{Deps: Deps{Host: host}}
		result, err := a.pollApproval(&turn{ctx: t.Context()}, ToolCall{ApprovalID: "a-1", Progress: func(string) {}}, false)
		if err != nil || host.runs != 1 || !result.HasRun || result.Refused.Code != outcomeUnknown {
			t.Errorf("%+v, %v, and the call ran %d times", result, err, host.runs)
		}
	})
}
