package approval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// DecideApproval implements approvalv1.ApprovalServiceServer.
func (s *Service) DecideApproval(ctx context.Context, req *approvalv1.DecideApprovalRequest) (*approvalv1.DecideApprovalResponse, error) {
	person := authn.CallerOf(ctx).Person
	out, err := s.castVote(ctx, req.GetApprovalId(), []*identityv1.Principal{person}, lifecycle.Ballot{
		Verdict: req.GetVerdict(), Comment: req.GetComment(), Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN, ShownDigest: req.GetViewDigest(),
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &approvalv1.DecideApprovalResponse{Approval: out.Approval, Vote: out.VoteOf(person)}, nil
}

// voteFromSlack casts the vote of a person who has pressed a button in Slack. The same rules apply as for a vote that
// the person casts with a token. voteFromSlack returns a sentence that tells the person the result.
func (s *Service) voteFromSlack(ctx context.Context, p notice.Press) string {
	const nothing = "Nothing was decided: "
	voters, err := s.tokens.PrincipalsOf(p.Tenant, p.Subject)
	if err != nil {
		return nothing + err.Error() + "."
	}
	voters = slices.DeleteFunc(slices.Clone(voters), func(v *identityv1.Principal) bool { return !hasDecidingRole(v) })
	if len(voters) == 0 {
		return nothing + "you are neither an operator nor an approver."
	}
	r, err := s.castVote(ctx, p.Approval, voters, lifecycle.Ballot{Verdict: p.Verdict, Channel: approvalv1.VoteChannel_VOTE_CHANNEL_SLACK, ShownDigest: p.ViewDigest})
	if known, ok := errors.AsType[*rpc.Error](toStatus(err)); ok {
		return nothing + known.Err.Error() + "."
	}
	if err != nil {
		s.log.ErrorContext(ctx, "a vote by a Slack button was not cast", "approval", p.Approval, "error", err)
		return nothing + "an error occurred; see the log of the approval service."
	}
	a := r.Approval
	if n := a.GetVotesMissing(); n > 0 && a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		return fmt.Sprintf("Your vote counts: %d more must agree.", n)
	}
	return "Your vote counts: the call is " + lifecycle.StateName(a.GetState()) + "."
}

// castVote casts a vote. voters contains the principals of the person's tokens. It must not be empty. castVote uses the
// first of these principals that may vote on the approval. If none of them may vote, castVote returns the error for
// voters[0].
func (s *Service) castVote(ctx context.Context, id string, voters []*identityv1.Principal, ballot lifecycle.Ballot) (*lifecycle.Record, error) {
	ctx, span := s.tracer.Start(ctx, voteSpan)
	defer span.End()
	out, err := s.castOnCurrentView(ctx, id, voters, ballot)
	if err != nil {
		describeFailedVote(span, ballot.Verdict, err)
		return nil, err
	}
	describeVote(span, ballot.Verdict, out.Approval)
	return out, nil
}

// castOnCurrentView casts a vote on the current view. If the approval changes before the vote is stored,
// castOnCurrentView renders the view again, at most maxDraws times in total.
func (s *Service) castOnCurrentView(ctx context.Context, id string, voters []*identityv1.Principal, ballot lifecycle.Ballot) (*lifecycle.Record, error) {
	ballot.OwnersMayDecide, ballot.CoolDown = s.cfg.OwnerMayApprove, s.cfg.CoolDown
	for range maxDraws {
		shown, err := s.viewForVote(ctx, voters[0].GetTenant(), id, ballot.Verdict)
		if err != nil {
			return nil, err
		}
		out, err := s.castOnView(ctx, id, voters, ballot, shown)
		if out != nil || err != nil {
			return out, err
		}
	}
	return nil, lifecycle.ErrViewChanged
}

// castOnView casts a vote on a rendered view. It returns nil if the view has changed since it was rendered.
func (s *Service) castOnView(ctx context.Context, id string, voters []*identityv1.Principal, ballot lifecycle.Ballot, shown *drawnView) (*lifecycle.Record, error) {
	var out *lifecycle.Record
	err := s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = nil
		r, err := tx.Get(ctx, voters[0].GetTenant(), id)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(voters, func(v *identityv1.Principal) bool {
			_, err := r.MayDecide(v, ballot.OwnersMayDecide)
			return err == nil
		})
		ballot.Voter, ballot.ViewDigest = voters[max(at, 0)], nil
		if ballot.Verdict == approvalv1.Verdict_VERDICT_APPROVE && r.Approval.GetState() == pending {
			still, err := shown.isCurrent(ctx, tx, r)
			if err != nil || !still {
				return err
			}
			ballot.ViewDigest = shown.Digest()
		}
		if err := r.Vote(ballot, tx.Now); err != nil {
			return err
		}
		out = r
		if len(r.Moves) == 0 {
			return nil
		}
		if err := tx.Save(ctx, r); err != nil {
			return err
		}
		return coverPending(ctx, tx, r)
	})
	return out, err
}

