package lifecycle_test

import (
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// A grant covers a call and then loses a vote that it needs. Approvers are then asked about the covered call itself.
// When they approve that call, the grant in its terms comes into effect.
func TestGrant_IsGivenByACallThatWasCovered(t *testing.T) {
	t.Parallel()
	r := approvedRecord(t, grant(5))
	c := covered(r, start)
	_, _ = c.Claim(claimRequest("c1", 1, grantedBy(r), withoutVoter("ben")), start)
	wantState(t, c, "pending")
	if g := c.Approval.GetGrant(); g.GetCalls() != 5 || g.GetExpires() != nil {
		t.Errorf("people are asked for the grant %v", g)
	}
	if err := c.Vote(approveBallot(person("ana")), start); err != nil {
		t.Fatal(err)
	}
	if refused, err := c.Claim(claimRequest("c2", 2, grantedBy(c)), start); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	if g := c.Approval.GetGrant(); g.GetUsed() != 1 || !c.HasLiveGrant(start) {
		t.Errorf("after approval the grant is %v", g)
	}
}

// CancelOutdated cancels an approval but not its grant. Cancel then ends the grant and adds one entry to the history.
func TestCancel_EndsTheGrantOfACancelledApproval(t *testing.T) {
	t.Parallel()
	r := approvedRecord(t, grant(5))
	r.CancelOutdated(start)
	wantState(t, r, "cancelled")
	if r.Approval.GetCode() != commonv1.Code_CODE_TOOL_CHANGED || !r.HasLiveGrant(start) {
		t.Errorf("the cancelled approval is %v", r.Approval)
	}
	moves := len(r.Moves)
	for range 2 {
		if err := r.Cancel("op", "enough", start); err != nil || r.HasLiveGrant(start) || len(r.Moves) != moves+1 {
			t.Errorf("cancelled: %v, %v, %d moves", err, r.Approval.GetGrant(), len(r.Moves)-moves)
		}
	}
}

// A covered call must be executed before the grant expires, even if the time to execute would end later.
func TestCover_LimitsTheTimeToExecuteToTheGrant(t *testing.T) {
	t.Parallel()
	r := approvedRecord(t, grant(5)) // the grant is valid for an hour
	for at, want := range map[time.Duration]time.Duration{
		0: times.Execute, time.Hour - times.Execute: time.Hour, time.Hour - times.Execute + time.Second: time.Hour, time.Hour - time.Second: time.Hour,
	} {
		if got := covered(r, start.Add(at)).Approval.GetExecuteBefore().AsTime().Sub(start); got != want {
			t.Errorf("a call that is covered after %v must be claimed within %v, want %v", at, got, want)
		}
	}
}

// grantedBy makes a claim use the grant of a record.
func grantedBy(r *lifecycle.Record) func(*lifecycle.ClaimRequest) {
	return func(c *lifecycle.ClaimRequest) { c.Grant = r }
}

// withoutVoter makes the vote of one subject invalid.
func withoutVoter(subject string) func(*lifecycle.ClaimRequest) {
	return func(c *lifecycle.ClaimRequest) {
		c.VoidReason = func(v *approvalv1.Vote) string {
			if v.GetSubject() == subject {
				return "left"
			}
			return ""
		}
	}
}
