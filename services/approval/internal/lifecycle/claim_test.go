package lifecycle_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

func TestClaim_SucceedsForOneHolder(t *testing.T) {
	t.Parallel()
	r := claimedRecord(t)
	if refused, err := r.Claim(claimRequest("c1", 1), start); refused != nil || err != nil {
		t.Errorf("a repeat: %v, %v", refused, err)
	}
	if refused, err := r.Claim(claimRequest("c2", 1), start); err != nil || refused == nil || refused.Code != commonv1.Code_CODE_APPROVAL_USED || !refused.LeaseUnused {
		t.Errorf("another: %+v, %v", refused, err)
	}
	shared := func(c *lifecycle.ClaimRequest) { c.Lease = "lease-c1" }
	if refused, _ := r.Claim(claimRequest("c3", 1, shared), start); refused == nil || refused.LeaseUnused {
		t.Errorf("another that shares the lease: %+v", refused)
	}
	if _, err := r.Claim(claimRequest("c1", 1, func(c *lifecycle.ClaimRequest) { c.Holder = "other" }), start); !errors.Is(err, lifecycle.ErrClaimEnded) {
		t.Errorf("another holder with the same name: %v", err)
	}
}

// Case A4. Claim checks the current decision, and whether the tool, the server, the approval terms or the rights of the
// voters have changed. If the decision denies or hides the call, or if one of these has changed, Claim refuses the
// claim and changes the state of the approval.
func TestClaim_ChecksWhatHasChanged(t *testing.T) {
	t.Parallel()
	left := func(c *lifecycle.ClaimRequest) {
		c.VoidReason = func(*approvalv1.Vote) string { return "left the group" }
	}
	for name, tt := range map[string]struct {
		claim lifecycle.ClaimRequest
		code  commonv1.Code
		err   error
		state string
	}{
		"policy allows":              {claimRequest("c", 1), 0, nil, "claimed"},
		"the same terms":             {claimRequest("c", 1, withDecision(decision())), 0, nil, "claimed"},
		"an empty decision":          {claimRequest("c", 1, withDecision(&policyv1.Decision{})), 0, lifecycle.ErrDecisionMissing, "approved"},
		"an unknown effect":          {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: 99})), 0, lifecycle.ErrDecisionMissing, "approved"},
		"approval without terms":     {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL})), 0, lifecycle.ErrDecisionMissing, "approved"},
		"policy allows and hides":    {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW, Hidden: true})), commonv1.Code_CODE_TOOL_UNKNOWN, nil, "denied"},
		"another attempt":            {claimRequest("c", 2), 0, lifecycle.ErrAttemptChanged, "approved"},
		"policy denies":              {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE})), commonv1.Code_CODE_DENIED_BY_RULE, nil, "denied"},
		"policy hides":               {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Hidden: true})), commonv1.Code_CODE_TOOL_UNKNOWN, nil, "denied"},
		"a scope is missing":         {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_SCOPE_MISSING})), commonv1.Code_CODE_SCOPE_MISSING, nil, "approved"},
		"a scope, but hidden":        {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_SCOPE_MISSING, Hidden: true})), commonv1.Code_CODE_TOOL_UNKNOWN, nil, "denied"},
		"an operator has stopped it": {claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_STOPPED})), commonv1.Code_CODE_STOPPED, nil, "approved"},
		"another definition":         {claimRequest("c", 1, func(c *lifecycle.ClaimRequest) { c.Definition = nil }), commonv1.Code_CODE_TOOL_CHANGED, nil, "cancelled"},
		"another server":             {claimRequest("c", 1, func(c *lifecycle.ClaimRequest) { c.ServerIdentity = "http y" }), commonv1.Code_CODE_TOOL_CHANGED, nil, "cancelled"},
		"other terms":                {claimRequest("c", 1, withDecision(decision(quorum(2)))), commonv1.Code_CODE_APPROVAL_PENDING, nil, "pending"},
		"a voter has lost the right": {claimRequest("c", 1, left), commonv1.Code_CODE_APPROVAL_PENDING, nil, "pending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := approvedRecord(t)
			refused, err := r.Claim(tt.claim, start)
			if !errors.Is(err, tt.err) || (refused == nil) != (tt.code == 0) || refused != nil && refused.Code != tt.code {
				t.Errorf("%+v, %v", refused, err)
			}
			wantState(t, r, tt.state)
			if refused != nil && refused.LeaseUnused != (tt.state != "approved") {
				t.Errorf("lease unused: %v", refused.LeaseUnused)
			}
			if tt.state == "pending" && (r.Approval.GetAttempt() != 2 || r.Approval.GetVotesMissing() == 0) {
				t.Errorf("pending again as %v", r.Approval)
			}
		})
	}
}

