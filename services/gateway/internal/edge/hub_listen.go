package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// relistenFirst is how long after a server's stream has ended it is opened again. Each time more
	// it is twice as long, up to relistenMost.
	relistenFirst = time.Second
	relistenMost  = time.Minute
)

// hearHub passes on what the servers say that the session has used, and tells when the lists of
// servers are others for its client than it was told, until ctx ends or the client's stream does.
func (x *exchange) hearHub(ctx context.Context) dispatch.Response {
	out := x.newRelay()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	out.Open()
	all.Go(func() { out.keepAlive(ctx, cancel) })
	x.sess.Members.Lists(cmp.Or(x.sess.Members.Lists(""), x.lists(ctx))) // who has not listed yet is told of what changes from now on
	tick := time.NewTicker(aliveEvery)                                   // for policy may have changed
	defer tick.Stop()
	for heard := make(map[string]bool); ; {
		used, changed := x.sess.Members.Opened.Wait(), x.news.Wait()
		for server, id := range x.sess.Members.All() {
			if heard[id] || !x.hasOpened(server, id) {
				continue
			}
			heard[id] = true
			y := x.at(server)
			x.guarded(&all, func() { y.hearMember(ctx, cancel, id) })
		}
		if now := x.lists(ctx); now != "" {
			for _, method := range listsChanged(x.sess.Members.Lists(now), now) {
				if out.sendMessage([]byte(`{"jsonrpc":"2.0","method":"`+method+`"}`)) != nil {
					return dispatch.Response{}
				}
			}
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

// listsChanged are what a client reads when one state of the servers' lists takes the place of another.
func listsChanged(before, now string) (changed []string) {
	was := strings.Split(before, "\n")
	for i, state := range strings.Split(now, "\n") {
		if i >= len(was) || was[i] != state {
			changed = append(changed, [...]string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged}[i])
		}
	}
	return changed
}

// toolsListed is the state that a client has been told of which reads the list of tools now: of other
// lists it knows what it did before.
func toolsListed(before, now string) string {
	tools, _, _ := strings.Cut(now, "\n")
	if _, others, known := strings.Cut(before, "\n"); known && now != "" {
		return tools + "\n" + others
	}
	return now
}

// hasOpened reports whether a member's server knows of it, and so may say something.
func (x *exchange) hasOpened(server, id string) bool {
	sess, done, err := x.deps.Sessions.Use(id, keyOf(x.Caller, server))
	if err != nil {
		return false
	}
	defer done()
	return sess.Upstream.IsOpen()
}

// lists is the state of the lists of those servers on which the caller could come by something, as a
// text that another state does not have. It has a line for tools, one for prompts and one for resources.
// Each says how many servers are known; that for tools also how often the list of each has changed, and
// the policy. Which prompts and resources there are the gateway does not list itself, so the others name
// the policy where it tells them apart. Of a server of whose list policy lets the caller hear nothing
// that line says nothing. It is empty where policy can't be asked.
func (x *exchange) lists(ctx context.Context) string {
	var tools, prompts, resources []byte
	var known [3]int // in the order of the lines
	for _, server := range slices.Sorted(maps.Keys(x.targets)) {
		said, err := x.at(server).standing(ctx)
		changes := x.protocol.viewOf(x.targets[server]).Changes()
		switch {
		case err != nil:
			return ""
		case !said.Some:
			continue
		}
		hears := func(line int, method string) bool {
			may := slices.Contains(said.Methods, method)
			if may {
				known[line] += min(changes, 1)
			}
			return may
		}
		if hears(0, mcp.MethodToolsChanged) {
			tools = fmt.Appendf(tools, " %s:%d:%s", server, changes, said.Revision)
		}
		if hears(1, mcp.MethodPromptsChanged) && !said.PromptsAlike {
			prompts = fmt.Appendf(prompts, " %s:%s", server, said.Revision)
		}
		if hears(2, mcp.MethodResourcesChanged) && !said.ResourcesAlike {
			resources = fmt.Appendf(resources, " %s:%s", server, said.Revision)
		}
	}
	return fmt.Sprintf("%d%s\n%d%s\n%d%s", known[0], tools, known[1], prompts, known[2], resources)
}

// guarded has something done beside; net/http sees to the panics of its own goroutines alone.
func (x *exchange) guarded(all *sync.WaitGroup, do func()) {
	all.Go(func() {
		defer func() {
			if panicked := recover(); panicked != nil {
				x.panicked(x.client, panicked)
			}
		}()
		do()
	})
}

// hearMember passes on what one server says, on the stream of all. A stream of the server's that has
// ended is opened again.
func (x *exchange) hearMember(ctx context.Context, end context.CancelFunc, id string) {
	sess, ctx, done, err := x.deps.Sessions.Listen(ctx, id, keyOf(x.Caller, x.server), true)
	if err != nil {
		return // it has just been closed
	}
	defer done()
	x.in(sess)
	x.client = ctx
	out := x.newRelay()
	for wait := relistenFirst; ; wait = min(2*wait, relistenMost) {
		if err := x.hearOnce(ctx, out, func() { wait = relistenFirst }, end); errors.Is(err, upstream.ErrNoStream) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// hearOnce passes on one stream of the server's.
func (x *exchange) hearOnce(ctx context.Context, out *relay, passed func(), end context.CancelFunc) (err error) {
	if !x.mayHear(ctx) {
		return errStale
	}
	if x.has, err = x.inFlight.Enter(x.Principal, x.server); err != nil {
		return err
	}
	defer x.has.Leave()
	defer out.asks.settle() // what was asked on it
	return x.sess.Upstream.Listen(ctx, upstream.Listener{
		Room: &x.has.Answer, Opened: func() {},
		Event: func(event upstream.Event) error {
			if !x.mayHear(ctx) {
				return errStale
			}
			err := out.pass(event)
			if err != nil { // its client has gone
				end()
				return err
			}
			passed()
			return nil
		},
	})
}
