package lifecycle

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// These are the errors of claims. Use errors.Is to test for them.
var (
	ErrDecisionMissing = errors.New("policy has not decided on the call")
	ErrClaimEnded      = errors.New("the claim has ended, or another holder has used its identifier")
	ErrAttemptChanged  = errors.New("the attempt is not the approval's current attempt")
	ErrNotHolder       = errors.New("the claim is not the approval's current claim")
	ErrLeaseEnded      = errors.New("the lease of the claim has expired, and the outcome of the call counts as unknown")
	ErrOutcomeKnown    = errors.New("the outcome of the call is known already")
)

// ClaimRequest is a request to claim an approved call.
type ClaimRequest struct {
	// Claim identifies the claim and its attempt. The caller has already reserved rate limits for this attempt.
	Claim
	// Decision is the policy service's current decision on the call.
	Decision *policyv1.Decision
	// Times are the configured times. They apply if approvers must be asked again.
	Times Times
	// Definition is the digest of the tool's current definition, and ServerIdentity is the server's current identity.
	Definition     []byte
	ServerIdentity string
	// Duration is the length of the lease. It must be positive.
	Duration time.Duration
	// VoidReason returns the reason why a vote no longer counts, or "" if it counts.
	VoidReason func(*approvalv1.Vote) string
	// Grant is the record of the approval whose grant covers the call, or nil if no grant covers it. Grant may be the
	// claimed record itself. If it is another record, [Record.Claim] changes that record too.
	Grant *Record
}

// Refusal is the reason for refusing a claim.
type Refusal struct {
	// Code and Message state the reason to the caller. Message may be empty.
	Code    commonv1.Code
	Message string
	// LeaseUnused means that no call can be sent under the claim's lease of rate limits. The holder must then settle the
	// lease as never sent.
	LeaseUnused bool
}

// Claim claims the call for one holder. It returns nil, nil if the holder now has the claim or already had it.
// Otherwise, it returns a refusal for the caller, or an error.
func (r *Record) Claim(c ClaimRequest, now time.Time) (*Refusal, error) {
	if !isDecision(c.Decision) {
		return nil, ErrDecisionMissing
	}
	a := r.Approval
	if i := slices.IndexFunc(r.Claims, func(old Claim) bool { return old.ID == c.ID }); i >= 0 {
		if old := r.Claims[i]; old.Holder == c.Holder && old.End == Active {
			return nil, nil //nolint:nilnil // the holder has the claim already
		}
		return nil, ErrClaimEnded
	}
	if a.GetAttempt() != c.Attempt {
		return nil, ErrAttemptChanged
	}
	if refused := r.checkClaim(c, now); refused != nil {
		refused.LeaseUnused = r.isLeaseUnused(c.Claim)
		return refused, nil
	}
	if c.Grant != nil {
		c.Grant.Approval.GetGrant().Used++
	}
	r.Claims = append(r.Claims, c.Claim)
	a.Claim = &approvalv1.ClaimRecord{
		ClaimId: c.ID, Holder: c.Holder, Attempt: c.Attempt, LimitLeaseId: c.Lease,
		Claimed: timestamppb.New(now), LeaseExpires: timestamppb.New(now.Add(c.Duration)),
	}
	a.PolicyRevision = c.Decision.GetPolicyRevision()
	r.move(claimed, now, cause{actor: c.Holder, reason: "claimed for sending"})
	return nil, nil //nolint:nilnil // the holder has the claim
}

// isDecision reports whether the decision has a known effect. A decision that requires approval must also contain the
// terms of the approval.
func isDecision(d *policyv1.Decision) bool {
	switch d.GetEffect() {
	case policyv1.Effect_EFFECT_ALLOW, policyv1.Effect_EFFECT_DENY:
		return true
	case policyv1.Effect_EFFECT_REQUIRE_APPROVAL:
		return d.GetApproval() != nil
	case policyv1.Effect_EFFECT_UNSPECIFIED:
		return false
	default:
		return false
	}
}

// checkClaim returns the reason for refusing the claim, or nil if there is none. It also makes the state transition
// that the reason requires. If the state is outcome_unknown, a refusal does not change the state.
func (r *Record) checkClaim(c ClaimRequest, now time.Time) *Refusal {
	a, again := r.Approval, r.Approval.GetState() == unknown
	move := func(to approvalv1.ApprovalState, why cause) {
		if !again {
			r.move(to, now, why)
		}
	}
	switch {
	case a.GetState() != approved && !again:
		return &Refusal{Code: a.GetCode()}
	case again && (!c.Decision.GetIdempotent() || !now.Before(a.GetExecuteBefore().AsTime())):
		return &Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN}
	case staysValid(c.Decision):
		return &Refusal{Code: c.Decision.GetCode(), Message: c.Decision.GetMessage()}
	case c.Decision.GetEffect() == policyv1.Effect_EFFECT_DENY || c.Decision.GetHidden(): // a hidden tool is denied even if the effect is allow
		code := deniedCode(c.Decision)
		if !again {
			a.PolicyRevision = c.Decision.GetPolicyRevision()
		}
		move(denied, cause{reason: "policy denies the call now", code: code})
		return &Refusal{Code: code, Message: c.Decision.GetMessage()}
	case !bytes.Equal(a.GetDefinitionDigest(), c.Definition) || a.GetServerIdentity() != c.ServerIdentity:
		move(cancelled, toolChanged())
		return &Refusal{Code: commonv1.Code_CODE_TOOL_CHANGED}
	case c.Decision.GetEffect() == policyv1.Effect_EFFECT_REQUIRE_APPROVAL && !r.sameTerms(c.Decision):
		if !again {
			r.askAgain(c.Decision, c.Times, now)
		}
		return &Refusal{Code: commonv1.Code_CODE_APPROVAL_PENDING}
	case !again && r.dropInvalidVotes(c, now):
		return &Refusal{Code: commonv1.Code_CODE_APPROVAL_PENDING}
	case c.Grant != nil && !c.Grant.HasLiveGrant(now):
		move(expired, cause{reason: "the grant is used up"})
		return &Refusal{Code: commonv1.Code_CODE_APPROVAL_EXPIRED}
	default:
		return nil
	}
}

