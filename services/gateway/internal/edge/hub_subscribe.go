package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// subscribeHub opens a stream on which all servers say what the client wants to hear of, as far as policy
// lets them (MCP 2026-07-28, Subscriptions). Those are asked whose resources it names and, where it wants to
// hear of lists, those that it has used: who only looks opens nothing. It ends with its client, its token or
// the gateway.
func (x *exchange) subscribeHub(ctx context.Context) {
	out := x.newWriter()
	asked, refused := x.wants(out)
	var servers []*reached
	if refused == nil {
		servers, refused = x.reached(ctx)
	}
	if refused != nil {
		x.refuse(ctx, out, refused)
		return
	}
	_, ctx, done, err := x.deps.Sessions.Listen(ctx, x.sess.ID, x.sess.Key, true)
	if err != nil {
		x.refuse(ctx, out, tooManySubscriptions())
		return
	}
	defer done()
	ctx, end := context.WithCancel(ctx)
	x.r = x.r.WithContext(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	granted := wanted{Tools: asked.Tools}
	byServer := make(map[string][]string)
	for _, uri := range asked.URIs {
		server, own, _ := joint.CutURI(uri)
		byServer[server] = append(byServer[server], own)
	}
	hears := make(map[string]*hearing)
	for _, s := range servers {
		h := &hearing{hub: x, server: s.server, Wanted: upstream.Wanted{
			Prompts:   asked.Prompts && slices.Contains(s.said.Methods, "prompts/list"),
			Resources: asked.Resources && slices.Contains(s.said.Methods, "resources/list"),
		}}
		granted.Prompts, granted.Resources = granted.Prompts || h.Prompts, granted.Resources || h.Resources
		if uris := byServer[s.server]; len(uris) > 0 {
			h.URIs = s.subscribedAs(ctx, uris)
		}
		for _, uri := range h.URIs {
			granted.URIs = append(granted.URIs, joint.URI(s.server, uri))
		}
		hears[s.server] = h
	}
	said, err := json.Marshal(granted)
	if err != nil || out.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s},"notifications":%s}}`, mcp.MethodAcknowledged, mcp.MetaSubscription, x.id(), said)) != nil {
		return
	}
	x.done() // who listens does not hold what stands for the session
	all.Go(func() { out.keepAlive(ctx, end) })
	tick := time.NewTicker(aliveEvery) // for policy may have changed
	defer tick.Stop()
	for was := x.lists(ctx); ; {
		used, changed := x.sess.Members.Opened.Wait(), x.news.Wait()
		members := x.sess.Members.All()
		for server, h := range hears {
			names := slices.DeleteFunc(slices.Collect(maps.Keys(members)), func(name string) bool { return strings.TrimSuffix(name, inSession) != server })
			if isUsed := slices.ContainsFunc(names, func(name string) bool { return x.hasOpened(server, members[name]) }); len(h.URIs) > 0 || isUsed && (h.Prompts || h.Resources) {
				delete(hears, server)
				x.guarded(&all, func() { h.run(ctx, out, end) })
			}
		}
		now := x.lists(ctx)
		if now != "" && was != "" {
			for _, method := range listsChanged(was, now) {
				wants := map[string]bool{mcp.MethodToolsChanged: granted.Tools, mcp.MethodPromptsChanged: granted.Prompts, mcp.MethodResourcesChanged: granted.Resources}[method]
				if wants && out.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s}}}`, method, mcp.MetaSubscription, x.id())) != nil {
					return
				}
			}
		}
		if now != "" {
			was = now
		}
		select {
		case <-ctx.Done():
			out.Hold() // which gives the end of the stream, that net/http writes, its time
			return
		case <-used:
		case <-changed:
		case <-tick.C:
		}
	}
}

// subscribedAs are those of the server's resources of whose changes policy lets the client hear.
func (s *reached) subscribedAs(ctx context.Context, uris []string) []string {
	left, refused := s.enter(ctx)
	if refused != nil {
		return nil
	}
	defer left()
	return s.subscribed(ctx, uris)
}

// hearing is what is wanted to be heard of one of the servers.
type hearing struct {
	upstream.Wanted

	hub    *exchange
	server string
}

// run passes on what the server says, on the stream of all. One that has ended is opened again.
func (h *hearing) run(ctx context.Context, on *writer, end context.CancelFunc) {
	for wait := relistenFirst; ; wait = min(2*wait, relistenMost) {
		h.once(ctx, on, func() { wait = relistenFirst }, end)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// once passes on one stream of the server's.
func (h *hearing) once(ctx context.Context, on *writer, passed func(), end context.CancelFunc) {
	x := h.hub.at(h.server)
	if !x.mayHear(ctx) {
		return
	}
	left, refused := x.enter(ctx)
	if refused != nil {
		return
	}
	defer left()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	x.r = x.r.WithContext(ctx)
	out := x.newWriter()
	out.line, out.wants = on.line, &h.Wanted
	answer, err := x.sess.Upstream.Ask(ctx, upstream.Subscribe(x.id(), x.by(), h.Wanted), &x.has.Answer, func(raw []byte) {
		switch {
		case !x.mayHear(ctx):
			stop()
		case out.pass(upstream.Event{Message: raw}) != nil: // its client has gone
			end()
		default:
			passed()
		}
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, upstream.ErrNoStream) {
		x.silent(ctx, answer, err)
	}
}
