package policy

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/epochlease"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// These are the errors for which [statuses] contains a gRPC code and a reason.
var (
	errNoPolicy          = errors.New("no policy is active because the documents did not load: see the log of the policy service")
	errNothingApplied    = errors.New("no policy documents have been applied, so every call is refused: apply some with `sluice policy apply`")
	errNoRevision        = errors.New("this revision is not stored: the policies come from files, so only the active revision is stored")
	errInvalidDocuments  = errors.New("the documents do not load, so nothing has changed")
	errDocumentsRequired = errors.New("set either new documents or new_revision")
	errChangeRequired    = errors.New("the request has no change of the catalog: name an override or a definition, or set all_waiting")
	errNoneWaits         = errors.New("no definition of the tool waits for a decision")
	errActiveInvalid     = errors.New("the active documents do not load, so every call is refused: apply other documents")
	errTooOld            = errors.New("the requested revision is not active here yet")
	errSubjectNamed      = errors.New("only operators may name a subject: for a service, the subject is the principal in the request's metadata")
	errSubjectMissing    = errors.New("name the subject on whose behalf the call would be made")
	errOtherTenant       = errors.New("only people of the tenant \"default\" may do this: people of other tenants may only name principals of their own tenant, and may not read or change policy documents or read the catalog")
	errInFiles           = errors.New("the policies come from files: change those")
	errAttest            = errors.New("only services may request a signed decision: operators ask about other principals")
	errAttestChange      = errors.New("a decision on a policy change is signed only for the policy service itself")
	errUnapprovable      = errors.New("too few people may approve policy changes")
	errChangeTooLarge    = errors.New("nothing was applied, because the difference is larger than approvers can be shown: apply it in several steps")
	errPageToken         = errors.New("page_token must come from the previous page of the same request")
	errParams            = errors.New("params_json can't be read")
	errNested            = errors.New("a principal of a chain must not have a chain: put all principals into the caller's chain, nearest first")
)

// statuses contains the gRPC code and the reason for each error. If an error wraps several of these errors, the first
// one in the list counts.
var statuses = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{errNoPolicy, codes.FailedPrecondition, "POLICY_NONE_ACTIVE"},
	{errNothingApplied, codes.FailedPrecondition, "POLICY_NONE_ACTIVE"},
	{errNoRevision, codes.NotFound, "REVISION_UNKNOWN"},
	{store.ErrRevisionUnknown, codes.NotFound, "REVISION_UNKNOWN"},
	{store.ErrRevisionAmbiguous, codes.InvalidArgument, "REVISION_AMBIGUOUS"},
	{store.ErrRevisionChanged, codes.Aborted, "REVISION_CHANGED"},
	{errInvalidDocuments, codes.InvalidArgument, "POLICY_INVALID"},
	{errDocumentsRequired, codes.InvalidArgument, "DOCUMENTS_REQUIRED"},
	{errChangeRequired, codes.InvalidArgument, "CHANGE_REQUIRED"},
	{errNoneWaits, codes.NotFound, "DEFINITION_UNKNOWN"},
	{errActiveInvalid, codes.FailedPrecondition, "POLICY_INVALID"},
	{store.ErrRevisionsLost, codes.FailedPrecondition, "REVISIONS_LOST"},
	{errNotLoaded, codes.Unavailable, "CATALOGUE_STORE_AWAY"},
	{errStale, codes.Unavailable, "CATALOGUE_STORE_AWAY"},
	{sqlstore.ErrUnavailable, codes.Unavailable, "CATALOGUE_STORE_AWAY"},
	{errUnknownServer, codes.NotFound, "SERVER_UNKNOWN"},
	{catalog.ErrUnknownTool, codes.NotFound, "TOOL_UNKNOWN"},
	{catalog.ErrUnknownDefinition, codes.NotFound, "DEFINITION_UNKNOWN"},
	{store.ErrNotStored, codes.NotFound, "DEFINITION_UNKNOWN"},
	{catalog.ErrChanged, codes.Aborted, "TOOL_CHANGED"},
	{errPinningOff, codes.FailedPrecondition, "PINNING_OFF"},
	{errInvalidList, codes.InvalidArgument, "LIST_INVALID"},
	{errDuplicateTool, codes.InvalidArgument, "TOOL_DUPLICATE"},
	{epochlease.ErrDisorder, codes.InvalidArgument, "LEASE_DISORDER"},
	{errTooLong, codes.ResourceExhausted, "LIST_TOO_LONG"},
	{errTooOld, codes.FailedPrecondition, "POLICY_TOO_OLD"},
	{errSubjectNamed, codes.InvalidArgument, "SUBJECT_REFUSED"},
	{errOtherTenant, codes.PermissionDenied, "TENANT_REFUSED"},
	{errScope, codes.PermissionDenied, "TENANT_REFUSED"},
	{errSelector, codes.InvalidArgument, "SELECTOR_INVALID"},
	{errReason, codes.InvalidArgument, "REASON_MISSING"},
	{store.ErrStopsFull, codes.ResourceExhausted, "STOPS_FULL"},
	{errInFiles, codes.FailedPrecondition, "POLICIES_IN_FILES"},
	{errReplayDisorder, codes.InvalidArgument, "REPLAY_DISORDER"},
	{errDiffEnded, codes.DeadlineExceeded, "DIFF_ENDED"},
	{errReplayEnded, codes.DeadlineExceeded, "REPLAY_ENDED"},
	{errAttest, codes.InvalidArgument, "ATTEST_REFUSED"},
	{errAttestChange, codes.InvalidArgument, "ATTEST_REFUSED"},
	{errUnapprovable, codes.FailedPrecondition, "POLICY_CHANGE_UNAPPROVABLE"},
	{errChangeTooLarge, codes.InvalidArgument, "POLICY_CHANGE_TOO_LARGE"},
	{store.ErrApprovalUsed, codes.Aborted, "REVISION_CHANGED"},
	{errPageToken, codes.InvalidArgument, "PAGE_TOKEN_INVALID"},
	{errParams, codes.InvalidArgument, "JSON_INVALID"},
	{errNested, codes.InvalidArgument, "CHAIN_NESTED"},
	{errSubjectMissing, codes.InvalidArgument, "SUBJECT_MISSING"},
}

// toStatus adds the gRPC code and the reason in [statuses] to an error. It returns other errors unchanged.
func toStatus(err error) error {
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return &rpc.Error{Code: s.code, Reason: s.reason, Err: err}
		}
	}
	return err
}
