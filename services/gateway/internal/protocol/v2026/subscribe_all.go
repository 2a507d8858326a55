package v2026

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol/allservers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// subscribeAll opens a stream with the notifications from all servers to which the client has subscribed, if the policy
// allows them (MCP 2026-07-28, Subscriptions). It subscribes to each resource at the resource's server. It subscribes
// to list changes only at servers that the client has used. Otherwise, a client that only requests lists would cause
// sessions with all servers. The stream ends when the client disconnects, its token is revoked, the gateway stops, or
// the caller's state is evicted.
func (x *message) subscribeAll(ctx context.Context) dispatch.Response {
	all := allservers.New(x.Request)
	requested, refused := x.readSubscription()
	var servers []*allservers.Accessible
	if refused == nil {
		servers, refused = all.Accessible(ctx)
	}
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	_, listening, done, err := x.Sessions.Listen(ctx, x.Session.ID, x.Session.Key, true)
	if err != nil {
		return x.Refuse(ctx, tooManySubscriptions())
	}
	defer done()
	ctx, end := context.WithCancel(listening)
	x.ClientCtx = ctx
	out := x.NewRelay()
	var streams sync.WaitGroup
	defer streams.Wait()
	defer end()
	before := all.ListState(ctx) // read before the client receives the acknowledgement, because the client then reads the lists again
	subscriptions, granted := x.grantSubscription(ctx, servers, requested)
	notifications, err := json.Marshal(granted)
	if err != nil || out.SendMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s},"notifications":%s}}`, mcp.MethodAcknowledged, mcp.MetaSubscription, x.ID(), notifications)) != nil {
		return dispatch.Response{}
	}
	x.releaseState() // a stream does not keep the caller's state in use
	streams.Go(func() { out.KeepOpen(ctx, end) })
	tick := time.NewTicker(dispatch.KeepAliveInterval) // at each tick, the policy may have changed
	defer tick.Stop()
	for {
		used, changed := x.Session.Members.Opened.Wait(), x.Changes.Wait()
		subscriptions = slices.DeleteFunc(subscriptions, func(h *serverSubscription) bool {
			begins := h.canBegin(x.Session.Members.IDs())
			if begins {
				all.Go(&streams, func() { h.run(ctx) })
			}
			return begins
		})
		if now := all.ListState(ctx); now != "" {
			for _, method := range aggregate.ChangedLists(before, now) {
				wants := map[string]bool{mcp.MethodToolsChanged: granted.Tools, mcp.MethodPromptsChanged: granted.Prompts, mcp.MethodResourcesChanged: granted.Resources}[method]
				if wants && before != "" && out.SendMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s}}}`, method, mcp.MetaSubscription, x.ID())) != nil {
					return dispatch.Response{}
				}
			}
			before = now
		}
		select {
		case <-ctx.Done():
			return dispatch.Response{}
		case <-used:
		case <-changed:
		case <-tick.C:
		}
	}
}

