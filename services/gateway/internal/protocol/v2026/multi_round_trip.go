package v2026

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// roundTrip is one round trip of a call that waits for an approval (MCP 2026-07-28, Multi Round-Trip Requests). In each
// round trip, the gateway holds the call while it waits. The zero value is the first round trip.
type roundTrip struct {
	// preceding is the number of earlier round trips.
	preceding int
	// approval is the id of the approval for which the earlier round trips have waited.
	approval string
}

const (
	// statePrefix is the prefix of the requestStates that the gateway creates. It is followed by the number of round
	// trips, a dot, and the approval's id.
	statePrefix = "sluice-leg."
	// maxRoundTrips is the maximum number of round trips in which a call waits. Then the gateway refuses the call with the
	// approval's id. The number is small because clients limit round trips. For example, the official Go SDK treats a
	// third answer without requests as an error.
	maxRoundTrips = 2
	// maxApproval is the maximum length, in bytes, of an approval's id.
	maxApproval = 128
)

// takeRequestState removes the gateway's own requestState from the request, because the server must not receive it. The
// state contains only an approval's id. Only the caller that has requested the approval can use this id.
func (x *message) takeRequestState() *refusal.Refusal {
	var state string
	if at := x.Message.RequestState; !at.Present() || json.Unmarshal(at.Of(x.Message.Raw), &state) != nil || !strings.HasPrefix(state, statePrefix) {
		return nil
	}
	refused := refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "the requestState was not issued by this gateway.")
	count, approval, _ := strings.Cut(strings.TrimPrefix(state, statePrefix), ".")
	before, _ := strconv.Atoi(count)
	if before < 1 || before > maxRoundTrips || strconv.Itoa(before) != count || approval == "" || len(approval) > maxApproval {
		return refused
	}
	if at := x.Message.InputResponses; at.Present() && string(at.Of(x.Message.Raw)) != "{}" {
		refused.Message = "nothing was asked, so there is nothing to answer."
		return refused
	}
	m, err := x.Message.WithoutRetryMembers()
	if err != nil {
		return refused
	}
	x.Message, x.roundTrip = m, roundTrip{before, approval}
	return nil
}

// nextRoundTrip returns the requestState with which the client can continue to wait for a call's approval. It returns
// "" if the call must be refused with the approval's id. A call with inputResponses is always refused, because clients
// do not repeat the inputResponses in the next round trip.
func (x *message) nextRoundTrip(result pipeline.Result) string {
	waits := result.Refusal.Approval
	if !x.Sink.HasClient() || x.Message.InputResponses.Present() || x.Message.RequestState.Present() || result.Held == 0 || x.roundTrip.preceding == maxRoundTrips ||
		result.Refusal.Code != commonv1.Code_CODE_APPROVAL_PENDING || waits == nil {
		return ""
	}
	return statePrefix + strconv.Itoa(x.roundTrip.preceding+1) + "." + waits.ID
}
