package wasmagent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/archive"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/gallery"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

var (
	errAgentUnknown         = errors.New("there is no such agent")
	errPersonDiffers        = errors.New("the agent uses the connections to servers of")
	errAgentsFull           = fmt.Errorf("the maximum of agents is reached: %d of one caller, %d in all; terminate some, which are removed an hour later", maxAgentsPerPerson, maxAgents)
	errQuestionsFull        = errors.New("the question to the model can't be asked now")
	errQuestionTimeout      = errors.New("the model did not answer within the time limit: an operator changes the limit with agents.questions.timeout")
	errStoreFull            = errors.New("the stored agents have reached their maximum size: terminate some")
	errToolInput            = errors.New("the input is not valid for the tool")
	errArchiveDepth         = errors.New("an archive is exported only with depth full")
	errSkillUnknown         = errors.New("no template has the skill")
	errInstructionsTooLarge = fmt.Errorf("the instructions and the skills of the template have more than %d KiB together", maxInstructionBytes>>10)
	errPluginUnknown        = errors.New("plugins are not supported: remove them from the request")
	errDestructiveTool      = errors.New("the tool's name says that it removes or stops things: set mcpToolsAllowDestructive to pack it")
	errRightsNotOffered     = errors.New("rights on the clock and random numbers are not offered in this version: remove them from the manifest")
	errTooManyConditions    = fmt.Errorf("a manifest has more than %d conditions in all", manifest.MaxConditions)
	errChildNotAllowed      = errors.New("the manifest of the agent, or of an agent in its chain, allows no more agents, or none at this depth")
	errChainTooDeep         = fmt.Errorf("a chain of agents has at most %d principals", maxChain)
	errAgentCycle           = errors.New("the agent is in the chain of its caller, and would wait for itself")
	errModuleUnknown        = errors.New("the agent's module is not among those that may run here: list it as a guest in the configuration")
	errGuestChanged         = errors.New("the agent's module differs from the current module of its guest, and can no longer run: sluice agents migrate moves its files, todos and conversation to the current module")
	errGrantEmpty           = errors.New("neither rights nor a grant to withdraw is given")
	errGrantSelf            = errors.New("an agent can't grant rights to itself, or to an agent in its chain")
	errPageToken            = errors.New("is not a page_token of this list")
	errExportTooLarge       = errors.New("the export is larger than 3 MiB")
)