// staysValid reports whether an approval stays valid although the policy service denies the call. This is the case if
// an operator has stopped such calls, or if the caller's token lacks a scope. Current gateways don't claim such calls.
// Gateways of older versions do, and so do gateways that repeat a claim after the decision has changed.
func staysValid(d *policyv1.Decision) bool {
	code := d.GetCode()
	return d.GetEffect() == policyv1.Effect_EFFECT_DENY && !d.GetHidden() &&
		(code == commonv1.Code_CODE_STOPPED || code == commonv1.Code_CODE_SCOPE_MISSING)
}

// dropInvalidVotes voids the votes that no longer count. If too few votes remain, it asks approvers again and returns
// true. If a grant covers the call, dropInvalidVotes checks the votes for the grant.
func (r *Record) dropInvalidVotes(c ClaimRequest, now time.Time) bool {
	voted := r
	if r.Approval.GetGrantedBy() != "" && c.Grant != nil {
		voted = c.Grant
	}
	if !voted.voidVotes(c.VoidReason, now) {
		return false
	}
	if r.Approval.GetGrantedBy() != "" { // approvers vote on this call itself, with its own terms
		r.Approval.GrantedBy, r.Approval.Grant = "", newGrant(r.Approval.GetTerms())
	}
	r.Approval.VotesMissing = r.missingVotes()
	r.move(pending, now, cause{reason: "votes no longer count: a voter left the groups, lost the right to decide, or has not signed in as the rule requires"})
	return true
}

func deniedCode(d *policyv1.Decision) commonv1.Code {
	switch {
	case d.GetHidden():
		return commonv1.Code_CODE_TOOL_UNKNOWN
	case d.GetCode() == commonv1.Code_CODE_UNSPECIFIED:
		return commonv1.Code_CODE_DENIED_BY_DEFAULT
	default:
		return d.GetCode()
	}
}

// isLeaseUnused reports whether no call can be sent under the rate-limit lease of a refused claim. This is the case if
// no accepted claim contains the lease, and if the attempt of the refused claim has ended or was claimed with another
// lease.
func (r *Record) isLeaseUnused(c Claim) bool {
	named := slices.ContainsFunc(r.Claims, func(old Claim) bool { return old.Lease == c.Lease })
	taken := slices.ContainsFunc(r.Claims, func(old Claim) bool { return old.Attempt == c.Attempt })
	return c.Lease != "" && !named && (taken || r.Ended() || r.Approval.GetAttempt() != c.Attempt)
}

// currentClaim returns the newest claim if it has the given id and holder. Otherwise it returns [ErrNotHolder].
func (r *Record) currentClaim(id, holder string) (*Claim, error) {
	if n := len(r.Claims); n > 0 && r.Claims[n-1].ID == id && r.Claims[n-1].Holder == holder {
		return &r.Claims[n-1], nil
	}
	return nil, ErrNotHolder
}

func (r *Record) endClaim(how End, now time.Time) {
	r.Claims[len(r.Claims)-1].End = how
	r.Approval.GetClaim().Ended = timestamppb.New(now)
}

// Renew extends the lease of a claim. The lease then expires after the given duration.
func (r *Record) Renew(id, holder string, d time.Duration, now time.Time) error {
	c, err := r.currentClaim(id, holder)
	switch {
	case err != nil:
		return err
	case c.End == Expired:
		return ErrLeaseEnded
	case c.End != Active:
		return ErrNotHolder
	}
	r.Approval.GetClaim().LeaseExpires = timestamppb.New(now.Add(d))
	return nil
}

// Release releases a claim whose call was not sent. The call can then be claimed again. Release is idempotent. grant is
// the record whose grant covers the call, as in [ClaimRequest].
func (r *Record) Release(id, holder, reason string, grant *Record, now time.Time) error {
	c, err := r.currentClaim(id, holder)
	switch {
	case err != nil:
		return err
	case c.End == Released:
		return nil
	case c.End == Expired:
		return ErrLeaseEnded
	case c.End == Reported || c.End == NeverSent:
		return ErrOutcomeKnown
	}
	r.endClaim(Released, now)
	if grant != nil {
		grant.Approval.GetGrant().Used--
	}
	r.Approval.Attempt++
	r.move(approved, now, cause{actor: holder, reason: reason})
	r.ApplyDue(now) // the approval may have expired during the claim
	return nil
}
