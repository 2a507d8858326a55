package lifecycle

import (
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// These are the errors of [Record.Cancel]. Use errors.Is to test for them.
var (
	ErrRunning = errors.New("the call is claimed")
	ErrEnded   = errors.New("the approval has ended")
)

// Complete records the outcome that the holder of a claim reports. It returns true if the outcome settled the approval.
// If the approval is in a final state, Complete only adds the outcome to the history.
func (r *Record) Complete(id, holder string, outcome approvalv1.CallOutcome, now time.Time) (bool, error) {
	c, err := r.currentClaim(id, holder)
	if err != nil || c.End == Released {
		return false, ErrNotHolder
	}
	to, end, reason := stateAfter(outcome)
	from := r.Approval.GetState()
	first, settles := c.End == Active || c.End == Expired, from == claimed || from == unknown && to != unknown
	if c.End == Active {
		r.endClaim(end, now)
	}
	if first || settles {
		c.End = end
	}
	switch {
	case settles:
		r.move(to, now, cause{actor: holder, reason: reason})
	case first && to != from:
		r.Approval.Version++
		r.addMove(from, now, cause{actor: holder, reason: "reported too late: " + reason})
	}
	return settles, nil
}

// stateAfter returns the approval's state after an outcome, the way in which the claim ends, and the reason for the
// history.
func stateAfter(outcome approvalv1.CallOutcome) (approvalv1.ApprovalState, End, string) {
	switch outcome { //nolint:exhaustive // an unspecified outcome is unknown
	case approvalv1.CallOutcome_CALL_OUTCOME_DONE:
		return done, Reported, "the server has answered"
	case approvalv1.CallOutcome_CALL_OUTCOME_FAILED:
		return failed, Reported, "the server has answered with an error"
	case approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT:
		return failed, NeverSent, "the call was not sent"
	default:
		return unknown, Reported, "there was no usable answer: the call may have run"
	}
}

// Resolve settles an unknown outcome after an operator has reported whether the call ran. It is idempotent.
func (r *Record) Resolve(operator string, resolution approvalv1.Resolution, comment string, now time.Time) error {
	to := failed
	if resolution == approvalv1.Resolution_RESOLUTION_DONE {
		to = done
	}
	switch r.Approval.GetState() { //nolint:exhaustive // in all other states, the outcome is known or the call was not claimed
	case to:
		return nil
	case unknown:
		r.move(to, now, cause{actor: operator, reason: comment})
		return nil
	default:
		return ErrOutcomeKnown
	}
}

// Cancel cancels a pending or approved record. In every state, Cancel also ends the record's grant. It is idempotent.
func (r *Record) Cancel(actor, reason string, now time.Time) error {
	ended := r.endGrant(now)
	switch state := r.Approval.GetState(); {
	case state == pending || state == approved:
		r.move(cancelled, now, cause{actor: actor, reason: reason})
		return nil
	case ended:
		r.Approval.Version++
		r.addMove(state, now, cause{actor: actor, reason: "the grant was cancelled: " + reason})
		return nil
	case state == cancelled:
		return nil
	case state == claimed || state == unknown:
		return ErrRunning
	default:
		return ErrEnded
	}
}

// CancelOutdated cancels a pending or approved record because the called tool or its server has changed. It does not
// end the record's grant, which still covers calls to the unchanged tool.
func (r *Record) CancelOutdated(now time.Time) {
	if state := r.Approval.GetState(); state == pending || state == approved {
		r.move(cancelled, now, toolChanged())
	}
}

func toolChanged() cause {
	return cause{reason: "the tool's definition or its server has changed", code: commonv1.Code_CODE_TOOL_CHANGED}
}

func (r *Record) endGrant(now time.Time) bool {
	if !r.HasLiveGrant(now) {
		return false
	}
	r.Approval.GetGrant().Expires = timestamppb.New(now)
	return true
}
