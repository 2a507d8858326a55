package edge

import (
	"context"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// postModernHub takes a message of 2026-07-28 for all servers together. Its head says the names that its
// body does, so that is looked at before the body is written anew for a server. What stands for its session
// is the caller's with this client, and has members as a session has.
func (x *exchange) postModernHub(ctx context.Context) {
	if len(x.r.Header[headerSession]) > 0 { // who has a session has agreed on another revision
		x.rejectMessage(*x.notSpoken(mcp.Modern))
		return
	}
	if refused := x.checkModern(); refused != nil {
		x.rejectMessage(*refused)
		return
	}
	m := x.msg
	gathers := fieldOf(m.Method) != ""
	waits := m.Method == mcp.MethodToolsCall && m.Name == mcp.ToolApprovalWait
	if own := waits || gathers || m.Kind == gate.Notification || m.Method == mcp.MethodDiscover || m.Method == mcp.MethodListen || m.Method == mcp.MethodToolsList; own {
		if large := x.tooLarge(); large != nil {
			x.rejectMessage(*large)
			return
		}
		if !x.admitted(ctx, m.Method) {
			return
		}
	}
	if m.Kind == gate.Notification { // who gives a request up closes its stream
		x.refuseSilently(ctx, commonv1.Code_CODE_METHOD_DENIED)
		x.accepted()
		return
	}
	x.can = x.abilitiesForMany()
	done, err := x.standIn()
	if err != nil {
		x.refuse(ctx, x.newWriter(), notOpened(err))
		return
	}
	x.done = sync.OnceFunc(done)
	defer x.done()
	spans.Session(trace.SpanFromContext(ctx), x.place())
	switch {
	case m.Method == mcp.MethodDiscover:
		x.discoverHub(ctx)
	case m.Method == mcp.MethodListen:
		x.subscribeHub(ctx)
	case m.Method == mcp.MethodToolsList:
		x.listHub(ctx)
	case gathers:
		x.gather(ctx)
	case waits:
		x.awaitApproval(ctx)
	default:
		x.toMember(ctx)
	}
}

// discoverHub answers what all servers have together, as far as the caller may come by it. None of them
// hears of it.
func (x *exchange) discoverHub(ctx context.Context) {
	out := x.newWriter()
	servers, refused := x.reached(ctx)
	if refused != nil {
		x.refuse(ctx, out, refused)
		return
	}
	has, said, err := offered(servers)
	if err != nil {
		x.refuse(ctx, out, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE})
		return
	}
	body, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  any            `json:"result"`
	}{"2.0", x.id(), struct {
		Type         string                     `json:"resultType"`
		TTL          int                        `json:"ttlMs"`
		Scope        string                     `json:"cacheScope"`
		Versions     []string                   `json:"supportedVersions"`
		Capabilities map[string]map[string]bool `json:"capabilities"`
		Instructions string                     `json:"instructions"`
		Meta         map[string]serverInfo      `json:"_meta"`
	}{mcp.ResultComplete, 0, "private", x.spoken(), has, said, map[string]serverInfo{mcp.MetaServerInfo: x.hubInfo()}}}, json.Deterministic(true))
	out.ours(ctx, body, err)
}
