package lifecycle_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// stepUp returns a change to terms that require an authentication. An age of 0 means that any time is accepted.
func stepUp(age time.Duration, acr ...string) func(*policyv1.Decision) {
	return func(d *policyv1.Decision) {
		d.Approval.ApproveWith = &policyv1.StepUp{AcrValues: acr}
		if age > 0 {
			d.Approval.ApproveWith.MaxAge = durationpb.New(age)
		}
	}
}

// signedIn returns an approver whose session has an authentication.
func signedIn(at time.Time, acr string) *identityv1.Principal {
	p := person("ben")
	p.Role, p.Acr = authv1.TokenRole_TOKEN_ROLE_APPROVER, acr
	if !at.IsZero() {
		p.AuthTime = timestamppb.New(at)
	}
	return p
}

// A vote to approve counts only if the session satisfies the terms at the time of the vote.
func TestVote_ChecksTheAuthenticationOfApprovers(t *testing.T) {
	t.Parallel()
	now := start.Add(10 * time.Minute)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	five := stepUp(5 * time.Minute)
	for name, tt := range map[string]struct {
		terms func(*policyv1.Decision)
		voter *identityv1.Principal
		want  string // empty if the vote counts
	}{
		"a fresh session":                     {five, signedIn(ago(time.Minute), ""), ""},
		"a session of exactly the age":        {five, signedIn(ago(5*time.Minute), ""), ""},
		"a session that is older":             {five, signedIn(ago(5*time.Minute+time.Second), ""), "you authenticated 5m1s ago"},
		"a token that is no session":          {five, person("ben"), "contains no authentication"},
		"a session without auth_time":         {five, signedIn(time.Time{}, "phr"), "has not sent the claim auth_time"},
		"a clock that is a little ahead":      {five, signedIn(now.Add(30*time.Second), ""), ""},
		"an authentication in the future":     {five, signedIn(now.Add(2*time.Minute), ""), "in the future"},
		"a listed class":                      {stepUp(0, "phr", "phrh"), signedIn(time.Time{}, "phrh"), ""},
		"another class":                       {stepUp(0, "phr"), signedIn(ago(0), "pwd"), "is pwd"},
		"a class that only begins the same":   {stepUp(0, "phr"), signedIn(ago(0), "phrh"), "is phrh"},
		"no class":                            {stepUp(0, "phr"), signedIn(ago(0), ""), "has not sent the claim acr"},
		"both":                                {stepUp(5*time.Minute, "phr"), signedIn(ago(0), "phr"), ""},
		"the class, but too old":              {stepUp(5*time.Minute, "phr"), signedIn(ago(time.Hour), "phr"), "you authenticated 1h0m0s ago"},
		"fresh, but without the class":        {stepUp(5*time.Minute, "phr"), signedIn(ago(0), "pwd"), "is pwd"},
		"terms that require nothing they say": {stepUp(0), signedIn(ago(0), "phr"), "does not say which authentication"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(decision(tt.terms))
			err := r.Vote(approveBallot(tt.voter), now)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				wantState(t, r, "approved")
				if v := r.Approval.GetVotes()[0]; v.GetAcr() != tt.voter.GetAcr() || !v.GetAuthTime().AsTime().Equal(tt.voter.GetAuthTime().AsTime()) {
					t.Errorf("the vote records %v", v)
				}
				return
			}
			if _, ok := errors.AsType[*lifecycle.StepUpError](err); !ok || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q", err, tt.want)
			}
			wantState(t, r, "pending")
			if len(r.Approval.GetVotes()) != 0 {
				t.Errorf("the votes are %v", r.Approval.GetVotes())
			}
			if err := r.Vote(denyBallot(tt.voter), now); err != nil { // a refusal needs no authentication
				t.Fatal(err)
			}
			wantState(t, r, "denied")
		})
	}
}

// unauthenticated changes the votes of an approval to those that an older version of the service has recorded: they
// contain no authentication.
func unauthenticated(r *lifecycle.Record) {
	for _, v := range r.Approval.GetVotes() {
		v.AuthTime, v.Acr = nil, ""
	}
}

// An older version of the service, which does not know the requirement, has recorded a vote. The vote does not count,
// and its voter can vote again.
func TestVote_AVoteOfAnOlderVersionDoesNotCount(t *testing.T) {
	t.Parallel()
	terms := func(d *policyv1.Decision) { quorum(2)(d); stepUp(5 * time.Minute)(d) }
	cam := signedIn(start, "")
	cam.Subject = "cam"
	r := open(decision(terms))
	if err := r.Vote(approveBallot(signedIn(start, "")), start); err != nil {
		t.Fatal(err)
	}
	unauthenticated(r)
	if err := r.Vote(approveBallot(cam), start); err != nil {
		t.Fatal(err)
	}
	wantState(t, r, "pending")
	if votes := r.Approval.GetVotes(); r.Approval.GetVotesMissing() != 1 || votes[0].GetVoidReason() == "" || votes[1].GetVoidReason() != "" {
		t.Errorf("the approval is %v", r.Approval)
	}
	if err := r.Vote(approveBallot(signedIn(start, "")), start); err != nil {
		t.Fatal(err)
	}
	wantState(t, r, "approved")
}

