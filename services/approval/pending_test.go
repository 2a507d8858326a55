package approval_test

import (
	"context"
	"testing"

	"github.com/sluice-mesh/sluice/services/approval"
)

// When WatchPending starts, two approvals are pending, and a third approval is already approved. While WatchPending
// reports the first two, two more are opened, and one of these is approved. Changes to approvals that were already
// reported cause no report.
func TestWatchPending_ReportsEachApprovalOnce(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		s.ask(t, `{"n":1}`)
		s.approve(t, "ana", s.ask(t, `{"n":2}`).GetApproval().GetId())
		second := s.ask(t, `{"n":3}`).GetApproval().GetId()

		ctx, cancel := context.WithCancel(t.Context())
		reports, proceed, ended := make(chan approval.Pending), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			s.svc.WatchPending(ctx, func(p approval.Pending) {
				reports <- p
				<-proceed
			})
		}()
		if got, want := <-reports, (approval.Pending{Total: 2, New: 2, Newest: second}); got != want {
			t.Errorf("the first report is %+v, want %+v", got, want)
		}
		s.approve(t, "ana", s.ask(t, `{"n":4}`).GetApproval().GetId())
		fourth := s.ask(t, `{"n":5}`).GetApproval().GetId()
		proceed <- struct{}{}
		if got, want := <-reports, (approval.Pending{Total: 3, New: 1, Newest: fourth}); got != want {
			t.Errorf("the second report is %+v, want %+v", got, want)
		}
		proceed <- struct{}{}
		s.approve(t, "ana", second)
		fifth := s.ask(t, `{"n":6}`).GetApproval().GetId()
		if got, want := <-reports, (approval.Pending{Total: 3, New: 1, Newest: fifth}); got != want {
			t.Errorf("the third report is %+v, want %+v", got, want)
		}
		proceed <- struct{}{}
		cancel()
		<-ended
	})
}
