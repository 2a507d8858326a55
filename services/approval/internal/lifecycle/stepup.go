package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// maxAuthAhead is how far an authentication may be in the future, because the clocks of services may differ.
const maxAuthAhead = time.Minute

// StepUpError means that the terms of an approval require an authentication that the voter's token does not contain
// (RFC 9470).
type StepUpError struct {
	// Required is the authentication that the terms require.
	Required *policyv1.StepUp
	// Role is the role of the voter's token.
	Role string
	// why says which part of the requirement the voter's token does not meet.
	why string
}

// Error returns the reason for the refusal, and what the terms require.
func (e *StepUpError) Error() string {
	return fmt.Sprintf("approving this call needs a person who has signed in%s: %s", safetext.SignIn(e.Required), e.why)
}

// checkStepUp returns a [*StepUpError] if a vote to approve needs an authentication that the ballot does not have. Only
// a vote that is cast with the voter's own session can have the authentication, because the mesh does not know how
// people authenticate elsewhere.
func (r *Record) checkStepUp(b *Ballot, now time.Time) error {
	required := r.Approval.GetTerms().GetApproveWith()
	if required == nil || b.Verdict != approvalv1.Verdict_VERDICT_APPROVE {
		return nil
	}
	why := "a button can't show this, so run `sluice approvals approve " + r.Approval.GetId() + "` instead"
	if b.Channel == approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN {
		why = unmetStepUp(required, b.Voter.GetAuthTime(), b.Voter.GetAcr(), now)
	}
	if why == "" {
		return nil
	}
	return &StepUpError{Required: required, Role: enum.Name(b.Voter.GetRole()), why: why}
}

// voidUnauthenticated voids the votes to approve that do not contain the authentication that the terms require.
func (r *Record) voidUnauthenticated() {
	for _, v := range r.Approval.GetVotes() {
		if v.GetVoidReason() == "" && r.isUnauthenticated(v) {
			v.VoidReason = "the vote does not contain the authentication that the rule requires"
		}
	}
}

// isUnauthenticated reports whether a vote to approve does not contain the authentication that the terms require.
// [Record.Vote] refuses such votes, but older versions of the service do not. During an update, both versions use the
// same store.
func (r *Record) isUnauthenticated(v *approvalv1.Vote) bool {
	required := r.Approval.GetTerms().GetApproveWith()
	if required == nil || v.GetVerdict() != approvalv1.Verdict_VERDICT_APPROVE {
		return false
	}
	return v.GetChannel() != approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN || unmetStepUp(required, v.GetAuthTime(), v.GetAcr(), v.GetTime().AsTime()) != ""
}

// unmetStepUp returns a text that says which part of the requirement the voter's token does not meet. It returns "" if
// the token meets the requirement. at is the time of the authentication, and acr is its class.
func unmetStepUp(required *policyv1.StepUp, at *timestamppb.Timestamp, acr string, now time.Time) string {
	values := required.GetAcrValues()
	switch {
	case required.GetMaxAge() == nil && len(values) == 0:
		return "the rule does not say which authentication it requires"
	case at == nil && acr == "":
		return "your token contains no authentication; it is not a session, or the issuer has not sent the claims auth_time and acr"
	case required.GetMaxAge() != nil && at == nil:
		return "your session does not contain the time of the authentication, because the issuer has not sent the claim auth_time"
	case required.GetMaxAge() != nil && at.AsTime().After(now.Add(maxAuthAhead)):
		return "the time of your authentication is in the future"
	case required.GetMaxAge() != nil && now.Sub(at.AsTime()) > required.GetMaxAge().AsDuration():
		return fmt.Sprintf("you authenticated %v ago", now.Sub(at.AsTime()).Truncate(time.Second))
	case len(values) > 0 && acr == "":
		return "your session contains no authentication context class, because the issuer has not sent the claim acr"
	case len(values) > 0 && !slices.Contains(values, acr):
		return "the authentication context class (acr) of your session is " + safetext.Escape(acr)
	default:
		return ""
	}
}

// Facts returns the parameters of an authentication request that satisfies the terms (RFC 9470, section 3), and the
// role that the new session must have.
func (e *StepUpError) Facts() map[string]string {
	out := map[string]string{"role": e.Role}
	if age := e.Required.GetMaxAge(); age != nil {
		out["max_age"] = fmt.Sprint(int64(age.AsDuration() / time.Second))
	}
	if values := e.Required.GetAcrValues(); len(values) > 0 {
		out["acr_values"] = strings.Join(values, " ")
	}
	return out
}
