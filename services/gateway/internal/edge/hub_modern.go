package edge

import (
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// postModernHub takes a message of 2026-07-28 for all servers together. Its head says the names that its
// body does, so that is looked at before the body is written again for a server. What stands for its session
// is the caller's with this client, and has members as a session has.
func (x *exchange) postModernHub(ctx context.Context) response {
	if len(x.header[headerSession]) > 0 { // a client with a session has agreed on another revision
		return x.refuse(ctx, x.notSpoken(mcp.Modern))
	}
	if refused := x.checkModern(); refused != nil {
		return x.refuse(ctx, refused)
	}
	if x.msg.Kind == gate.Notification { // a client that gives a request up closes its stream
		if mcp.AlwaysPasses(x.msg.Method) {
			if refused := x.admitted(ctx, x.msg.Method); refused != nil {
				return *refused
			}
		}
		x.refuseSilently(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return accepted()
	}
	x.can = x.abilitiesForMany()
	if refused := x.standIn(ctx); refused != nil {
		return x.refuse(ctx, refused)
	}
	x.finally.add(x.done)
	return x.answerHub(ctx)
}

// discoverHub answers what all servers have together, as far as the caller may come by it. None of them
// hears of it.
func (x *exchange) discoverHub(ctx context.Context) response {
	servers, refused := x.reached(ctx)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	has, said, err := offered(servers)
	if err != nil {
		return x.refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE})
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
	return x.own(ctx, body, err)
}
