package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// These are the errors of [Record.Vote] and [Record.MayDecide]. Use errors.Is to test for them.
var (
	ErrSelf         = errors.New("the caller, or a principal in its chain, can't decide on the call")
	ErrOwner        = errors.New("you own the agent that made the call")
	ErrCreator      = errors.New("you created the token of the agent that made the call")
	ErrNotApprover  = errors.New("the rule names groups that decide, and the voter is in none of them")
	ErrTokenTooNew  = errors.New("the token was created after the approval was requested")
	ErrAlreadyVoted = errors.New("the voter has already voted differently, and a vote can't be changed")
	ErrNotPending   = errors.New("the approval is no longer pending")
	ErrViewNotShown = errors.New("to approve, send the digest of the view that was shown")
	ErrViewChanged  = errors.New("the view has changed")
)

// externalVoteLife is how long a vote counts if the voter's groups come from an external issuer.
const externalVoteLife = 15 * time.Minute

// Ballot is the vote that a person casts.
type Ballot struct {
	// Voter is the principal of the person's token.
	Voter   *identityv1.Principal
	Verdict approvalv1.Verdict
	// Comment is the person's comment. It may be empty.
	Comment string
	Channel approvalv1.VoteChannel
	// External is true if the voter's groups come from an external issuer.
	External bool
	// ShownDigest is the digest of the view that the person saw. ViewDigest is the digest of the current view.
	ShownDigest, ViewDigest []byte
	// OwnersMayDecide is true if people may vote on the calls of agents that they own or whose tokens they created. This
	// also applies to agents in the delegation chain of a call.
	OwnersMayDecide bool
	// CoolDown is how long a denied call stays denied. It must not be negative.
	CoolDown time.Duration
}

// Vote casts a person's vote. One denial ends the approval, and the vote that completes the quorum approves it. If the
// person's earlier vote still counts and has the same verdict, Vote changes nothing. The error is one of the errors
// above, or a [*StepUpError].
func (r *Record) Vote(b Ballot, now time.Time) error {
	a := r.Approval
	at := r.voteIndex(b.Voter)
	if at >= 0 && a.GetVotes()[at].GetVerdict() == b.Verdict {
		return nil
	}
	groups, err := r.MayDecide(b.Voter, b.OwnersMayDecide)
	if err != nil {
		return err
	}
	if a.GetState() != pending {
		if at >= 0 {
			return ErrAlreadyVoted
		}
		return fmt.Errorf("%w: it is %s%s", ErrNotPending, StateName(a.GetState()), reasonSuffix(a.GetReason()))
	}
	if err := r.checkStepUp(&b, now); err != nil {
		return err
	}
	if err := b.checkView(); err != nil {
		return err
	}
	vote := &approvalv1.Vote{
		Subject: b.Voter.GetSubject(), Verdict: b.Verdict, Time: timestamppb.New(now), Comment: b.Comment,
		Groups: groups, Channel: b.Channel, External: b.External,
	}
	if a.GetTerms().GetApproveWith() != nil && b.Verdict == approvalv1.Verdict_VERDICT_APPROVE {
		vote.AuthTime, vote.Acr = b.Voter.GetAuthTime(), b.Voter.GetAcr()
	}
	if at >= 0 { // the person's vote to approve becomes a vote to deny
		a.Votes[at].VoidReason = "the person has denied the call since then"
	}
	a.Votes = append(a.Votes, vote)
	if b.Verdict != approvalv1.Verdict_VERDICT_APPROVE {
		reason := b.Comment
		if reason == "" {
			reason = "denied by " + vote.GetSubject()
		}
		r.deny(vote, reason, b.CoolDown, now)
		return nil
	}
	r.countVotes(now, cause{actor: vote.GetSubject(), reason: "approved by " + vote.GetSubject(), vote: vote})
	return nil
}

