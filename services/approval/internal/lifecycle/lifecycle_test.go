package lifecycle_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

var (
	start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	times = lifecycle.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}
)

func decision(change ...func(*policyv1.Decision)) *policyv1.Decision {
	d := &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, PolicyRevision: "r1", RuleDigest: []byte("rule"),
		Approval: &policyv1.ApprovalTerms{Quorum: 1},
	}
	for _, f := range change {
		f(d)
	}
	return d
}

func allow() *policyv1.Decision { return &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW} }

func idempotent() *policyv1.Decision {
	return &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW, Idempotent: true}
}

func quorum(n int32, groups ...string) func(*policyv1.Decision) {
	return func(d *policyv1.Decision) { d.Approval.Quorum, d.Approval.Approvers = n, groups }
}

func grant(calls int64) func(*policyv1.Decision) {
	return func(d *policyv1.Decision) {
		d.Approval.Grant = &policyv1.Grant{Calls: calls, Within: durationpb.New(time.Hour)}
	}
}

func open(d *policyv1.Decision) *lifecycle.Record {
	return lifecycle.Open(lifecycle.OpenRequest{
		ID: "a1", DecisionID: "d1", Digest: []byte("digest"), Decision: d, Times: times,
		Requester: &identityv1.Principal{
			Tenant: "acme", Subject: "bot", Agent: "dev", Owner: "olga", Session: "s", TokenId: "t", TokenCreatedBy: "olaf", Actor: "ada",
			Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "carl", Owner: "cleo", Actor: "cora"}},
		},
		Call: &approvalv1.BoundCall{ServerIdentity: "http x", Call: &policyv1.Call{
			Server: "pay", Name: "refund", DefinitionDigest: []byte("definition"), ParamsJson: `{"name":"refund"}`,
		}},
	}, start)
}

func person(subject string, groups ...string) *identityv1.Principal {
	return &identityv1.Principal{Tenant: "acme", Subject: subject, Groups: groups}
}

func approveBallot(who *identityv1.Principal) lifecycle.Ballot {
	return lifecycle.Ballot{Voter: who, Verdict: approvalv1.Verdict_VERDICT_APPROVE, ShownDigest: []byte("v"), ViewDigest: []byte("v"), Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN}
}

func denyBallot(who *identityv1.Principal) lifecycle.Ballot {
	return lifecycle.Ballot{Voter: who, Verdict: approvalv1.Verdict_VERDICT_DENY, Comment: "too much"}
}

func claimRequest(id string, attempt int32, change ...func(*lifecycle.ClaimRequest)) lifecycle.ClaimRequest {
	c := lifecycle.ClaimRequest{
		Claim:    lifecycle.Claim{ID: id, Holder: "gw", Lease: "lease-" + id, Attempt: attempt},
		Decision: allow(), Times: times, Definition: []byte("definition"), ServerIdentity: "http x", Duration: time.Minute,
		VoidReason: func(*approvalv1.Vote) string { return "" },
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func withDecision(d *policyv1.Decision) func(*lifecycle.ClaimRequest) {
	return func(c *lifecycle.ClaimRequest) { c.Decision = d }
}

func approvedRecord(t *testing.T, change ...func(*policyv1.Decision)) *lifecycle.Record {
	t.Helper()
	r := open(decision(change...))
	if err := r.Vote(approveBallot(person("ben")), start); err != nil {
		t.Fatal(err)
	}
	wantState(t, r, "approved")
	return r
}

func claimedRecord(t *testing.T) *lifecycle.Record {
	t.Helper()
	r := approvedRecord(t)
	if refused, err := r.Claim(claimRequest("c1", 1), start); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	return r
}

func wantState(t *testing.T, r *lifecycle.Record, want string) {
	t.Helper()
	if got := lifecycle.StateName(r.Approval.GetState()); got != want {
		t.Errorf("the approval is %s, want %s", got, want)
	}
}

func TestOpen_StoresTheRequesterWithoutItsSession(t *testing.T) {
	t.Parallel()
	a := open(decision()).Approval
	if who := a.GetRequester(); who.GetSubject() != "bot" || who.GetSession() != "" || who.GetTokenId() != "" || len(who.GetChain()) != 1 {
		t.Errorf("asked by %v", who)
	}
	if a.GetMethod() != "tools/call" || a.GetAttempt() != 1 || a.GetVersion() != 1 || a.GetVotesMissing() != 1 || a.GetCode() != commonv1.Code_CODE_APPROVAL_PENDING {
		t.Errorf("opened as %v", a)
	}
}

func TestApplyDue_MovesAnApprovalInTime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		given   func(*testing.T) *lifecycle.Record
		after   time.Duration
		want    string
		attempt int32
	}{
		"no decision": {func(*testing.T) *lifecycle.Record { return open(decision()) }, times.Decide, "expired", 1},
		"no claim":    {func(t *testing.T) *lifecycle.Record { t.Helper(); return approvedRecord(t) }, times.Execute, "expired", 1},
		"no renewal":  {func(t *testing.T) *lifecycle.Record { t.Helper(); return claimedRecord(t) }, time.Minute, "outcome_unknown", 2},
		"a final state": {func(t *testing.T) *lifecycle.Record {
			t.Helper()
			r := open(decision())
			_ = r.Vote(denyBallot(person("x")), start)
			return r
		}, time.Hour, "denied", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tt.given(t)
			before := lifecycle.StateName(r.Approval.GetState())
			r.ApplyDue(start.Add(tt.after - 1))
			wantState(t, r, before)
			r.ApplyDue(start.Add(tt.after))
			wantState(t, r, tt.want)
			if r.Approval.GetAttempt() != tt.attempt {
				t.Errorf("attempt %d, want %d", r.Approval.GetAttempt(), tt.attempt)
			}
			if r.ApplyDue(start.Add(10 * time.Hour)); lifecycle.StateName(r.Approval.GetState()) != tt.want {
				t.Error("the approval moved again")
			}
		})
	}
}

