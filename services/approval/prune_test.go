package approval_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func TestRun_DeletesApprovals30DaysAfterTheirEnd(t *testing.T) {
	t.Parallel()
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	s := serve(t, cfg)
	db, err := sql.Open("sqlite", filepath.Join(cfg.Data, "approval", "approvals.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ended := func(text string, ago time.Duration) (id string) {
		id = s.ask(t, text).GetApproval().GetId()
		if _, err := s.vote(t, "ana", id, no); err != nil {
			t.Fatal(err)
		}
		done, err := db.ExecContext(t.Context(), "UPDATE approvals SET ended = ended - $1, denied_until = denied_until - $1 WHERE id = $2", ago.Microseconds(), id)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := done.RowsAffected(); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		return id
	}
	const day = 24 * time.Hour
	older, younger := ended(`{"n":1}`, 30*day+time.Minute), ended(`{"n":2}`, 30*day-time.Hour)
	s.run(t)
	eventually.Holds(t, "the older approval is deleted", func() bool {
		_, err := s.person(t, "viewer").GetApproval(timeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: older})
		return status.Code(err) == codes.NotFound
	})
	if got := s.get(t, younger); got.GetState() != denied {
		t.Errorf("the younger approval is %v", got)
	}
}