func TestClaim_VoidsAnExternalVoteAfter15Minutes(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]string{15 * time.Minute: "claimed", 15*time.Minute + 1: "pending"} {
		r := open(decision(func(d *policyv1.Decision) { d.Approval.ExecuteWithin = durationpb.New(time.Hour) }))
		b := approveBallot(person("ben"))
		b.External = true
		if err := r.Vote(b, start); err != nil {
			t.Fatal(err)
		}
		_, _ = r.Claim(claimRequest("c", 1), start.Add(age))
		wantState(t, r, want)
	}
}

func TestRelease_MakesTheCallClaimable(t *testing.T) {
	t.Parallel()
	r := claimedRecord(t)
	for range 2 {
		if err := r.Release("c1", "gw", "the server was unavailable", nil, start); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, r, "approved")
	if r.Approval.GetAttempt() != 2 {
		t.Errorf("attempt %d", r.Approval.GetAttempt())
	}
	if _, err := r.Claim(claimRequest("c1", 2), start); !errors.Is(err, lifecycle.ErrClaimEnded) {
		t.Errorf("the released claim again: %v", err)
	}
	if refused, err := r.Claim(claimRequest("c2", 2), start); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	if err := r.Release("c1", "gw", "x", nil, start); !errors.Is(err, lifecycle.ErrNotHolder) {
		t.Errorf("an older claim: %v", err)
	}
	if _, err := r.Complete("c1", "gw", approvalv1.CallOutcome_CALL_OUTCOME_DONE, start); !errors.Is(err, lifecycle.ErrNotHolder) {
		t.Errorf("it completes: %v", err)
	}
	if err := r.Renew("c2", "other", time.Minute, start); !errors.Is(err, lifecycle.ErrNotHolder) {
		t.Errorf("another holder: %v", err)
	}
	late := claimedRecord(t)
	if err := late.Release("c1", "gw", "x", nil, start.Add(times.Execute)); err != nil {
		t.Fatal(err)
	}
	wantState(t, late, "expired")
}

func TestComplete_SettlesTheApproval(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[approvalv1.CallOutcome]string{
		approvalv1.CallOutcome_CALL_OUTCOME_DONE: "done", approvalv1.CallOutcome_CALL_OUTCOME_FAILED: "failed",
		approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN: "outcome_unknown", approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT: "failed",
	} {
		for name, at := range map[string]time.Duration{"in time": 0, "after the lease": time.Hour} {
			r := claimedRecord(t)
			r.ApplyDue(start.Add(at))
			settled, err := r.Complete("c1", "gw", outcome, start.Add(at))
			if again, err := r.Complete("c1", "gw", outcome, start.Add(at)); again || err != nil {
				t.Errorf("%s, %s, again: %v, %v", want, name, again, err)
			}
			if wantSettled := at == 0 || want != "outcome_unknown"; err != nil || settled != wantSettled {
				t.Errorf("%s, %s: settled %v, %v", want, name, settled, err)
			}
			wantState(t, r, want)
			if err := r.Release("c1", "gw", "x", nil, start); !errors.Is(err, lifecycle.ErrOutcomeKnown) {
				t.Errorf("%s, released afterwards: %v", want, err)
			}
		}
	}
}

