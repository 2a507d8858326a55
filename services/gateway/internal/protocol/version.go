package protocol

import (
	"context"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// MethodProbe is the method name with which the gateway counts a message that probes for supported revisions. The
// message's own method name is not used, because clients must not choose the method names in records.
const MethodProbe = "probe"

// UnsupportedVersion returns the refusal for a message of an unsupported revision.
func (x *Request) UnsupportedVersion(version string) *refusal.Refusal {
	refused := refusal.ProtocolError(commonv1.Code_CODE_PROTOCOL_VERSION, "")
	refused.Versions = &refusal.Versions{Requested: spans.Clip(version), Supported: x.SupportedVersions()}
	return refused
}

func (x *Request) isOutsideSession() bool {
	return x.Message.Kind == jsonrpc.Request && len(x.Header[mcp.HeaderSession]) == 0
}

// refuseVersion responds to a message that checkMessage has refused. A probe is a request outside a session with an
// unsupported revision, for example a newer one. A client sends it to find out which revisions are supported. A probe
// is counted, but not recorded as a refusal.
func (x *Request) refuseVersion(ctx context.Context, why *refusal.Refusal) dispatch.Response {
	if why.Versions == nil || !mcp.IsRevision(why.Versions.Requested) || !x.isOutsideSession() {
		return x.Refuse(ctx, why)
	}
	if refused := x.CountExempt(ctx, MethodProbe); refused != nil {
		return *refused
	}
	return x.RefusedResponse(ctx, why)
}

// isModern reports whether the message belongs to revision 2026-07-28. For initialize, the headers are ignored, because
// the body negotiates the revision.
func (x *Request) isModern() bool {
	head, _ := SingleHeader(x.Header, mcp.HeaderVersion)
	return x.Message.Meta.ProtocolVersion == mcp.Modern || mcp.IsMethodOf2026(x.Message.Method) && x.Message.Meta.ProtocolVersion == "" ||
		head == mcp.Modern && x.Message.Method != mcp.MethodInitialize && x.Message.Meta.ProtocolVersion == ""
}

// SupportedVersions returns the revisions that the gateway supports.
func (x *Request) SupportedVersions() []string {
	return append([]string{mcp.Modern}, mcp.Supported()...)
}
