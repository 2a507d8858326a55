package lifecycle

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// Short names of the states.
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

// Record is an approval as it is kept.
type Record struct {
	// Approval is what people and callers may see. Its state is that of the last
	// move: [Record.Lapse] brings it up to a time.
	Approval *approvalv1.Approval
	// Call is the call to send. Its params are gone where the call never ran and
	// never will.
	Call *approvalv1.BoundCall
	// Decision is the newest decision that asked for it.
	Decision *policyv1.Decision
	// Times are those that its terms set, or the installation.
	Times Times
	// Alike is a digest that the same call has whatever its tool's definition and its
	// server's identity are; empty for one that was opened before there was any.
	Alike []byte
	// Bare is a digest that the same call has whatever it carries beside what it asks
	// for. It is of one that is opened; what is read has none.
	Bare []byte
	// Claims are all claims so far, oldest first; the newest is the approval's.
	Claims []Claim
	// Moves are those since the record was read or opened.
	Moves []*approvalv1.Move
}

// Times are how long an approval may take.
type Times struct {
	// Decide is how long people have, and Execute how long an approved call may
	// wait to be claimed; both positive.
	Decide, Execute time.Duration
}

// Claim is what has to be known of a claim for ever.
type Claim struct {
	// ID and Holder name it, and Lease is that of its limits; may be empty.
	ID, Holder, Lease string
	// Attempt is the approval's at that time.
	Attempt int32
	// End is how it ended.
	End End
}

// End is how a claim ended. The zero value is a claim that holds.
type End int

const (
	// Holds means that its holder alone may send the call.
	Holds End = iota
	// Released means that the call never left.
	Released
	// Told means that its holder told what came of it.
	Told
	// Lapsed means that its lease ran out.
	Lapsed
	// Unsent means that its holder told that the call never left. Claims of before
	// there was this end were told so as well.
	Unsent
)

// Ended reports whether an approval is in a state that it can't leave any more.
func (r *Record) Ended() bool { return final(r.Approval.GetState()) }

func final(s approvalv1.ApprovalState) bool {
	switch s { //nolint:exhaustive // all others may be left
	case done, failed, denied, expired, cancelled:
		return true
	default:
		return false
	}
}

// Asks reports whether the record's moves since it was read or opened ask people.
func (r *Record) Asks() bool {
	return r.Approval.GetState() == pending && slices.ContainsFunc(r.Moves, func(m *approvalv1.Move) bool { return m.GetTo() == pending && m.GetVote() == nil })
}

// Asked is when people were asked, the last time that they were.
func (r *Record) Asked() time.Time {
	return r.Approval.GetDecideBefore().AsTime().Add(-r.Times.Decide)
}

// Due is when time alone moves the record; zero where it never does.
func (r *Record) Due() time.Time {
	var at *timestamppb.Timestamp
	switch r.Approval.GetState() { //nolint:exhaustive // time moves no other
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

// Lapse makes the moves that time has made until now.
func (r *Record) Lapse(now time.Time) {
	due := r.Due()
	if due.IsZero() || now.Before(due) {
		return
	}
	switch r.Approval.GetState() { //nolint:exhaustive // no other is due
	case pending:
		r.move(expired, due, cause{reason: "nobody decided in time"})
	case approved:
		r.move(expired, due, cause{reason: "the call was approved and not made in time"})
	case claimed:
		r.endClaim(Lapsed, due)
		r.move(unknown, due, cause{reason: "the gateway that had the call did not tell what came of it"})
	}
}

// cause is why a move is made.
type cause struct {
	// actor is a person or a holder; empty where time or policy moves.
	actor string
	// reason is for people.
	reason string
	// vote is the vote that moves; may be nil.
	vote *approvalv1.Vote
	// code replaces that of the state; may be unspecified.
	code commonv1.Code
}

// move makes one step and notes it. A step may lead to the state that it comes
// from, where votes or terms change.
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
	if final(to) && !final(from) {
		a.Ended = timestamppb.New(now)
		if !r.mayHaveRun() {
			r.Call.Call.ParamsJson = ""
		}
	}
	r.note(from, now, why)
}

// mayHaveRun reports whether the call of some claim left, or may have.
func (r *Record) mayHaveRun() bool {
	return slices.ContainsFunc(r.Claims, func(c Claim) bool { return c.End != Released && c.End != Unsent })
}

// note writes a move into the history.
func (r *Record) note(from approvalv1.ApprovalState, now time.Time, why cause) {
	r.Moves = append(r.Moves, &approvalv1.Move{
		Version: r.Approval.GetVersion(), From: from, To: r.Approval.GetState(), Time: timestamppb.New(now),
		Actor: why.actor, Reason: why.reason, Vote: why.vote, Attempt: r.Approval.GetAttempt(),
		PolicyRevision: r.Approval.GetPolicyRevision(),
	})
}

// codeOf is what a caller that waits is told in a state.
func codeOf(s approvalv1.ApprovalState) commonv1.Code {
	switch s { //nolint:exhaustive // all others have expired, or are nothing
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
