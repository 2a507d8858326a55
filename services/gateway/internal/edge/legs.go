package edge

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// leg is one of the requests by which a client without a session waits for people: each is held for
// as long as a call is, and the next one goes on waiting (MCP 2026-07-28, Multi Round-Trip Requests).
// The zero value is the first.
type leg struct {
	// before is how many there were.
	before int
	// approval is what they have waited for.
	approval string
}

const (
	// legPrefix begins a requestState of the gateway's own. What follows is how many legs there were,
	// a dot, and the approval's identifier.
	legPrefix = "sluice-leg."
	// maxLegs is how many there may be before a call gets its ticket: clients count them. That of the
	// official Go SDK takes the third answer that asks nothing for an error.
	maxLegs = 2
	// maxApproval is how long an approval's identifier may be, in bytes.
	maxApproval = 128
)

// resume takes the gateway's own requestState out of the request at hand: its server has not given
// it. It counts for nothing but its approval, and that is known to who asked for it alone.
func (x *v2026) resume() *refusal.Refusal {
	var state string
	if at := x.msg.RequestState; !at.Present() || json.Unmarshal(at.Of(x.msg.Raw), &state) != nil || !strings.HasPrefix(state, legPrefix) {
		return nil
	}
	refused := refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "the requestState is not one that this gateway gives.")
	count, approval, _ := strings.Cut(strings.TrimPrefix(state, legPrefix), ".")
	before, _ := strconv.Atoi(count)
	if before < 1 || before > maxLegs || strconv.Itoa(before) != count || approval == "" || len(approval) > maxApproval {
		return refused
	}
	if at := x.msg.InputResponses; at.Present() && string(at.Of(x.msg.Raw)) != "{}" {
		refused.Message = "nothing was asked, so there is nothing to answer."
		return refused
	}
	m, err := x.msg.First()
	if err != nil {
		return refused
	}
	x.msg, x.leg = m, leg{before, approval}
	return nil
}

// nextLeg is the requestState by which a call goes on waiting for people that has waited for as long
// as one request may; empty where it is to get its ticket. So is one that answers its server: clients
// would send the next without that.
func (x *v2026) nextLeg(result pipeline.Result) string {
	waits := result.Refusal.Approval
	if !x.sink.HasClient() || x.msg.InputResponses.Present() || x.msg.RequestState.Present() || result.Held == 0 || x.leg.before == maxLegs ||
		result.Refusal.Code != commonv1.Code_CODE_APPROVAL_PENDING || waits == nil {
		return ""
	}
	return legPrefix + strconv.Itoa(x.leg.before+1) + "." + waits.ID
}
