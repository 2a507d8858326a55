package edge

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// leg is one of the round trips in which a client without a session waits for an approval: each is held as long as a
// call, and the next continues to wait (MCP 2026-07-28, Multi Round-Trip Requests). The zero value is the first.
type leg struct {
	// before is how many round trips preceded this one.
	before int
	// approval is the id of the approval that they waited for.
	approval string
}

const (
	// legPrefix begins a requestState of the gateway. The number of round trips, a dot, and the approval's id follow.
	legPrefix = "sluice-leg."
	// maxLegs is how many round trips precede the ticket, because clients count them: the official Go SDK takes a third
	// answer without requests for an error.
	maxLegs = 2
	// maxApproval is the maximum length of an approval's id, in bytes.
	maxApproval = 128
)

// resume removes the gateway's requestState from the request, because the server has not given it. The state only names
// an approval, which only the caller that requested it can use.
func (x *v2026) resume() *refusal.Refusal {
	var state string
	if at := x.Message.RequestState; !at.Present() || json.Unmarshal(at.Of(x.Message.Raw), &state) != nil || !strings.HasPrefix(state, legPrefix) {
		return nil
	}
	refused := refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "the requestState is not one that this gateway gives.")
	count, approval, _ := strings.Cut(strings.TrimPrefix(state, legPrefix), ".")
	before, _ := strconv.Atoi(count)
	if before < 1 || before > maxLegs || strconv.Itoa(before) != count || approval == "" || len(approval) > maxApproval {
		return refused
	}
	if at := x.Message.InputResponses; at.Present() && string(at.Of(x.Message.Raw)) != "{}" {
		refused.Message = "nothing was asked, so there is nothing to answer."
		return refused
	}
	m, err := x.Message.First()
	if err != nil {
		return refused
	}
	x.Message, x.leg = m, leg{before, approval}
	return nil
}

// nextLeg returns the requestState with which a call continues to wait for its approval after it was held. It returns
// an empty string if the call is to get its ticket. A call with answers to its server always does, because clients
// would repeat the request without these answers.
func (x *v2026) nextLeg(result pipeline.Result) string {
	waits := result.Refusal.Approval
	if !x.Sink.HasClient() || x.Message.InputResponses.Present() || x.Message.RequestState.Present() || result.Held == 0 || x.leg.before == maxLegs ||
		result.Refusal.Code != commonv1.Code_CODE_APPROVAL_PENDING || waits == nil {
		return ""
	}
	return legPrefix + strconv.Itoa(x.leg.before+1) + "." + waits.ID
}