// errorStatuses maps errors to the gRPC codes and reasons that the proto files define. The first match applies, so more
// specific errors come first.
var errorStatuses = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{errAgentUnknown, codes.NotFound, "AGENT_UNKNOWN"},
	{errPersonDiffers, codes.PermissionDenied, "PERSON_DIFFERS"},
	{agent.ErrTerminated, codes.FailedPrecondition, "AGENT_TERMINATED"},
	{agent.ErrBusy, codes.Aborted, "AGENT_BUSY"},
	{agent.ErrStopped, codes.FailedPrecondition, "AGENT_STOPPED"},
	{agent.ErrCallsStopped, codes.FailedPrecondition, "CALLS_STOPPED"},
	{agent.ErrNoModel, codes.FailedPrecondition, "NO_MODEL_CONFIGURED"},
	{models.ErrNotConfigured, codes.FailedPrecondition, "NO_MODEL_CONFIGURED"},
	// No model error has the code UNAVAILABLE, because callers would conclude that this service itself is not
	// available.
	{models.ErrRejected, codes.InvalidArgument, "MODEL_REJECTED"},
	{models.ErrAuth, codes.FailedPrecondition, "MODEL_AUTH"},
	{models.ErrRateLimited, codes.ResourceExhausted, "MODEL_RATE_LIMITED"},
	{models.ErrOverloaded, codes.ResourceExhausted, "MODEL_OVERLOADED"},
	{models.ErrUnreachable, codes.Aborted, "MODEL_UNREACHABLE"},
	{models.ErrInterrupted, codes.Aborted, "MODEL_ANSWER_BROKEN"},
	{models.ErrMalformed, codes.Aborted, "MODEL_ANSWER_MALFORMED"},
	{models.ErrTruncated, codes.ResourceExhausted, "MODEL_ANSWER_CUT"},
	{models.ErrLarge, codes.ResourceExhausted, "MODEL_ANSWER_TOO_LARGE"},
	{errDayLimit, codes.ResourceExhausted, "MODEL_COST_SPENT"},
	{errQuestionTimeout, codes.Aborted, "MODEL_TIMED_OUT"},
	{errQuestionsFull, codes.ResourceExhausted, "QUESTIONS_FULL"},
	{agent.ErrTurnFailed, codes.FailedPrecondition, "TURN_FAILED"},
	{agent.ErrTurnsSpent, codes.FailedPrecondition, "TURNS_SPENT"},
	{agent.ErrStoppedByOperator, codes.PermissionDenied, "STOPPED_BY_OPERATOR"},
	{engine.ErrFuel, codes.ResourceExhausted, "FUEL_SPENT"},
	{engine.ErrMemory, codes.ResourceExhausted, "MEMORY_SPENT"},
	{agent.ErrFailed, codes.FailedPrecondition, "AGENT_FAILED"},
	{agent.ErrPromptsFull, codes.ResourceExhausted, "PROMPTS_FULL"},
	{agent.ErrUnavailable, codes.Unavailable, "WORKER_AWAY"},
	{agent.ErrTurnLost, codes.Aborted, "TURN_LOST"},
	{worker.ErrWorkerLost, codes.Unavailable, "WORKER_AWAY"},
	{agent.ErrTodosFull, codes.ResourceExhausted, "TODOS_FULL"},
	{files.ErrLineRange, codes.InvalidArgument, "TOOL_INPUT_INVALID"},
	{agent.ErrTodosInvalid, codes.InvalidArgument, "TOOL_INPUT_INVALID"},
	{files.ErrPath, codes.InvalidArgument, "PATH_INVALID"},
	{files.ErrNotFound, codes.NotFound, "FILE_UNKNOWN"},
	{files.ErrTextNotFound, codes.NotFound, "EDIT_TARGET_UNKNOWN"},
	{files.ErrAmbiguous, codes.FailedPrecondition, "EDIT_AMBIGUOUS"},
	{files.ErrFull, codes.ResourceExhausted, "FILES_FULL"},
	{modules.ErrUnknown, codes.NotFound, "GUEST_UNKNOWN"},
	{modules.ErrMismatch, codes.FailedPrecondition, "GUEST_CHANGED"},
	{worker.ErrModuleRefused, codes.FailedPrecondition, "GUEST_INVALID"},
	{modules.ErrNotBuilt, codes.FailedPrecondition, "GUEST_NOT_BUILT"},
	{errStoreFull, codes.ResourceExhausted, "STORE_FULL"},
	{errToolInput, codes.InvalidArgument, "TOOL_INPUT_INVALID"},
	{errPageToken, codes.InvalidArgument, "PAGE_TOKEN_INVALID"},
	{errArchiveDepth, codes.InvalidArgument, "ARCHIVE_DEPTH"},
	{store.ErrArchiveUnknown, codes.NotFound, "ARCHIVE_UNKNOWN"},
	{store.ErrArchivesFull, codes.ResourceExhausted, "ARCHIVES_FULL"},
	{store.ErrPartInvalid, codes.InvalidArgument, "ARCHIVE_INVALID"},
	{store.ErrPartOrder, codes.FailedPrecondition, "PART_OUT_OF_ORDER"},
	{archive.ErrInvalid, codes.InvalidArgument, "ARCHIVE_INVALID"},
	{archive.ErrSignature, codes.PermissionDenied, "SIGNATURE_UNKNOWN"},
	{archive.ErrLarge, codes.ResourceExhausted, "ARCHIVE_TOO_LARGE"},
	{agent.ErrABI, codes.FailedPrecondition, "ABI_UNSUPPORTED"},
	{events.ErrChain, codes.DataLoss, "JOURNAL_BROKEN"},
	{agent.ErrStateDiffers, codes.DataLoss, "STATE_DIFFERS"},
	{agent.ErrNotCovered, codes.FailedPrecondition, "NOT_COVERED"},
	{errModuleUnknown, codes.FailedPrecondition, "MODULE_UNKNOWN"},
	{errSkillUnknown, codes.NotFound, "SKILL_UNKNOWN"},
	{errInstructionsTooLarge, codes.InvalidArgument, "INSTRUCTIONS_TOO_LARGE"},
	{errPluginUnknown, codes.NotFound, "PLUGIN_UNKNOWN"},
	{errDestructiveTool, codes.InvalidArgument, "TOOL_DESTRUCTIVE"},
	{gallery.ErrUnknown, codes.NotFound, "TEMPLATE_UNKNOWN"},
	{gallery.ErrQuarantined, codes.FailedPrecondition, "TEMPLATE_QUARANTINED"},
	{gallery.ErrChanged, codes.Aborted, "TEMPLATE_CHANGED"},
	{gallery.ErrExists, codes.AlreadyExists, "TEMPLATE_EXISTS"},
	{gallery.ErrFull, codes.ResourceExhausted, "TEMPLATES_FULL"},
	{gallery.ErrInstallationFull, codes.ResourceExhausted, "TEMPLATES_FULL"},
	{gallery.ErrTemplateInvalid, codes.InvalidArgument, "TEMPLATES_INVALID"},
	{gallery.ErrBuiltin, codes.FailedPrecondition, "TEMPLATE_BUILT_IN"},
	{gallery.ErrOwner, codes.PermissionDenied, "TEMPLATE_OF_ANOTHER"},
	{gallery.ErrNoneActive, codes.FailedPrecondition, "NO_ACTIVE_TEMPLATE"},
	{gallery.ErrCategory, codes.NotFound, "CATEGORY_UNKNOWN"},
	{gallery.ErrInvalid, codes.InvalidArgument, "TEMPLATES_INVALID"},
	{gallery.ErrLarge, codes.ResourceExhausted, "CONTAINER_TOO_LARGE"},
	{errRightsNotOffered, codes.FailedPrecondition, "RIGHTS_NOT_OFFERED"},
	{errTooManyConditions, codes.InvalidArgument, "MANIFEST_TOO_LARGE"},
	{errChildNotAllowed, codes.PermissionDenied, "MANIFEST_TOO_WIDE"},
	{errChainTooDeep, codes.FailedPrecondition, "CHAIN_TOO_DEEP"},
	{errGrantEmpty, codes.InvalidArgument, "GRANT_EMPTY"},
	{errGrantSelf, codes.PermissionDenied, "GRANT_TO_SELF"},
	{errAgentCycle, codes.FailedPrecondition, "AGENT_CYCLE"},
	{errGuestChanged, codes.FailedPrecondition, "GUEST_CHANGED"},
	{agent.ErrSnapshotUnknown, codes.NotFound, "SNAPSHOT_UNKNOWN"},
	{agent.ErrSnapshotsFull, codes.ResourceExhausted, "SNAPSHOTS_FULL"},
	{agent.ErrJournalTooLarge, codes.ResourceExhausted, "JOURNAL_TOO_LARGE"},
	{agent.ErrGrantUnknown, codes.NotFound, "GRANT_UNKNOWN"},
	{agent.ErrGrantsFull, codes.ResourceExhausted, "GRANTS_FULL"},
	{store.ErrAgentsFull, codes.ResourceExhausted, "AGENTS_FULL"},
	{store.ErrDescendantsFull, codes.PermissionDenied, "MANIFEST_TOO_WIDE"},
	{store.ErrStateLost, codes.DataLoss, "STATE_LOST"},
	{agent.ErrNotStored, codes.Unavailable, "STORE_AWAY"},
	{store.ErrUnavailable, codes.Unavailable, "STORE_AWAY"},
	{errExportTooLarge, codes.ResourceExhausted, "EXPORT_TOO_LARGE"},
}