func TestClaim_OfUnknownOutcomeNeedsAnIdempotentCall(t *testing.T) {
	t.Parallel()
	r := claimedRecord(t)
	r.ApplyDue(start.Add(time.Minute))
	if err := r.Release("c1", "gw", "x", nil, start); !errors.Is(err, lifecycle.ErrLeaseEnded) {
		t.Errorf("released: %v", err)
	}
	if err := r.Renew("c1", "gw", time.Minute, start); !errors.Is(err, lifecycle.ErrLeaseEnded) {
		t.Errorf("renewed: %v", err)
	}
	if refused, err := r.Claim(claimRequest("c2", 2), start); err != nil || refused == nil || refused.Code != commonv1.Code_CODE_OUTCOME_UNKNOWN {
		t.Errorf("claimed again: %+v, %v", refused, err)
	}
	denied := withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Idempotent: true})
	if refused, _ := r.Claim(claimRequest("c3", 2, denied), start); refused == nil || refused.LeaseUnused {
		t.Errorf("claimed against policy: %+v", refused)
	}
	wantState(t, r, "outcome_unknown")
	if refused, _ := r.Claim(claimRequest("c4", 2, withDecision(idempotent())), start.Add(times.Execute)); refused == nil {
		t.Error("an idempotent call was claimed too late")
	}
	if refused, err := r.Claim(claimRequest("c5", 2, withDecision(idempotent())), start.Add(2*time.Minute)); refused != nil || err != nil {
		t.Errorf("an idempotent call: %+v, %v", refused, err)
	}
	wantState(t, r, "claimed")
}

type step func(*testing.T, *lifecycle.Record)

func completes(outcome approvalv1.CallOutcome) step {
	return func(t *testing.T, r *lifecycle.Record) {
		t.Helper()
		if settled, err := r.Complete(r.Approval.GetClaim().GetClaimId(), "gw", outcome, start); !settled || err != nil {
			t.Error(settled, err)
		}
	}
}

func passesTime(d time.Duration) step {
	return func(_ *testing.T, r *lifecycle.Record) { r.ApplyDue(start.Add(d)) }
}

func claimsAgain(t *testing.T, r *lifecycle.Record) {
	t.Helper()
	if refused, err := r.Claim(claimRequest("c2", 2, withDecision(idempotent())), start); refused != nil || err != nil {
		t.Error(refused, err)
	}
}

func releases(t *testing.T, r *lifecycle.Record) {
	t.Helper()
	if err := r.Release(r.Approval.GetClaim().GetClaimId(), "gw", "x", nil, start); err != nil {
		t.Error(err)
	}
}

func resolvesFailed(t *testing.T, r *lifecycle.Record) {
	t.Helper()
	if err := r.Resolve("op", approvalv1.Resolution_RESOLUTION_FAILED, "x", start); err != nil {
		t.Error(err)
	}
}

// When an approval ends, its params are deleted only if its call was certainly not sent.
func TestRecord_DeletesParamsOfACallThatDidNotRun(t *testing.T) {
	t.Parallel()
	lost, late, neverSent := passesTime(time.Minute), passesTime(times.Execute), completes(approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT)
	for name, tt := range map[string]struct {
		steps []step
		kept  bool
	}{
		"done":                               {[]step{completes(approvalv1.CallOutcome_CALL_OUTCOME_DONE)}, true},
		"failed":                             {[]step{completes(approvalv1.CallOutcome_CALL_OUTCOME_FAILED)}, true},
		"resolved as failed":                 {[]step{lost, resolvesFailed}, true},
		"never sent":                         {[]step{neverSent}, false},
		"never sent, reported late":          {[]step{lost, neverSent}, false},
		"unknown, then never sent":           {[]step{completes(approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN), neverSent}, false},
		"released, then expired":             {[]step{releases, late}, false},
		"unknown, claimed again, never sent": {[]step{lost, claimsAgain, neverSent}, true},
		"unknown, claimed again, released, expired": {[]step{lost, claimsAgain, releases, late}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := claimedRecord(t)
			for _, happens := range tt.steps {
				happens(t, r)
			}
			if kept := r.Call.GetCall().GetParamsJson() != ""; !r.Ended() || kept != tt.kept {
				t.Errorf("ended %v, params stored %v", r.Ended(), kept)
			}
		})
	}
}

// The policy service denies a call when the caller claims it. The approval and the last entry of its history contain
// the id of the policy revision that denied the call.
func TestClaim_DenialNamesItsRevision(t *testing.T) {
	t.Parallel()
	r := approvedRecord(t)
	if _, err := r.Claim(claimRequest("c", 1, withDecision(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, PolicyRevision: "denying"})), start); err != nil {
		t.Fatal(err)
	}
	if last := r.Moves[len(r.Moves)-1]; r.Approval.GetPolicyRevision() != "denying" || last.GetPolicyRevision() != "denying" {
		t.Errorf("the approval names revision %q, and its last move %q", r.Approval.GetPolicyRevision(), last.GetPolicyRevision())
	}
}
