package lifecycle_test

import (
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// Where the votes for a grant are too few by now, people are asked about the covered
// call itself: what they agree to is what its terms grant.
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
		t.Errorf("people agreed, and the grant is %v", g)
	}
}

// grantedBy claims by a record's grant.
func grantedBy(r *lifecycle.Record) func(*lifecycle.Claiming) {
	return func(c *lifecycle.Claiming) { c.Grant = r }
}

// without claims when one of the voters has no say any more.
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