// retryUnavailable is how long callers should wait before they retry a call that has failed with UNAVAILABLE.
const retryUnavailable = time.Second

// toStatus converts a known error to the gRPC status that the proto files define. It returns all other errors
// unchanged.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	for _, s := range errorStatuses {
		if !errors.Is(err, s.err) {
			continue
		}
		out := &rpc.Error{Code: s.code, Reason: s.reason, Err: err}
		if paid, ok := errors.AsType[chargedError](err); ok {
			out.Facts = paid.metadata()
		}
		if order, ok := errors.AsType[store.PartOrderError](err); ok {
			out.Facts = map[string]string{"offset": strconv.FormatInt(order.Next, 10)}
		}
		switch {
		case s.code == codes.Unavailable:
			out.RetryAfter, out.Err = retryUnavailable, s.err // details of a failed worker appear only in the log
		case s.reason == "AGENTS_FULL":
			out.Err = errAgentsFull
		case s.err == store.ErrDescendantsFull: //nolint:errorlint // the table contains exactly this value
			out.Err = errChildNotAllowed
		case s.err == modules.ErrMismatch: //nolint:errorlint // see above
			out.Err = fmt.Errorf("the guest's module %w", modules.ErrMismatch) // the file name appears only in the log
		case s.reason == "TURN_LOST":
			out.Err = s.err
		}
		return out
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &rpc.Error{Code: codes.Canceled, Reason: "PROMPT_CANCELLED", Err: errors.New("the prompt was cancelled, and what it did to files, todos and conversation was undone")}
	case errors.Is(err, context.DeadlineExceeded):
		return &rpc.Error{Code: codes.DeadlineExceeded, Reason: "PROMPT_TIMED_OUT", Err: errors.New("the prompt took longer than its caller waits, and what it did to files, todos and conversation was undone")}
	}
	return err
}
