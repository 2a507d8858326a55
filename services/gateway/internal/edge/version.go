package edge

import (
	"context"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// methodProbe is how a client's question for revisions is called where it is counted,
// whatever method it is put by: who asks must not choose names for the record.
const methodProbe = "probe"

// notSpoken rejects the message at hand, because it is of a revision that is not supported.
func (x *exchange) notSpoken(version string) *refusal.Refusal {
	refused := refusal.ProtocolError(commonv1.Code_CODE_PROTOCOL_VERSION, "")
	refused.Versions = &refusal.Versions{Requested: spans.Clip(version), Supported: x.spoken()}
	return refused
}

// opens reports whether the message at hand is a request outside of every session.
func (x *exchange) opens() bool {
	return x.msg.Kind == gate.Request && len(x.header[mcp.HeaderSession]) == 0
}

// refuseVersion answers what check has rejected. A client of a newer revision that has no session yet only asks which
// revisions are supported, and falls back: that is counted, and no refusal on record.
func (x *exchange) refuseVersion(ctx context.Context, why *refusal.Refusal) dispatch.Response {
	if why.Versions == nil || !mcp.IsRevision(why.Versions.Requested) || !x.opens() {
		return x.refuse(ctx, why)
	}
	if refused := x.admitted(ctx, methodProbe); refused != nil {
		return *refused
	}
	return x.refused(ctx, why)
}
