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

// slowHost is a host whose calls wait for an approval, which comes at the time approved.
type slowHost struct {
	Host

	approved time.Time
	// away is the number of first requests that fail. If lose is set, the first answer of the call is lost after the
	// call ran.
	away int
	lose bool

	asked, ran int
}

var errTest = errors.New("away")

// Call implements [Host].
func (h *slowHost) Call(ctx context.Context, _ *Agent, call ToolCall, hold time.Duration) (ToolResult, error) {
	h.asked++
	call.Tell("waiting for a person's approval")
	if h.away > 0 {
		h.away--
		return ToolResult{}, errTest
	}
	select {
	case <-time.After(min(hold, time.Until(h.approved))):
	case <-ctx.Done():
		return ToolResult{}, ctx.Err()
	}
	switch {
	case time.Now().Before(h.approved):
		return ToolResult{Refused: &abi.Error{Code: "approval_pending"}, Waits: &wasmagentv1.Waiting{ApprovalId: call.Approval}}, nil
	case h.ran > 0:
		return ToolResult{Refused: &abi.Error{Code: enum.Name(commonv1.Code_CODE_APPROVAL_USED)}}, nil
	}
	h.ran++
	if h.lose {
		return ToolResult{}, errTest
	}
	return ToolResult{Text: "paid"}, nil
}

// A call that is approved after 30 s, an hour or a day runs once. While it waits, the host gets one request in 10 min.
func TestDecided_RunsOnceHoweverLongPeopleTake(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{30 * time.Second, time.Hour, 24 * time.Hour} {
		t.Run(wait.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begin, told := time.Now(), 0
				host := &slowHost{approved: begin.Add(wait), away: 3}
				listens := &listener{tell: func(string) { told++ }}
				a := &Agent{Deps: Deps{Host: host}}
				listens.end() // the prompt has returned
				result, err := a.decided(&turn{ctx: t.Context()}, ToolCall{Approval: "a-1", Tell: listens.hear}, false)
				if err != nil || result.Text != "paid" || host.ran != 1 {
					t.Errorf("%+v, %v, and the call ran %d times", result, err, host.ran)
				}
				if late := time.Since(begin) - wait; late < 0 || late > againAfter {
					t.Errorf("it continued %v after the approval", late)
				}
				if most := int(wait/held) + 5; host.asked > most {
					t.Errorf("the host got %d requests, want at most %d", host.asked, most)
				}
				if told != 0 {
					t.Errorf("a caller that is gone got %d texts", told)
				}
			})
		})
	}
}

// A call whose answer was lost is not made again.
func TestDecided_ALostAnswerIsNoSecondCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := &slowHost{approved: time.Now().Add(24 * time.Hour), lose: true}
		a := &Agent{Deps: Deps{Host: host}}
		result, err := a.decided(&turn{ctx: t.Context()}, ToolCall{Approval: "a-1", Tell: func(string) {}}, false)
		if err != nil || host.ran != 1 || !result.Ran || result.Refused.Code != outcomeUnknown {
			t.Errorf("%+v, %v, and the call ran %d times", result, err, host.ran)
		}
	})
}