// grantSubscription returns the subscription at each server, and the combined subscription. They contain the
// notifications that the server supports and that the policy allows. The policy service evaluates each resource. A
// server is omitted if its revision is not known before the timeout.
func (x *message) grantSubscription(ctx context.Context, servers []*allservers.Accessible, requested notificationFilter) (subscriptions []*serverSubscription, all notificationFilter) {
	byServer := make(map[string][]string)
	for _, uri := range requested.URIs {
		if server, own, ok := aggregate.SplitURI(uri); ok {
			byServer[server] = append(byServer[server], own)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, allservers.DiscoveryTimeout)
	defer cancel()
	var judging sync.WaitGroup
	slots := make(chan struct{}, allservers.MaxConcurrent)
	for _, s := range servers {
		h := &serverSubscription{all: allservers.New(x.Request), server: s.ServerName}
		offers := func(capability string) bool { return s.Found == nil || s.Offers(capability) }
		h.Prompts = requested.Prompts && offers("prompts") && s.Allowed.Has("prompts/list")
		h.Resources = requested.Resources && offers("resources") && s.Allowed.Has("resources/list")
		subscriptions = append(subscriptions, h)
		if uris := byServer[s.ServerName]; len(uris) > 0 && offers("resources") {
			slots <- struct{}{}
			allservers.New(x.Request).Go(&judging, func() {
				defer func() { <-slots }()
				release, refused := s.Begin(ctx)
				if refused != nil {
					return
				}
				defer release()
				h.URIs = allowedResources(ctx, s.Request, uris)
			})
		}
	}
	judging.Wait()
	all.Tools = requested.Tools
	for _, h := range subscriptions {
		all.Prompts, all.Resources = all.Prompts || h.Prompts, all.Resources || h.Resources
		for _, uri := range h.URIs {
			all.URIs = append(all.URIs, aggregate.CombinedURI(h.server, uri))
		}
	}
	return subscriptions, all
}

type serverSubscription struct {
	upstream.Wanted

	all    allservers.All
	server string
}

// canBegin reports whether the gateway can subscribe to the server now. A subscription to resources can begin
// immediately. A subscription to list changes can begin when memberIDs contains an open member session with the server.
// Each key of memberIDs begins with a server's name.
func (h *serverSubscription) canBegin(memberIDs map[string]string) bool {
	if len(h.URIs) > 0 {
		return true
	}
	for name, id := range memberIDs {
		server, _, _ := strings.Cut(name, capabilitySeparator)
		if server == h.server && (h.Prompts || h.Resources) && h.all.HasOpened(server, id) {
			return true
		}
	}
	return false
}

// run forwards messages from the server to the client's stream. When the server's stream has ended, run opens it again.
// It returns if the server has no streams.
func (h *serverSubscription) run(ctx context.Context) {
	wait := allservers.MinRelistenDelay
	for reopened := false; ; reopened = true {
		begin := time.Now()
		if !h.forwardOnce(ctx, reopened) {
			return
		}
		// If the stream has lasted longer than the maximum delay, the next delay is the minimum delay.
		if wait = min(2*wait, allservers.MaxRelistenDelay); time.Since(begin) > allservers.MaxRelistenDelay {
			wait = allservers.MinRelistenDelay
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// forwardOnce forwards messages from the server until the server's stream ends, and reports whether the stream may be
// opened again. reopened is true if an earlier stream has ended. Then the policy service evaluates the resources again,
// and the client is notified that they may have changed.
func (h *serverSubscription) forwardOnce(ctx context.Context, reopened bool) bool {
	x := h.all.ForServer(h.server)
	if !x.MayReceive(ctx) {
		return true
	}
	release, refused := x.Begin(ctx)
	if refused != nil {
		return true
	}
	defer release()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	x.ClientCtx = ctx
	out := x.NewRelay()
	wants := h.Wanted
	out.Subscription = &wants
	defer out.Settle()
	if reopened {
		wants.URIs = allowedResources(ctx, x.Request, h.URIs)
		for _, uri := range wants.URIs {
			params, err := json.Marshal(map[string]string{"uri": uri})
			if err == nil {
				err = out.Deliver(upstream.Event{Message: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s},%s}`, mcp.MethodResourceUpdated, mcp.MetaSubscription, x.ID(), params[1:])})
			}
			if err != nil {
				return true
			}
		}
	}
	if len(wants.URIs) == 0 && !wants.Prompts && !wants.Resources {
		return true
	}
	answer, err := x.Session.Upstream.SendRequest(ctx, upstream.Subscribe(x.ID(), x.AsClient, wants), &x.Slot.Answer, func(raw []byte) {
		if !x.MayReceive(ctx) || out.Deliver(upstream.Event{Message: raw}) != nil {
			stop()
		}
	})
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil && !errors.Is(err, upstream.ErrNoStream):
		x.ServerFailed(ctx, answer, err)
		return true
	default:
		return err == nil && !answer.Message.Error.Present()
	}
}