// reasonSuffix returns ": " followed by the reason, or "" if the reason is empty.
func reasonSuffix(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// deny ends the approval because of a vote to deny. During the cool-down, the same call stays denied.
func (r *Record) deny(vote *approvalv1.Vote, reason string, coolDown time.Duration, now time.Time) {
	r.Approval.DeniedUntil = timestamppb.New(now.Add(coolDown))
	r.move(denied, now, cause{actor: vote.GetSubject(), reason: reason, vote: vote})
}

// VoteOf returns the valid vote of a person, or nil if there is none.
func (r *Record) VoteOf(voter *identityv1.Principal) *approvalv1.Vote {
	if at := r.voteIndex(voter); at >= 0 {
		return r.Approval.GetVotes()[at]
	}
	return nil
}

// voteIndex returns the index of a person's valid vote, or -1 if there is none. It ignores votes that were cast in a
// form that the agent showed (by elicitation), and votes without the required authentication.
func (r *Record) voteIndex(voter *identityv1.Principal) int {
	return slices.IndexFunc(r.Approval.GetVotes(), func(v *approvalv1.Vote) bool {
		return v.GetSubject() == voter.GetSubject() && v.GetVoidReason() == "" && v.GetChannel() != approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION &&
			!r.isUnauthenticated(v)
	})
}

// checkView returns an error if the vote is to approve and the person has not seen the current view.
func (b *Ballot) checkView() error {
	switch {
	case b.Verdict != approvalv1.Verdict_VERDICT_APPROVE:
		return nil
	case len(b.ShownDigest) == 0:
		return ErrViewNotShown
	case len(b.ViewDigest) == 0 || string(b.ShownDigest) != string(b.ViewDigest):
		return ErrViewChanged
	default:
		return nil
	}
}

// MayDecide returns an error if a person may not vote on this approval. Otherwise it returns the groups that the voter
// belongs to and that the approval terms list. It returns nil if the terms list no groups.
func (r *Record) MayDecide(voter *identityv1.Principal, ownersMay bool) ([]string, error) {
	asked := r.Approval.GetRequester()
	for _, who := range append([]*identityv1.Principal{asked}, asked.GetChain()...) {
		if voter.GetSubject() == who.GetSubject() || voter.GetSubject() == who.GetActor() {
			return nil, ErrSelf
		}
		if voter.GetSubject() == who.GetOwner() && !ownersMay {
			return nil, fmt.Errorf("%w (%s): another person must decide, unless approvals.owner_may_approve is set", ErrOwner, who.GetSubject())
		}
		if voter.GetSubject() == who.GetTokenCreatedBy() && !ownersMay {
			return nil, fmt.Errorf("%w (%s): another person must decide, unless approvals.owner_may_approve is set", ErrCreator, who.GetSubject())
		}
	}
	if made := voter.GetTokenCreated(); made != nil && made.AsTime().After(r.Approval.GetRequested().AsTime()) {
		return nil, ErrTokenTooNew
	}
	return r.decidingGroups(voter.GetGroups())
}

// decidingGroups returns the given groups that the approval terms also list. It returns [ErrNotApprover] if the terms
// list only other groups, and nil if they list no groups.
func (r *Record) decidingGroups(groups []string) ([]string, error) {
	named := r.Approval.GetTerms().GetApprovers()
	if len(named) == 0 {
		return nil, nil
	}
	in := slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return !slices.Contains(named, g) })
	if len(in) == 0 {
		return nil, fmt.Errorf("%w: %v", ErrNotApprover, named)
	}
	return in, nil
}

// LetsDecide reports whether the approval terms allow a member of the given groups to vote.
func (r *Record) LetsDecide(groups []string) bool {
	_, err := r.decidingGroups(groups)
	return err == nil
}

// countVotes updates the number of missing votes, and approves the call if no vote is missing.
func (r *Record) countVotes(now time.Time, why cause) {
	r.voidUnauthenticated()
	r.Approval.VotesMissing = r.missingVotes()
	if r.Approval.GetVotesMissing() > 0 {
		from := r.Approval.GetState()
		r.Approval.Version++
		r.addMove(from, now, why)
		return
	}
	r.approve(now.Add(r.Times.Execute), now, why)
}

// missingVotes returns the number of votes that are still needed. Terms without a quorum need one vote.
func (r *Record) missingVotes() int32 {
	n := max(r.Approval.GetTerms().GetQuorum(), 1)
	for _, v := range r.Approval.GetVotes() {
		if v.GetVerdict() == approvalv1.Verdict_VERDICT_APPROVE && v.GetVoidReason() == "" {
			n--
		}
	}
	return max(n, 0)
}

func (r *Record) approve(until, now time.Time, why cause) {
	a := r.Approval
	a.Approved, a.ExecuteBefore = timestamppb.New(now), timestamppb.New(until)
	if g := a.GetGrant(); g != nil {
		g.Expires = timestamppb.New(now.Add(a.GetTerms().GetGrant().GetWithin().AsDuration()))
	}
	r.move(approved, now, why)
}

// voidVotes voids the votes that no longer count. It reports whether this leaves too few votes for the quorum. standing
// returns the reason why a vote no longer counts, or "" if it counts.
func (r *Record) voidVotes(standing func(*approvalv1.Vote) string, now time.Time) bool {
	r.voidUnauthenticated()
	for _, v := range r.Approval.GetVotes() {
		switch {
		case v.GetVoidReason() != "" || v.GetChannel() == approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION:
		case v.GetExternal() && now.Sub(v.GetTime().AsTime()) > externalVoteLife:
			v.VoidReason = "an external issuer asserted the voter's groups more than 15 minutes ago"
		case !v.GetExternal():
			v.VoidReason = standing(v)
		}
	}
	r.Approval.VotesMissing = r.missingVotes()
	return r.Approval.GetVotesMissing() > 0
}

// StateName returns the name of a state, such as outcome_unknown, or "" for an unknown value. Messages, notices and
// metrics contain these names.
func StateName(s approvalv1.ApprovalState) string { return stateNames[s] }

var stateNames = map[approvalv1.ApprovalState]string{
	pending: "pending", approved: "approved", claimed: "claimed", done: "done", failed: "failed",
	unknown: "outcome_unknown", denied: "denied", expired: "expired", cancelled: "cancelled",
}
