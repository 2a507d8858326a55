package allservers

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// MinRelistenDelay is the first delay before the gateway opens a server's stream again after the stream has ended.
	MinRelistenDelay = time.Second
	// MaxRelistenDelay is the maximum delay before a stream is opened again. The delay doubles after each attempt.
	MaxRelistenDelay = time.Minute
)

// Listen forwards messages from the session's servers until ctx is done or the client's stream ends. It also notifies
// the client of changes to lists.
func (x All) Listen(ctx context.Context) dispatch.Response {
	out := x.NewRelay()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	out.Open()
	all.Go(func() { out.KeepOpen(ctx, cancel) })
	// A client that has not read a list yet is notified only of changes after this time.
	x.Session.Members.SetListState(cmp.Or(x.Session.Members.SetListState(""), x.ListState(ctx)))
	tick := time.NewTicker(dispatch.KeepAliveInterval) // at each tick, the policy may have changed
	defer tick.Stop()
	for listening := make(map[string]bool); ; {
		opened, changed := x.Session.Members.Opened.Wait(), x.Changes.Wait()
		for server, id := range x.Session.Members.IDs() {
			if listening[id] || !x.HasOpened(server, id) {
				continue
			}
			listening[id] = true
			member := x.ForServer(server)
			x.Go(&all, func() { member.listen(ctx, cancel, id) })
		}
		if now := x.ListState(ctx); now != "" {
			for _, method := range aggregate.ChangedLists(x.Session.Members.SetListState(now), now) {
				if out.SendMessage([]byte(`{"jsonrpc":"2.0","method":"`+method+`"}`)) != nil {
					return dispatch.Response{}
				}
			}
		}
		select {
		case <-ctx.Done():
			return dispatch.Response{}
		case <-opened:
		case <-changed:
		case <-tick.C:
		}
	}
}

// HasOpened reports whether the member session with the given id has been opened with its server. The server can then
// send messages.
func (x All) HasOpened(server, id string) bool {
	sess, done, err := x.Sessions.Use(id, protocol.SessionKey(x.Caller, server))
	if err != nil {
		return false
	}
	defer done()
	return sess.Upstream.IsOpen()
}

// ListState returns a text that changes when a list that the caller can see may have changed. It returns "" if the
// policy service is unavailable.
func (x All) ListState(ctx context.Context) string {
	var servers []aggregate.ServerLists
	for _, server := range slices.Sorted(maps.Keys(x.Servers)) {
		access, err := x.ForServer(server).Access(ctx)
		if err != nil {
			return ""
		}
		if access.MayCall {
			servers = append(servers, aggregate.ServerLists{
				Server: server, Changes: x.Protocol.DiscoveryOf(x.Servers[server]).Changes(), Methods: access.Methods,
				PromptNamesIgnored: access.PromptNamesIgnored, ResourceNamesIgnored: access.ResourceNamesIgnored, Revision: access.Revision,
			})
		}
	}
	return aggregate.State(servers)
}

// Go runs do in a goroutine. If do panics, Go logs the panic. Otherwise, the panic would terminate the process, because
// net/http recovers panics only in its own goroutines.
func (x All) Go(all *sync.WaitGroup, do func()) {
	all.Go(func() {
		defer func() {
			if panicked := recover(); panicked != nil {
				x.LogPanic(x.ClientCtx, panicked)
			}
		}()
		do()
	})
}

// listen forwards messages from one server to the client's stream. If the server's stream ends, listen reopens it.
func (x Member) listen(ctx context.Context, end context.CancelFunc, id string) {
	sess, ctx, done, err := x.Sessions.Listen(ctx, id, protocol.SessionKey(x.Caller, x.ServerName), true)
	if err != nil {
		return // the session has just been closed
	}
	defer done()
	x.Enter(sess)
	x.ClientCtx = ctx
	out := x.NewRelay()
	for wait := MinRelistenDelay; ; wait = min(2*wait, MaxRelistenDelay) {
		if err := x.listenOnce(ctx, out, func() { wait = MinRelistenDelay }, end); errors.Is(err, upstream.ErrNoStream) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// listenOnce forwards messages from the server until the server's stream ends. It calls onForwarded after each
// forwarded event. If the client has disconnected, it calls endStream.
func (x Member) listenOnce(ctx context.Context, out *dispatch.Relay, onForwarded func(), endStream context.CancelFunc) (err error) {
	if !x.MayReceive(ctx) {
		return dispatch.ErrStale
	}
	if x.Slot, err = x.InFlight.Begin(x.Principal, x.ServerName); err != nil {
		return err
	}
	defer x.Slot.End()
	defer out.Settle() // cancels the open requests that the server has sent on the stream
	return x.Session.Upstream.Listen(ctx, upstream.Listener{
		Room: &x.Slot.Answer, Opened: func() {},
		Event: func(event upstream.Event) error {
			if !x.MayReceive(ctx) {
				return dispatch.ErrStale
			}
			err := out.Deliver(event)
			if err != nil { // the client has disconnected
				endStream()
				return err
			}
			onForwarded()
			return nil
		},
	})
}
