package edge

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// subscribeHub opens a stream on which all servers say what the client wants to hear of, as far as policy
// lets them (MCP 2026-07-28, Subscriptions). Those are asked whose resources it names and, where it wants to
// hear of lists, those that it uses: who only looks opens nothing. It ends with its client, its token or the
// gateway, and where what stands for the session makes room for another.
func (x *v2026) subscribeHub(ctx context.Context) dispatch.Response {
	asked, refused := x.wants()
	var servers []*reached
	if refused == nil {
		servers, refused = x.reached(ctx)
	}
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	_, ctx, done, err := x.deps.Sessions.Listen(ctx, x.sess.ID, x.sess.Key, true)
	if err != nil {
		return x.refuse(ctx, tooManySubscriptions())
	}
	defer done()
	ctx, end := context.WithCancel(ctx)
	x.client = ctx
	out := x.newRelay()
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	was := x.lists(ctx) // before the client knows that it hears of changes, and lists
	hears, granted := x.granted(ctx, servers, asked)
	said, err := json.Marshal(granted)
	if err != nil || out.sendMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s},"notifications":%s}}`, mcp.MethodAcknowledged, mcp.MetaSubscription, x.id(), said)) != nil {
		return dispatch.Response{}
	}
	x.done() // who listens does not hold what stands for the session
	all.Go(func() { out.keepAlive(ctx, end) })
	tick := time.NewTicker(aliveEvery) // for policy may have changed
	defer tick.Stop()
	for {
		used, changed := x.sess.Members.Opened.Wait(), x.news.Wait()
		hears = slices.DeleteFunc(hears, func(h *hearing) bool {
			begins := h.begins(x.sess.Members.All())
			if begins {
				x.guarded(&all, func() { h.run(ctx) })
			}
			return begins
		})
		if now := x.lists(ctx); now != "" {
			for _, method := range aggregate.Changed(was, now) {
				wants := map[string]bool{mcp.MethodToolsChanged: granted.Tools, mcp.MethodPromptsChanged: granted.Prompts, mcp.MethodResourcesChanged: granted.Resources}[method]
				if wants && was != "" && out.sendMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s}}}`, method, mcp.MetaSubscription, x.id())) != nil {
					return dispatch.Response{}
				}
			}
			was = now
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

// granted are those servers of which something of what is asked for may be heard, and all that together:
// what a server offers, and policy lets the caller hear of. Each resource is judged. One that does not say
// in time how it is spoken to is not heard.
func (x *exchange) granted(ctx context.Context, servers []*reached, asked wanted) (hears []*hearing, all wanted) {
	byServer := make(map[string][]string)
	for _, uri := range asked.URIs {
		if server, own, ok := joint.CutURI(uri); ok {
			byServer[server] = append(byServer[server], own)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, foundWithin)
	defer cancel()
	var judging sync.WaitGroup
	places := make(chan struct{}, maxGathering)
	for _, s := range servers {
		h := &hearing{hub: x, server: s.server}
		offers := func(capability string) bool { return s.found == nil || s.offers(capability) }
		h.Prompts = asked.Prompts && offers("prompts") && slices.Contains(s.said.Methods, "prompts/list")
		h.Resources = asked.Resources && offers("resources") && slices.Contains(s.said.Methods, "resources/list")
		hears = append(hears, h)
		if uris := byServer[s.server]; len(uris) > 0 && offers("resources") {
			places <- struct{}{}
			x.guarded(&judging, func() {
				defer func() { <-places }()
				left, refused := s.enter(ctx)
				if refused != nil {
					return
				}
				defer left()
				h.URIs = s.subscribed(ctx, uris)
			})
		}
	}
	judging.Wait()
	all.Tools = asked.Tools
	for _, h := range hears {
		all.Prompts, all.Resources = all.Prompts || h.Prompts, all.Resources || h.Resources
		for _, uri := range h.URIs {
			all.URIs = append(all.URIs, joint.URI(h.server, uri))
		}
	}
	return hears, all
}

// hearing is what is to be heard of one of the servers.
type hearing struct {
	upstream.Wanted

	hub    *exchange
	server string
}

// begins reports whether the server is to be asked now: for resources at once, and for its lists once the client uses it
// in one of the sessions, which are known by the names of their servers.
func (h *hearing) begins(sessions map[string]string) bool {
	if len(h.URIs) > 0 {
		return true
	}
	for name, id := range sessions {
		server, _, _ := strings.Cut(name, inSession)
		if server == h.server && (h.Prompts || h.Resources) && h.hub.hasOpened(server, id) {
			return true
		}
	}
	return false
}

// run passes on what the server says, on the stream of all. One that has ended is opened again, unless the
// server has none.
func (h *hearing) run(ctx context.Context) {
	wait := relistenFirst
	for again := false; ; again = true {
		begin := time.Now()
		if !h.once(ctx, again) {
			return
		}
		if wait = min(2*wait, relistenMost); time.Since(begin) > relistenMost { // it has lasted
			wait = relistenFirst
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// once passes on one stream of the server's, and reports whether there may be another. Where it is opened again
// its resources are judged again, and the client is told that they may have changed meanwhile.
func (h *hearing) once(ctx context.Context, again bool) bool {
	x := h.hub.at(h.server)
	if !x.mayHear(ctx) {
		return true
	}
	left, refused := x.enter(ctx)
	if refused != nil {
		return true
	}
	defer left()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	x.client = ctx
	out := x.newRelay()
	wants := h.Wanted
	out.wants = &wants
	defer out.asks.settle()
	if again {
		wants.URIs = x.subscribed(ctx, h.URIs)
		for _, uri := range wants.URIs {
			told, err := json.Marshal(map[string]string{"uri": uri})
			if err == nil {
				err = out.pass(upstream.Event{Message: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s},%s}`, mcp.MethodResourceUpdated, mcp.MetaSubscription, x.id(), told[1:])})
			}
			if err != nil {
				return true
			}
		}
	}
	if len(wants.URIs) == 0 && !wants.Prompts && !wants.Resources {
		return true
	}
	answer, err := x.sess.Upstream.Ask(ctx, upstream.Subscribe(x.id(), x.speaksFor, wants), &x.has.Answer, func(raw []byte) {
		if !x.mayHear(ctx) || out.pass(upstream.Event{Message: raw}) != nil {
			stop()
		}
	})
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil && !errors.Is(err, upstream.ErrNoStream):
		x.silent(ctx, answer, err)
		return true
	default:
		return err == nil && !answer.Message.Error.Present()
	}
}
