package approval

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/approval/internal/view"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

var (
	errNotAsked     = errors.New("the decision does not require approval, or has no terms")
	errConfirmation = errors.New("the terms do not allow confirmation at the agent")
	errParams       = errors.New("params_json can't be read")
	errCursor       = errors.New("the cursor belongs to another watch: watch without a cursor")
	errPageToken    = errors.New("the page token belongs to another list: begin without a page token")
	// errDecisionStale means that the caller must request a new decision from the policy service. The decision is too old,
	// was made under an older revision, or was already used.
	errDecisionStale = errors.New("the decision is out of date: ask policy again")
	// errDecisionRefused means that the decision was forged, or that the policy service signed it for another request.
	errDecisionRefused = errors.New("the decision is not the one that policy signed for this request")
	errNoRevision      = errors.New("no active policy revision is known yet: try again")
	errTooManyUsed     = errors.New("too many decisions were used in the last seconds: try again")
	errCredential      = errors.New("the token of the watching person was revoked: watch again with a valid token")
)

// statuses maps this service's errors to gRPC codes and reasons. toStatus uses the first entry that matches.
var statuses = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{store.ErrNotFound, codes.NotFound, "APPROVAL_UNKNOWN"},
	{sqlstore.ErrUnavailable, codes.Unavailable, "APPROVAL_STORE_AWAY"},
	{authn.ErrTokensStale, codes.Unavailable, "TOKENS_STALE"},
	{errNotAsked, codes.InvalidArgument, "APPROVAL_NOT_ASKED"},
	{errConfirmation, codes.InvalidArgument, "CONFIRMATION_REFUSED"},
	{errParams, codes.InvalidArgument, "JSON_INVALID"},
	{errCursor, codes.InvalidArgument, "CURSOR_INVALID"},
	{errPageToken, codes.InvalidArgument, "PAGE_TOKEN_INVALID"},
	{fairqueue.ErrBusy, codes.ResourceExhausted, "APPROVAL_BUSY"},
	{errDecisionStale, codes.FailedPrecondition, "DECISION_STALE"},
	{errDecisionRefused, codes.InvalidArgument, "DECISION_REFUSED"},
	{errNoRevision, codes.Unavailable, "POLICY_UNSEEN"},
	{errTooManyUsed, codes.ResourceExhausted, "APPROVAL_BUSY"},
	{errCredential, codes.Unauthenticated, "CREDENTIAL_ENDED"},
	{view.ErrOffset, codes.InvalidArgument, "VIEW_OFFSET_INVALID"},
	{view.ErrChanged, codes.Aborted, "VIEW_CHANGED"},
	{lifecycle.ErrSelf, codes.PermissionDenied, "SELF_APPROVAL"},
	{lifecycle.ErrOwner, codes.PermissionDenied, "OWNER_APPROVAL"},
	{lifecycle.ErrCreator, codes.PermissionDenied, "OWNER_APPROVAL"},
	{lifecycle.ErrNotApprover, codes.PermissionDenied, "NOT_AN_APPROVER"},
	{lifecycle.ErrTokenTooNew, codes.PermissionDenied, "TOKEN_TOO_NEW"},
	{lifecycle.ErrAlreadyVoted, codes.AlreadyExists, "ALREADY_VOTED"},
	{lifecycle.ErrViewChanged, codes.Aborted, "VIEW_CHANGED"},
	{lifecycle.ErrViewNotShown, codes.FailedPrecondition, "VIEW_NOT_SHOWN"},
	{lifecycle.ErrNotPending, codes.FailedPrecondition, "NOT_PENDING"},
	{lifecycle.ErrDecisionMissing, codes.InvalidArgument, "DECISION_MISSING"},
	{lifecycle.ErrClaimEnded, codes.FailedPrecondition, "CLAIM_ENDED"},
	{lifecycle.ErrAttemptChanged, codes.Aborted, "ATTEMPT_CHANGED"},
	{lifecycle.ErrNotHolder, codes.FailedPrecondition, "NOT_HOLDER"},
	{lifecycle.ErrLeaseEnded, codes.FailedPrecondition, "LEASE_ENDED"},
	{lifecycle.ErrOutcomeKnown, codes.FailedPrecondition, "OUTCOME_KNOWN"},
	{lifecycle.ErrRunning, codes.FailedPrecondition, "APPROVAL_RUNNING"},
	{lifecycle.ErrEnded, codes.FailedPrecondition, "APPROVAL_ENDED"},
}

// toStatus returns the gRPC status for an error of this service. If statuses has no entry for the error, toStatus
// returns the error unchanged.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if unmet, ok := errors.AsType[*lifecycle.StepUpError](err); ok {
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "STEP_UP_REQUIRED", Facts: unmet.Facts(), Err: unmet}
	}
	for _, s := range statuses {
		if !errors.Is(err, s.err) {
			continue
		}
		if s.code == codes.Unavailable { // the wrapped error contains internal details
			err = s.err
		}
		return &rpc.Error{Code: s.code, Reason: s.reason, Err: err}
	}
	return err
}