// coverPending approves the pending calls that the grant of an approval covers, if the last vote created this grant. It
// approves the oldest calls first. One call of the grant stays reserved for the approval's own call, because approvers
// have voted on that call.
func coverPending(ctx context.Context, tx *store.Tx, by *lifecycle.Record) error {
	if by.Approval.GetState() != approved || !by.HasLiveGrant(tx.Now) {
		return nil
	}
	left := by.Approval.GetGrant().GetCalls() - by.Approval.GetGrant().GetUsed() - 1
	if left < 1 {
		return nil
	}
	waiting, err := tx.Coverable(ctx, by, left)
	if err != nil {
		return err
	}
	for _, r := range waiting {
		if !by.Covers(r.Decision, tx.Now) {
			continue
		}
		r.Cover(by, tx.Now)
		if err := tx.Save(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// hasDecidingRole reports whether principals with the role of p may vote on approvals.
func hasDecidingRole(p *identityv1.Principal) bool {
	return p.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR || p.GetRole() == authv1.TokenRole_TOKEN_ROLE_APPROVER
}

// isVisible reports whether a caller may see an approval in the caller's tenant. An agent may see only the approvals
// that it requested. Every other caller may see all approvals.
func isVisible(caller *authn.Caller, r *lifecycle.Record) bool {
	p := caller.Principal
	if caller.Person != nil || p.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT {
		return true
	}
	return bytes.Equal(store.RequesterDigest(p), store.RequesterDigest(r.Approval.GetRequester()))
}

func actorSubject(caller *authn.Caller) string {
	if caller.Person != nil {
		return caller.Person.GetSubject()
	}
	return caller.Principal.GetSubject()
}

// voteChecker checks whether the voters of a record may still vote on it. If the service does not know the current
// tokens, err is set and the results are invalid.
type voteChecker struct {
	tokens *authn.Tokens
	record *lifecycle.Record
	// owners contains the current owners and actors of the claiming caller and of the principals in the caller's
	// delegation chain. It also contains the operators who created the tokens of these principals. The current owners may
	// differ from the owners in the record, because two tokens of one subject may have different owners.
	owners []string
	err    error
}

// agentOwners returns the people who may not approve the calls of p. These are the actors of p and of the principals in
// its delegation chain. If the configuration does not let owners approve their agents' calls, they also include the
// owners of these principals and the operators who created their tokens.
func (s *Service) agentOwners(p *identityv1.Principal) (out []string) {
	for _, who := range append([]*identityv1.Principal{p}, p.GetChain()...) {
		out = append(out, who.GetActor())
		if !s.cfg.OwnerMayApprove {
			out = append(out, who.GetOwner(), who.GetTokenCreatedBy())
		}
	}
	return out
}

// voidReason returns the reason why a vote no longer counts, or "" if it counts.
func (s *voteChecker) voidReason(vote *approvalv1.Vote) string {
	if slices.Contains(s.owners, vote.GetSubject()) {
		return "the voter owns the agent that makes the call, created its token, or is its actor"
	}
	people, err := s.tokens.PrincipalsOf(s.record.Approval.GetRequester().GetTenant(), vote.GetSubject())
	if err != nil {
		s.err = err
		return ""
	}
	some := false
	for _, p := range people {
		if !hasDecidingRole(p) {
			continue
		}
		some = true
		if s.record.LetsDecide(p.GetGroups()) {
			return ""
		}
	}
	if some {
		return "the voter has left the groups that decide"
	}
	return "the voter may no longer decide on calls"
}