// Case A3. A vote counts only if the voter may decide on the call. The requester, the principals in the requester's
// delegation chain, the actors of their tokens, their owners, and the operator who created the requester's token may
// not decide.
func TestVote_RefusesAVoterWhoMayNotDecide(t *testing.T) {
	t.Parallel()
	tooNew := person("ben", "finance")
	tooNew.TokenCreated = timestamppb.New(start.Add(time.Second))
	for name, tt := range map[string]struct {
		ballot lifecycle.Ballot
		want   error
	}{
		"a member":                   {approveBallot(person("ben", "finance")), nil},
		"the caller":                 {approveBallot(person("bot", "finance")), lifecycle.ErrSelf},
		"its owner":                  {approveBallot(person("olga", "finance")), lifecycle.ErrOwner},
		"a principal in its chain":   {approveBallot(person("carl", "finance")), lifecycle.ErrSelf},
		"the actor of its token":     {approveBallot(person("ada", "finance")), lifecycle.ErrSelf},
		"a prior actor of its token": {approveBallot(person("cora", "finance")), lifecycle.ErrSelf},
		"the actor, if owners may": {func() lifecycle.Ballot {
			b := approveBallot(person("ada", "finance"))
			b.OwnersMayDecide = true
			return b
		}(), lifecycle.ErrSelf},
		"the owner of a principal in its chain": {approveBallot(person("cleo", "finance")), lifecycle.ErrOwner},
		"an owner, if owners may": {func() lifecycle.Ballot {
			b := approveBallot(person("olga", "finance"))
			b.OwnersMayDecide = true
			return b
		}(), nil},
		"the caller, if owners may": {func() lifecycle.Ballot {
			b := approveBallot(person("bot", "finance"))
			b.OwnersMayDecide = true
			return b
		}(), lifecycle.ErrSelf},
		"the operator who created its token": {approveBallot(person("olaf", "finance")), lifecycle.ErrCreator},
		"that operator, if owners may": {func() lifecycle.Ballot {
			b := approveBallot(person("olaf", "finance"))
			b.OwnersMayDecide = true
			return b
		}(), nil},
		"not a member":          {approveBallot(person("ben", "sales")), lifecycle.ErrNotApprover},
		"not a member, denying": {denyBallot(person("ben")), lifecycle.ErrNotApprover},
		"a newer token":         {approveBallot(tooNew), lifecycle.ErrTokenTooNew},
		"no view was shown":     {func() lifecycle.Ballot { b := approveBallot(person("ben", "finance")); b.ShownDigest = nil; return b }(), lifecycle.ErrViewNotShown},
		"another view was shown": {func() lifecycle.Ballot {
			b := approveBallot(person("ben", "finance"))
			b.ShownDigest = []byte("w")
			return b
		}(), lifecycle.ErrViewChanged},
		"the view can't be drawn": {func() lifecycle.Ballot {
			b := approveBallot(person("ben", "finance"))
			b.ShownDigest, b.ViewDigest = nil, nil
			return b
		}(), lifecycle.ErrViewNotShown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(decision(quorum(1, "finance")))
			if err := r.Vote(tt.ballot, start); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if tt.want != nil {
				wantState(t, r, "pending")
			} else {
				wantState(t, r, "approved")
			}
		})
	}
}

