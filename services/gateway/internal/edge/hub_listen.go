package edge

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// relistenFirst is how long after a server's stream has ended it is opened again. Each time more
	// it is twice as long, up to relistenMost.
	relistenFirst = time.Second
	relistenMost  = time.Minute
)

// toolsChanged is what a client reads when what it may call may have changed.
const toolsChanged = `{"jsonrpc":"2.0","method":"` + mcp.MethodToolsChanged + `"}`

// news tells all who wait that something is new. The zero value has none. It is safe for concurrent
// use.
type news struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait returns what ends with the next news.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// hearMany passes on what the servers say that the session has used, and tells when one that the
// caller may use lists other tools, until ctx ends or the client's stream does.
func (x *exchange) hearMany(ctx context.Context) {
	out := x.newWriter()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	out.Hold()
	all.Go(func() { out.keepAlive(ctx, cancel) })
	heard, listed := make(map[string]bool), x.changes(ctx)
	for {
		used, changed := x.sess.Members.News(), x.news.wait()
		for server, id := range x.sess.Members.All() {
			y := x.at(server)
			if sess, done, err := x.deps.Sessions.Use(id, y.key(server)); err == nil {
				open := sess.Upstream.IsOpen()
				done()
				if open && !heard[id] {
					heard[id] = true
					all.Go(func() { y.hearOne(ctx, cancel, id, out.line) })
				}
			}
		}
		if now := x.changes(ctx); now != listed {
			if listed = now; out.send([]byte(toolsChanged)) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			out.Hold() // which gives the end of the stream, that net/http writes, its time
			return
		case <-used:
		case <-changed:
		}
	}
}

// changes is how often the servers on which the caller could come by something have listed other
// tools.
func (x *exchange) changes(ctx context.Context) (n int) {
	for server, target := range x.targets {
		if said, err := x.at(server).standing(ctx); err == nil && said.Some {
			n += target.found.Changes()
		}
	}
	return n
}

// hearOne passes on what one server says, on the stream of all. A stream of the server's that has
// ended is opened again.
func (x *exchange) hearOne(ctx context.Context, end context.CancelFunc, id string, on *line) {
	sess, ctx, done, err := x.deps.Sessions.Listen(ctx, id, x.key(x.server), true)
	if err != nil {
		return // it has just been closed
	}
	defer done()
	if x.has, err = x.inFlight.Enter(x.principal, x.server); err != nil {
		return
	}
	defer x.has.Leave()
	x.in(sess)
	x.r = x.r.WithContext(ctx)
	out := x.newWriter()
	out.line = on
	defer out.asks.settle()
	for wait := relistenFirst; ; wait = min(2*wait, relistenMost) {
		err := sess.Upstream.Listen(ctx, upstream.Listener{
			Room: &x.has.Answer, Opened: func() {},
			Event: func(event upstream.Event) error {
				if wait = relistenFirst; !x.mayHear(ctx) {
					return errStale
				}
				err := out.pass(event)
				if err != nil { // its client has gone
					end()
				}
				return err
			},
		})
		if errors.Is(err, upstream.ErrNoStream) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
