package v2026

import (
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol/allservers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// handleAllServers handles a message of revision 2026-07-28 to the URL for all servers. Headers and body contain
// combined names, so the headers are checked before the body is rewritten for a server. The gateway keeps a state for
// each caller and client. The state has member sessions, as an aggregate session does.
func (x *message) handleAllServers(ctx context.Context) dispatch.Response {
	if len(x.Header[mcp.HeaderSession]) > 0 { // a client with a session has agreed on another revision
		return x.Refuse(ctx, x.UnsupportedVersion(mcp.Modern))
	}
	if refused := x.checkRequired(); refused != nil {
		return x.Refuse(ctx, refused)
	}
	if x.Message.Kind == jsonrpc.Notification { // a client cancels a request by closing its stream
		if mcp.MethodNeedsNoRule(x.Message.Method) {
			if refused := x.CountExempt(ctx, x.Message.Method); refused != nil {
				return *refused
			}
		}
		x.RefuseNotification(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return dispatch.Accepted()
	}
	x.setCapabilities(visibility.Access{}, allservers.New(x.Request).SharedAbilities())
	if refused := x.enterState(ctx); refused != nil {
		return x.Refuse(ctx, refused)
	}
	x.Release = x.releaseState
	return allservers.New(x.Request).Answer(ctx)
}

// discoverAll responds to server/discover with the capabilities of all servers that the caller may use. It does not
// send the request to a server. However, it may wait for the gateway's own discovery of servers.
func (x *message) discoverAll(ctx context.Context) dispatch.Response {
	servers, refused := allservers.New(x.Request).Accessible(ctx)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	greetings := allservers.Greetings(servers)
	capabilities, err := aggregate.Capabilities(greetings)
	if err != nil {
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE})
	}
	body, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  any            `json:"result"`
	}{"2.0", x.ID(), struct {
		Type         string                         `json:"resultType"`
		TTL          int                            `json:"ttlMs"`
		Scope        string                         `json:"cacheScope"`
		Versions     []string                       `json:"supportedVersions"`
		Capabilities map[string]map[string]bool     `json:"capabilities"`
		Instructions string                         `json:"instructions"`
		Meta         map[string]dispatch.ServerInfo `json:"_meta"`
	}{mcp.ResultComplete, 0, "private", x.SupportedVersions(), capabilities, aggregate.Instructions(greetings), map[string]dispatch.ServerInfo{mcp.MetaServerInfo: x.Info()}}}, json.Deterministic(true))
	return x.OwnResponse(ctx, body, err)
}

func (x *message) OwnAnswer() func(context.Context) dispatch.Response {
	switch x.Message.Method {
	case mcp.MethodDiscover:
		return x.discoverAll
	case mcp.MethodListen:
		return x.subscribeAll
	default:
		return nil
	}
}

func (*message) DiscoveryOf(server *servers.Server) *discovery.Server { return server.Discovery() }

func (x *message) ForMember(member *protocol.Request) protocol.Protocol {
	return &message{Request: member, Protocol: x.Protocol}
}

// MemberKey determines the revision in which the gateway sends the message to its server. If the server's revisions are
// not known, MemberKey asks the server. At the URL for all servers, there are no tasks, because requests about tasks do
// not contain a server's name.
func (x *message) MemberKey(ctx context.Context, access visibility.Access) (string, *refusal.Refusal) {
	speaks, known := x.Server.Stateless()
	if !known {
		if refused := x.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: x.Principal, Server: x.ServerName, Method: protocol.MethodProbe, Bytes: len(x.Message.Raw)}); refused != nil {
			return "", refused
		}
		var err error
		if speaks, err = x.Server.AskStateless(ctx); err != nil {
			return "", x.DiscoveryFailed(ctx, err)
		}
	}
	x.setTarget(speaks)
	x.setCapabilities(access, x.FilterAbilities(x.Aggregate.Members.Abilities, access))
	if x.translates { // if the server's revisions or the declared capabilities change, another member session is used
		return x.ServerName + capabilitySeparator + mcp.CapabilitiesJSON(x.capabilities), nil
	}
	return x.ServerName, nil
}

func (x *message) OpenMember(sess *session.Session, _ visibility.Access) {
	sess.Upstream = x.Server.Upstream.OpenLater(x.upstreamOpener(), x.Aggregate.Members.Opened.Notify)
}

// capabilitySeparator separates the server's name from the client's capabilities in the key of a member session. Such
// keys are used if the client uses revision 2026-07-28 and the server supports only revisions with sessions.
const capabilitySeparator = "|"