// Case A3. Repeated votes of one person count once towards the quorum.
func TestVote_CountsEachPersonOnce(t *testing.T) {
	t.Parallel()
	r := open(decision(quorum(2)))
	for range 3 {
		if err := r.Vote(approveBallot(person("ben")), start); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, r, "pending")
	if len(r.Approval.GetVotes()) != 1 || r.Approval.GetVotesMissing() != 1 {
		t.Errorf("votes %v", r.Approval.GetVotes())
	}
	if err := r.Vote(approveBallot(person("ana")), start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	wantState(t, r, "approved")
	if got := r.Approval.GetExecuteBefore().AsTime(); !got.Equal(start.Add(time.Minute + times.Execute)) {
		t.Errorf("execute_before is %v", got)
	}
	if err := r.Vote(approveBallot(person("ben")), start); err != nil {
		t.Errorf("the same vote again: %v", err)
	}
	if err := r.Vote(denyBallot(person("ben")), start); !errors.Is(err, lifecycle.ErrAlreadyVoted) {
		t.Errorf("another vote, too late: %v", err)
	}
	if err := r.Vote(denyBallot(person("eve")), start); !errors.Is(err, lifecycle.ErrNotPending) {
		t.Errorf("a first vote, too late: %v", err)
	}
}

func TestVote_OneDenialEndsTheApproval(t *testing.T) {
	t.Parallel()
	r := open(decision(quorum(2)))
	_ = r.Vote(approveBallot(person("ben")), start)
	if err := r.Vote(denyBallot(person("ben")), start); err != nil { // a person who approved may deny later
		t.Fatal(err)
	}
	wantState(t, r, "denied")
	a := r.Approval
	if a.GetReason() != "too much" || a.GetCode() != commonv1.Code_CODE_APPROVAL_DENIED || a.GetVotes()[0].GetVoidReason() == "" || r.Call.GetCall().GetParamsJson() != "" || a.GetEnded() == nil {
		t.Errorf("the approval ended as %v, with params %q", a, r.Call.GetCall().GetParamsJson())
	}
}

func TestUpdateDecision_AsksAgainIfTheTermsChange(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*policyv1.Decision)
		isNew  bool
	}{
		"nothing":             {func(*policyv1.Decision) {}, false},
		"the revision":        {func(d *policyv1.Decision) { d.PolicyRevision = "r2" }, false},
		"the order of groups": {quorum(2, "b", "a", "a"), false},
		"groups":              {quorum(2, "a"), true},
		"the quorum":          {quorum(3, "a", "b"), true},
		"self_confirm":        {func(d *policyv1.Decision) { d.Approval.SelfConfirm = true }, true},
		"a grant":             {grant(3), true},
		"decide_within":       {func(d *policyv1.Decision) { d.Approval.DecideWithin = durationpb.New(times.Decide) }, true},
		"approve_with":        {func(d *policyv1.Decision) { d.Approval.ApproveWith = &policyv1.StepUp{AcrValues: []string{"phr"}} }, true},
		"execute_within":      {func(d *policyv1.Decision) { d.Approval.ExecuteWithin = durationpb.New(time.Minute) }, true},
		"the rule":            {func(d *policyv1.Decision) { d.RuleDigest = []byte("other") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := quorum(2, "a", "b")
			r := open(decision(base))
			if err := r.Vote(approveBallot(person("ben", "a")), start); err != nil {
				t.Fatal(err)
			}
			later := start.Add(time.Minute)
			if isNew := r.UpdateDecision(decision(base, tt.change), times, later); isNew != tt.isNew {
				t.Errorf("asked again: %v, want %v", isNew, tt.isNew)
			}
			if left := len(r.Approval.GetVotes()) == 0; left != tt.isNew {
				t.Errorf("votes %v", r.Approval.GetVotes())
			}
			if until := r.Approval.GetDecideBefore().AsTime(); until.Equal(later.Add(times.Decide)) != tt.isNew {
				t.Errorf("decide_before is %v", until)
			}
		})
	}
}

func TestResolve_SettlesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := claimedRecord(t)
	if err := r.Resolve("op", approvalv1.Resolution_RESOLUTION_DONE, "seen", start); !errors.Is(err, lifecycle.ErrOutcomeKnown) {
		t.Errorf("while it runs: %v", err)
	}
	r.ApplyDue(start.Add(time.Minute))
	for range 2 {
		if err := r.Resolve("op", approvalv1.Resolution_RESOLUTION_DONE, "seen", start); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, r, "done")
	n := len(r.Moves)
	if settled, err := r.Complete("c1", "gw", approvalv1.CallOutcome_CALL_OUTCOME_FAILED, start); settled || err != nil {
		t.Errorf("reported afterwards: %v, %v", settled, err)
	}
	wantState(t, r, "done")
	if len(r.Moves) != n+1 {
		t.Error("the late report is not in the history")
	}
}