// The person votes again before anybody else has voted.
func TestVote_AgainAfterAVoteOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	terms := func(d *policyv1.Decision) { quorum(2)(d); stepUp(5 * time.Minute)(d) }
	r := open(decision(terms))
	if err := r.Vote(approveBallot(signedIn(start, "")), start); err != nil {
		t.Fatal(err)
	}
	unauthenticated(r)
	if v := r.VoteOf(person("ben")); v != nil {
		t.Errorf("the vote is %v", v)
	}
	if _, ok := errors.AsType[*lifecycle.StepUpError](r.Vote(approveBallot(person("ben")), start)); !ok {
		t.Error("a vote without an authentication counts")
	}
	if err := r.Vote(approveBallot(signedIn(start, "")), start); err != nil {
		t.Fatal(err)
	}
	if v := r.VoteOf(person("ben")); v.GetAuthTime() == nil || r.Approval.GetVotesMissing() != 1 {
		t.Errorf("the approval is %v", r.Approval)
	}
}

// An older version of the service has approved a call. The claim of the call, or of a call that the grant covers, asks
// people again.
func TestClaim_VotesOfAnOlderVersionDoNotCount(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*approvalv1.Vote)
		state  string
	}{
		"with its authentication": {func(*approvalv1.Vote) {}, "claimed"},
		"none":                    {func(v *approvalv1.Vote) { v.AuthTime = nil }, "pending"},
		"too old at the vote":     {func(v *approvalv1.Vote) { v.AuthTime = timestamppb.New(start.Add(-6 * time.Minute)) }, "pending"},
		"another class":           {func(v *approvalv1.Vote) { v.Acr = "pwd" }, "pending"},
		"a button": {func(v *approvalv1.Vote) {
			v.Channel = approvalv1.VoteChannel_VOTE_CHANNEL_SLACK
		}, "pending"},
		"the form of a client": {func(v *approvalv1.Vote) {
			v.Channel = approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION
		}, "pending"},
		"groups that an issuer asserted": {func(v *approvalv1.Vote) { v.External, v.AuthTime = true, nil }, "pending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			terms := func(d *policyv1.Decision) { grant(5)(d); stepUp(5*time.Minute, "phr")(d) }
			r, other := open(decision(terms)), open(decision(terms))
			if err := r.Vote(approveBallot(signedIn(start, "phr")), start); err != nil {
				t.Fatal(err)
			}
			other.Cover(r, start)
			tt.change(r.Approval.GetVotes()[0])
			now := start.Add(4 * time.Minute)
			for _, one := range []*lifecycle.Record{other, r} {
				claim := claimRequest("c", 1, withDecision(decision(terms)), func(c *lifecycle.ClaimRequest) { c.Grant = r })
				if _, err := one.Claim(claim, now); err != nil {
					t.Fatal(err)
				}
				wantState(t, one, tt.state)
			}
			if err := r.Vote(approveBallot(signedIn(now, "phr")), now); tt.state == "pending" && err != nil {
				t.Error(err)
			}
		})
	}
}

// A person who presses a button does not use a session, even if the person has a fresh one.
func TestVote_ByAButtonNeverSatisfiesAStepUp(t *testing.T) {
	t.Parallel()
	for _, channel := range []approvalv1.VoteChannel{approvalv1.VoteChannel_VOTE_CHANNEL_SLACK, approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION, approvalv1.VoteChannel_VOTE_CHANNEL_UNSPECIFIED} {
		r := open(decision(stepUp(time.Hour)))
		b := approveBallot(signedIn(start, "phr"))
		b.Channel = channel
		if _, ok := errors.AsType[*lifecycle.StepUpError](r.Vote(b, start)); !ok {
			t.Errorf("%v: the vote counts", channel)
		}
		b.Verdict = approvalv1.Verdict_VERDICT_DENY
		if err := r.Vote(b, start); err != nil {
			t.Errorf("%v: a refusal: %v", channel, err)
		}
	}
}

func TestStepUpError_HasTheParametersOfASignIn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		terms func(*policyv1.Decision)
		want  map[string]string
	}{
		"an age":  {stepUp(5 * time.Minute), map[string]string{"role": "approver", "max_age": "300"}},
		"classes": {stepUp(0, "phr", "phrh"), map[string]string{"role": "approver", "acr_values": "phr phrh"}},
		"both":    {stepUp(24*time.Hour, "phr"), map[string]string{"role": "approver", "max_age": "86400", "acr_values": "phr"}},
	} {
		r := open(decision(tt.terms))
		unmet, ok := errors.AsType[*lifecycle.StepUpError](r.Vote(approveBallot(signedIn(time.Time{}, "")), start))
		if !ok {
			t.Fatalf("%s: the vote counts", name)
		}
		if diff := cmp.Diff(tt.want, unmet.Facts()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Terms with both keys never come from the policy service. If they did, the person at the agent could not confirm.
func TestAllowsSelfVote_NotIfAnAuthenticationIsRequired(t *testing.T) {
	t.Parallel()
	terms := &policyv1.ApprovalTerms{Quorum: 1, SelfConfirm: true}
	if !lifecycle.AllowsSelfVote(terms) {
		t.Error("without approve_with")
	}
	terms.ApproveWith = &policyv1.StepUp{AcrValues: []string{"phr"}}
	if lifecycle.AllowsSelfVote(terms) {
		t.Error("with approve_with")
	}
}

// The votes under earlier terms don't count under terms with another authentication, and a grant does not cover calls
// whose terms require another authentication.
func TestGrant_DoesNotCoverCallsThatNeedAnotherAuthentication(t *testing.T) {
	t.Parallel()
	r := open(decision(grant(5)))
	if err := r.Vote(approveBallot(person("ben")), start); err != nil {
		t.Fatal(err)
	}
	if !r.Covers(decision(grant(5)), start) {
		t.Error("the grant does not cover calls with the same terms")
	}
	if r.Covers(decision(grant(5), stepUp(time.Hour)), start) {
		t.Error("the grant covers a call that needs a sign-in")
	}
}
