package v2026

import (
	"cmp"
	"context"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxResources is the maximum number of resources in one subscription. It is limited because the policy service
// evaluates each resource.
const maxResources = 100

type notificationFilter struct {
	Tools     bool     `json:"toolsListChanged,omitzero"`
	Prompts   bool     `json:"promptsListChanged,omitzero"`
	Resources bool     `json:"resourcesListChanged,omitzero"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

func (x *message) readSubscription() (notificationFilter, *refusal.Refusal) {
	if !x.Sink.Accepts() {
		return notificationFilter{}, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "a subscription needs a client that accepts text/event-stream."}
	}
	var params struct {
		Notifications notificationFilter `json:"notifications"`
	}
	if err := json.Unmarshal(x.Message.Params.Of(x.Message.Raw), &params); err != nil || len(params.Notifications.URIs) > maxResources {
		return notificationFilter{}, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "notifications is not valid in MCP, or names more than " + strconv.Itoa(maxResources) + " resources."}
	}
	return params.Notifications, nil
}

// tooManySubscriptions returns the refusal for a subscription that exceeds the quota, or whose state was evicted.
func tooManySubscriptions() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: "this caller has too many subscriptions here, or its state was just removed; end some of them, or subscribe again."}
}

// subscribe opens a stream with the notifications to which the client has subscribed, if the policy allows them (MCP
// 2026-07-28, Subscriptions). The gateway sends its own request to the server, with the id of the client's request. The
// stream ends when the client disconnects, its token is revoked, or the gateway stops.
func (x *message) subscribe(ctx context.Context) dispatch.Response {
	requested, refused := x.readSubscription()
	if refused == nil && !x.access.MayCall {
		refused = &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED}
	}
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	wants := upstream.Wanted{
		Tools:     requested.Tools,
		Prompts:   requested.Prompts && x.access.Has("prompts/list"),
		Resources: requested.Resources && x.access.Has("resources/list"),
		URIs:      allowedResources(ctx, x.Request, requested.URIs),
	}
	_, listening, done, err := x.Sessions.Listen(ctx, x.Session.ID, x.Session.Key, true)
	if err != nil {
		return x.Refuse(ctx, tooManySubscriptions())
	}
	defer done()
	x.releaseState() // a stream does not keep the caller's state in use
	return x.forward(listening, wants)
}

// allowedResources returns the URIs to which the policy allows the client to subscribe. The policy service evaluates
// each URI as a resources/subscribe request. Each URI counts as a message. Otherwise, a single message could cause a
// hundred evaluations without reaching a limit.
func allowedResources(ctx context.Context, x *protocol.Request, uris []string) (out []string) {
	for _, uri := range uris {
		params, err := json.Marshal(map[string]string{"uri": uri})
		if err != nil || uri == "" {
			continue // no resource has a URI that is empty or not valid UTF-8
		}
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":`+string(x.ID())+`,"method":"`+mcp.MethodSubscribe+`","params":`+string(params)+`}`), x.Limits)
		counted := pipeline.ExemptMessage{Principal: x.Principal, Server: x.ServerName, Method: mcp.MethodListen, Bytes: len(uri)}
		if x.Pipeline.CountExempt(counted) != nil {
			return out
		}
		if err == nil && x.Decide(ctx, m, false) == nil {
			out = append(out, uri)
		}
	}
	return out
}

// forward forwards the notifications of a subscription to the client until the subscription ends.
func (x *message) forward(ctx context.Context, wants upstream.Wanted) dispatch.Response {
	ctx, end := context.WithCancel(ctx)
	x.ClientCtx = ctx
	out := x.NewRelay()
	defer out.Settle()
	out.Subscription = &wants
	var alive sync.WaitGroup
	defer func() { end(); alive.Wait() }()
	alive.Go(func() { out.KeepOpen(ctx, end) })
	answer, err := x.Session.Upstream.SendRequest(ctx, upstream.Subscribe(x.ID(), x.AsClient, wants), &x.Slot.Answer, func(raw []byte) {
		if !x.MayReceive(ctx) || out.Deliver(upstream.Event{Message: raw}) != nil {
			end()
		}
	})
	ended := ctx.Err() != nil
	end()
	alive.Wait()
	ctx = context.WithoutCancel(ctx)
	var refused *refusal.Refusal
	switch {
	case err == nil:
		refused = x.CheckInputRequests(ctx, answer.Message)
	case !ended: // the stream was not ended by the client, a revoked token or the gateway
		refused = x.ServerFailed(ctx, answer, err)
	}
	switch {
	case err == nil && refused == nil:
		response := x.Edited(ctx, answer.Message, answer.Message.Clean(nil))
		response.Status = cmp.Or(response.Status, statusOf(answer.Message, answer.Status))
		return response
	case refused != nil && !out.IsOpen():
		return x.Refuse(ctx, refused)
	default:
		return dispatch.Response{} // the stream ends
	}
}
