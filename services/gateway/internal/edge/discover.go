package edge

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxPrograms and maxOthers are how many servers are listed at once: programs that are started for it, and all others.
// A server that hangs occupies a slot for its timeout, once for each revision of MCP in which it has answered before.
const (
	maxPrograms = 4
	maxOthers   = 32
)

// Discover lists every server for the catalog, and again on a schedule, until ctx ends. A program is listed again only
// if it has been used since its last list. A server is listed only in the revisions in which it has been used.
func (e *Edge) Discover(ctx context.Context) error {
	programs, others := make(chan struct{}, maxPrograms), make(chan struct{}, maxOthers)
	var all sync.WaitGroup
	defer all.Wait()
	for _, target := range e.targets {
		places := others
		if target.program() {
			places = programs
		}
		idle := func() bool { return e.deps.Revision() == "" || target.asleep() } // without a policy lists can't be reported
		all.Go(func() { target.found.Keep(ctx, places, idle, slices.Collect(maps.Values(target.under))...) })
	}
	return nil
}

func (t Target) program() bool { return t.Server.Transport() == "stdio" }

// touch records that the server is used now. It does nothing for the zero value, which stands for all servers.
func (t Target) touch() {
	if t.used != nil {
		t.used.Store(time.Now().UnixNano())
	}
}

// asleep reports whether the server is a program that has been listed and not been used since.
func (t Target) asleep() bool {
	found := t.found.Last()
	return found != nil && t.program() && time.Unix(0, t.used.Load()).Before(found.At)
}
