package edge

import (
	"context"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// methodProbe is how a client's question for revisions is called where it is counted,
// whatever method it is put by: who asks must not choose names for the record.
const methodProbe = "probe"

// notSpoken rejects the message at hand, for it is of a revision that is not spoken.
func (x *exchange) notSpoken(version string) *rejection {
	refused := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_PROTOCOL_VERSION)
	refused.rpc, refused.requested, refused.supported = mcp.CodeVersionUnsupported, spans.Clip(version), x.spoken()
	return refused
}

// opens reports whether the message at hand is a request outside of every session.
func (x *exchange) opens() bool {
	return x.msg.Kind == gate.Request && len(x.r.Header[headerSession]) == 0
}

// rejectVersion answers what check has rejected. A client of a newer revision that
// has no session yet only asks what is spoken, and falls back: that is counted, and no
// refusal on record.
func (x *exchange) rejectVersion(ctx context.Context, why *rejection) {
	if !mcp.IsRevision(why.requested) || !x.opens() {
		x.rejectMessage(*why)
		return
	}
	if x.admitted(ctx, methodProbe) {
		x.answerVersion(ctx, why)
	}
}

// answerVersion answers with the revisions that are spoken.
func (x *exchange) answerVersion(ctx context.Context, why *rejection) {
	x.inside.refused(&refusal.Refusal{Code: why.code}, false)
	x.failure = strconv.Itoa(why.rpc)
	spans.Error(trace.SpanFromContext(ctx), why.rpc)
	body, err := (&refusal.Refusal{Code: why.code}).VersionError(why.id, why.requested, why.supported)
	x.writeJSON(x.w, x.r, why.status, body, err)
}
