package edge

import (
	"context"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// methodProbe is the method under which a client's probe for revisions is counted, whatever its real method is: clients
// must not choose names in the record.
const methodProbe = "probe"

// notSpoken returns the refusal of a message of a revision that is not supported.
func (x *exchange) notSpoken(version string) *refusal.Refusal {
	refused := refusal.ProtocolError(commonv1.Code_CODE_PROTOCOL_VERSION, "")
	refused.Versions = &refusal.Versions{Requested: spans.Clip(version), Supported: x.spoken()}
	return refused
}

// opens reports whether the message is a request outside of a session.
func (x *exchange) opens() bool {
	return x.Message.Kind == jsonrpc.Request && len(x.header[mcp.HeaderSession]) == 0
}

// refuseVersion answers a message that check has refused. A client of a newer revision without a session only probes
// for the supported revisions, and falls back: such a probe is counted, and not recorded as a refusal.
func (x *exchange) refuseVersion(ctx context.Context, why *refusal.Refusal) dispatch.Response {
	if why.Versions == nil || !mcp.IsRevision(why.Versions.Requested) || !x.opens() {
		return x.Refuse(ctx, why)
	}
	if refused := x.Admit(ctx, methodProbe); refused != nil {
		return *refused
	}
	return x.RefusedResponse(ctx, why)
}

// isModern reports whether the message is of 2026-07-28. The headers of initialize are ignored, because the revision is
// agreed on in the body.
func (x *exchange) isModern() bool {
	head, _ := single(x.header, mcp.HeaderVersion)
	return x.Message.Meta.ProtocolVersion == mcp.Modern || mcp.IsModern(x.Message.Method) && x.Message.Meta.ProtocolVersion == "" ||
		head == mcp.Modern && x.Message.Method != mcp.MethodInitialize && x.Message.Meta.ProtocolVersion == ""
}

// spoken returns the revisions that the gateway speaks.
func (x *exchange) spoken() []string { return append([]string{mcp.Modern}, mcp.Supported()...) }
