package lifecycle

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

const (
	pending   = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
	approved  = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
	claimed   = approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED
	done      = approvalv1.ApprovalState_APPROVAL_STATE_DONE
	failed    = approvalv1.ApprovalState_APPROVAL_STATE_FAILED
	unknown   = approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN
	denied    = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
	expired   = approvalv1.ApprovalState_APPROVAL_STATE_EXPIRED
	cancelled = approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED
)

// Record is an approval with its stored call, decision and claims.
type Record struct {
	// Approval is the part of the record that people and callers may see. Its state is the state after the last recorded
	// transition. Transitions that are due are recorded by [Record.ApplyDue].
	Approval *approvalv1.Approval
	// Call is the call to send. Its params are deleted when the approval has ended and it is certain that the call did not
	// run.
	Call *approvalv1.BoundCall
	// Decision is the newest decision that requires this approval.
	Decision *policyv1.Decision
	// Times contains the time limits in the decision's terms. Limits that the terms omit are taken from the configuration.
	Times Times
	// Alike is the digest of the call without the tool's definition and the server's identity. It is empty if an older
	// version of the store wrote the approval.
	Alike []byte
	// Bare is the digest of the essential parts of the call, such as the tool and its arguments, without other params.
	// It is set only in a new record, because the store writes Bare but does not read it.
	Bare []byte
	// Claims contains all claims of the approval, oldest first. The field Approval also contains the newest claim.
	Claims []Claim
	// Moves contains the transitions that were made since the record was read or opened.
	Moves []*approvalv1.Move
}

// Times limits the duration of an approval.
type Times struct {
	// Decide is how long people may take to approve or deny the call. Execute is how long an approved call may wait until
	// it is claimed. Both are positive.
	Decide, Execute time.Duration
}

// Claim is the part of a claim that is stored until the approval is deleted.
type Claim struct {
	// ID and Holder identify the claim. Lease identifies the lease of the call's rate limits. Lease may be empty.
	ID, Holder, Lease string
	// Attempt is the attempt number of the approval at the time of the claim.
	Attempt int32
	End     End
}

// End describes how a claim ended. The zero value means that the claim has not ended.
type End int

const (
	// Active means that the claim has not ended. Only the holder of the claim may send the call.
	Active End = iota
	// Released means that the holder released the claim without sending the call.
	Released
	// Reported means that the holder reported an outcome other than CALL_OUTCOME_NEVER_SENT.
	Reported
	// Expired means that the lease of the claim expired.
	Expired
	// NeverSent means that the holder reported that the call was not sent. Older versions of the service stored Reported
	// instead.
	NeverSent
)

// Ended reports whether the approval is in a final state.
func (r *Record) Ended() bool { return isFinal(r.Approval.GetState()) }

func isFinal(s approvalv1.ApprovalState) bool {
	switch s { //nolint:exhaustive // all others can change
	case done, failed, denied, expired, cancelled:
		return true
	default:
		return false
	}
}

// RequestsDecision reports whether the record is pending and one of r.Moves requested a decision from approvers, either
// for the first time or again.
func (r *Record) RequestsDecision() bool {
	return r.Approval.GetState() == pending && slices.ContainsFunc(r.Moves, func(m *approvalv1.Move) bool { return m.GetTo() == pending && m.GetVote() == nil })
}

// LastAsked returns the time at which approvers were last asked.
func (r *Record) LastAsked() time.Time {
	return r.Approval.GetDecideBefore().AsTime().Add(-r.Times.Decide)
}

// Due returns the time at which the next transition is due, or the zero time if no transition will become due.
func (r *Record) Due() time.Time {
	var at *timestamppb.Timestamp
	switch r.Approval.GetState() { //nolint:exhaustive // no other state has a deadline
	case pending:
		at = r.Approval.GetDecideBefore()
	case approved:
		at = r.Approval.GetExecuteBefore()
	case claimed:
		at = r.Approval.GetClaim().GetLeaseExpires()
	}
	if at == nil {
		return time.Time{}
	}
	return at.AsTime()
}

// ApplyDue makes the transition that is due at the given time, if there is one.
func (r *Record) ApplyDue(now time.Time) {
	due := r.Due()
	if due.IsZero() || now.Before(due) {
		return
	}
	switch r.Approval.GetState() { //nolint:exhaustive // no other state can be due
	case pending:
		r.move(expired, due, cause{reason: "there was no decision in time"})
	case approved:
		r.move(expired, due, cause{reason: "the approved call was not made in time"})
	case claimed:
		r.endClaim(Expired, due)
		r.move(unknown, due, cause{reason: "the gateway that had the call did not report the outcome"})
	}
}

type cause struct {
	// actor is the subject of a person, or the holder of a claim. It is empty if a deadline or the policy service causes
	// the transition.
	actor string
	// reason is shown to people.
	reason string
	// vote is the vote that causes the transition, or nil.
	vote *approvalv1.Vote
	// code replaces the default code of the new state. It may be zero.
	code commonv1.Code
}

// move makes one transition and adds it to the history. The new state equals the old state if only votes or terms
// change.
func (r *Record) move(to approvalv1.ApprovalState, now time.Time, why cause) {
	a := r.Approval
	from := a.GetState()
	if from == approved && to == pending || to == unknown && from != unknown {
		a.Attempt++
	}
	a.Version++
	a.State, a.Reason, a.Code = to, why.reason, codeOf(to)
	if why.code != commonv1.Code_CODE_UNSPECIFIED {
		a.Code = why.code
	}
	if to == pending {
		a.Approved, a.ExecuteBefore = nil, nil
		a.DecideBefore = timestamppb.New(now.Add(r.Times.Decide))
	}
	if isFinal(to) && !isFinal(from) {
		a.Ended = timestamppb.New(now)
		if !r.mayHaveRun() {
			r.Call.Call.ParamsJson = ""
		}
	}
	r.addMove(from, now, why)
}

// mayHaveRun reports whether the call was sent, or may have been sent, under one of the claims.
func (r *Record) mayHaveRun() bool {
	return slices.ContainsFunc(r.Claims, func(c Claim) bool { return c.End != Released && c.End != NeverSent })
}

func (r *Record) addMove(from approvalv1.ApprovalState, now time.Time, why cause) {
	r.Moves = append(r.Moves, &approvalv1.Move{
		Version: r.Approval.GetVersion(), From: from, To: r.Approval.GetState(), Time: timestamppb.New(now),
		Actor: why.actor, Reason: why.reason, Vote: why.vote, Attempt: r.Approval.GetAttempt(),
		PolicyRevision: r.Approval.GetPolicyRevision(),
	})
}

// codeOf returns the code that a caller waiting for the approval receives in state s.
func codeOf(s approvalv1.ApprovalState) commonv1.Code {
	switch s { //nolint:exhaustive // the others are expired and cancelled
	case approved:
		return commonv1.Code_CODE_UNSPECIFIED
	case pending:
		return commonv1.Code_CODE_APPROVAL_PENDING
	case claimed, done, failed:
		return commonv1.Code_CODE_APPROVAL_USED
	case unknown:
		return commonv1.Code_CODE_OUTCOME_UNKNOWN
	case denied:
		return commonv1.Code_CODE_APPROVAL_DENIED
	default:
		return commonv1.Code_CODE_APPROVAL_EXPIRED
	}
}
