package lifecycle_test

import (
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// If a grant no longer has enough votes, approvers are asked about the covered call itself. Their approval gives the grant
// in the terms of that call.
func TestACallThatWasCoveredGrantsWhatItsTermsSay(t *testing.T) {
	t.Parallel()
	r := approvedOne(t, grant(5))
	c := covered(r, start)
	_, _ = c.Claim(claiming("c1", 1, grantedBy(r), without("ben")), start)
	wantState(t, c, "pending")
	if g := c.Approval.GetGrant(); g.GetCalls() != 5 || g.GetExpires() != nil {
		t.Errorf("people are asked for the grant %v", g)
	}
	if err := c.Vote(yes(person("ana")), start); err != nil {
		t.Fatal(err)
	}
	if refused, err := c.Claim(claiming("c2", 2, grantedBy(c)), start); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	if g := c.Approval.GetGrant(); g.GetUsed() != 1 || !c.LiveGrant(start) {
		t.Errorf("after approval the grant is %v", g)
	}
}

// A change of the tool cancels an approval but not its grant. Cancel then ends the grant, and adds a move to the history.
func TestTheGrantOfACancelledOneIsTakenBack(t *testing.T) {
	t.Parallel()
	r := approvedOne(t, grant(5))
	r.Outdate(start)
	wantState(t, r, "cancelled")
	if r.Approval.GetCode() != commonv1.Code_CODE_TOOL_CHANGED || !r.LiveGrant(start) {
		t.Errorf("the cancelled approval is %v", r.Approval)
	}
	moves := len(r.Moves)
	for range 2 {
		if err := r.Cancel("op", "enough", start); err != nil || r.LiveGrant(start) || len(r.Moves) != moves+1 {
			t.Errorf("cancelled: %v, %v, %d moves", err, r.Approval.GetGrant(), len(r.Moves)-moves)
		}
	}
}

// The time to execute of a covered call ends with the grant at the latest.
func TestACoveredCallEndsWithItsGrant(t *testing.T) {
	t.Parallel()
	r := approvedOne(t, grant(5)) // for an hour
	for at, want := range map[time.Duration]time.Duration{
		0: times.Execute, time.Hour - times.Execute: time.Hour, time.Hour - times.Execute + time.Second: time.Hour, time.Hour - time.Second: time.Hour,
	} {
		if got := covered(r, start.Add(at)).Approval.GetExecuteBefore().AsTime().Sub(start); got != want {
			t.Errorf("a call that is covered after %v must be claimed within %v, want %v", at, got, want)
		}
	}
}

// grantedBy makes a claim use the grant of a record.
func grantedBy(r *lifecycle.Record) func(*lifecycle.Claiming) {
	return func(c *lifecycle.Claiming) { c.Grant = r }
}

// without makes the vote of one subject no longer count.
func without(subject string) func(*lifecycle.Claiming) {
	return func(c *lifecycle.Claiming) {
		c.Standing = func(v *approvalv1.Vote) string {
			if v.GetSubject() == subject {
				return "left"
			}
			return ""
		}
	}
}