func TestCancel_EndsAPendingOrApprovedRecord(t *testing.T) {
	t.Parallel()
	for range 2 {
		r := approvedRecord(t)
		for range 2 {
			if err := r.Cancel("op", "no need", start); err != nil {
				t.Fatal(err)
			}
		}
		wantState(t, r, "cancelled")
	}
	if err := claimedRecord(t).Cancel("op", "x", start); !errors.Is(err, lifecycle.ErrRunning) {
		t.Errorf("a claimed approval: %v", err)
	}
	r := open(decision())
	_ = r.Vote(denyBallot(person("ben")), start)
	if err := r.Cancel("op", "x", start); !errors.Is(err, lifecycle.ErrEnded) {
		t.Errorf("a denied approval: %v", err)
	}
}

// covered returns an approval of another call. The grant of r covers that call.
func covered(r *lifecycle.Record, now time.Time) *lifecycle.Record {
	c := open(decision(grant(r.Approval.GetGrant().GetCalls())))
	c.Approval.Id = "a2"
	c.Cover(r, now)
	return c
}

func TestGrant_CoversItsNumberOfCalls(t *testing.T) {
	t.Parallel()
	r := approvedRecord(t, grant(2))
	own := func(c *lifecycle.ClaimRequest) { c.Grant = r }
	if refused, err := r.Claim(claimRequest("c1", 1, own), start); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	second, third := covered(r, start), covered(r, start)
	if refused, err := second.Claim(claimRequest("c2", 1, own), start); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	if refused, err := third.Claim(claimRequest("c3", 1, own), start); err != nil || refused == nil || refused.Code != commonv1.Code_CODE_APPROVAL_EXPIRED {
		t.Errorf("one too many: %+v, %v", refused, err)
	}
	wantState(t, third, "expired")
	if err := second.Release("c2", "gw", "x", r, start); err != nil || r.Approval.GetGrant().GetUsed() != 1 || !r.HasLiveGrant(start) {
		t.Errorf("released: %v, %v", err, r.Approval.GetGrant())
	}
	if r.HasLiveGrant(start.Add(time.Hour)) {
		t.Error("the grant is live after its time")
	}
	if err := r.Cancel("op", "enough", start); err != nil || r.HasLiveGrant(start) {
		t.Errorf("cancelled: %v", err)
	}
	wantState(t, r, "claimed")
}

func TestClaim_OfACoveredCallChecksTheVotesForTheGrant(t *testing.T) {
	t.Parallel()
	r := approvedRecord(t, grant(5))
	c := covered(r, start)
	left := func(c *lifecycle.ClaimRequest) {
		c.Grant, c.VoidReason = r, func(*approvalv1.Vote) string { return "left" }
	}
	if refused, err := c.Claim(claimRequest("c1", 1, left), start); err != nil || refused == nil || refused.Code != commonv1.Code_CODE_APPROVAL_PENDING {
		t.Errorf("%+v, %v", refused, err)
	}
	wantState(t, c, "pending")
	if c.Approval.GetGrantedBy() != "" || c.Approval.GetVotesMissing() != 1 {
		t.Errorf("the covered approval is %v", c.Approval)
	}
}

func TestRecordSelfVote_ApprovesTheCall(t *testing.T) {
	t.Parallel()
	d := decision(func(d *policyv1.Decision) { d.Approval.SelfConfirm = true })
	r := open(d)
	if err := r.RecordSelfVote(approvalv1.Verdict_VERDICT_APPROVE, d, time.Hour, start); err != nil {
		t.Fatal(err)
	}
	wantState(t, r, "approved")
	gone := func(c *lifecycle.ClaimRequest) { c.VoidReason = func(*approvalv1.Vote) string { return "no approver" } }
	if refused, err := r.Claim(claimRequest("c1", 1, gone), start); refused != nil || err != nil {
		t.Errorf("%+v, %v", refused, err)
	}
}

func TestOpen_NeedsOneVoteWithoutAQuorum(t *testing.T) {
	t.Parallel()
	r := open(decision(quorum(0)))
	if r.Approval.GetVotesMissing() != 1 {
		t.Errorf("votes missing: %d", r.Approval.GetVotesMissing())
	}
	wantState(t, r, "pending")
}
