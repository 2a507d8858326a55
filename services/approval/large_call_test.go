package approval_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// large returns the params of a call of nearly 4 MiB. Rendering the call's view takes as long as possible, because each
// character becomes an escape.
func large(n int) string {
	return fmt.Sprintf(`{"name":"refund","arguments":{"n":%d,"text":"%s"}}`, n, strings.Repeat("\u202e", 4<<20/3-100))
}

// Case X1. Four people repeatedly view calls of 4 MiB. The service nevertheless answers another caller's requests
// within 10 s, which is the timeout of the gateway.
func TestRequestApproval_IsAnsweredWhileLargeViewsAreDrawn(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		s.completeCall(t, s.ask(t, params).GetApproval().GetId(), "c0", approvalv1.CallOutcome_CALL_OUTCOME_DONE)
		looking, stop := context.WithCancel(t.Context())
		var viewers sync.WaitGroup
		defer viewers.Wait()
		defer stop()
		for n := range 4 {
			id := s.ask(t, large(n+1)).GetApproval().GetId()
			person := s.person(t, "viewer")
			viewers.Go(func() {
				for looking.Err() == nil {
					_, _ = person.GetApproval(looking, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
				}
			})
		}
		other := bot()
		other.Subject = "bot2"
		refused, slowest := 0, time.Duration(0)
		for n := range 5 {
			ctx, cancel := context.WithTimeout(authn.OnBehalfOf(t.Context(), other), 10*time.Second)
			begin := time.Now()
			_, err := s.gateway().RequestApproval(ctx, &approvalv1.RequestApprovalRequest{Bound: bound(fmt.Sprintf(`{"n":%d}`, n%3)), Decision: decision(), DecisionId: "d"})
			cancel()
			if slowest = max(slowest, time.Since(begin)); err != nil {
				refused++
			}
		}
		t.Logf("the slowest answer took %v", slowest.Round(time.Millisecond))
		if refused > 0 {
			t.Errorf("%d of 5 requests of another caller were not answered in time", refused)
		}
	})
}
