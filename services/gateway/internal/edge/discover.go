package edge

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// How many servers are listed at a time: programs, which are started for it, and others. One
// that hangs holds a place for as long as its timeout, once for each revision of MCP in which
// it has answered before.
const (
	maxPrograms = 4
	maxOthers   = 32
)

// Discover lists every server for the catalogue, and again on a schedule, until ctx ends. A
// program that is started for it is listed again only while somebody uses it, and a server in
// the revisions alone in which somebody has spoken to it.
func (e *Edge) Discover(ctx context.Context) error {
	programs, others := make(chan struct{}, maxPrograms), make(chan struct{}, maxOthers)
	var all sync.WaitGroup
	defer all.Wait()
	for _, target := range e.targets {
		places := others
		if target.program() {
			places = programs
		}
		idle := func() bool { return e.deps.Revision() == "" || target.asleep() } // without policy nobody takes what is listed
		all.Go(func() { target.found.Keep(ctx, places, idle, slices.Collect(maps.Values(target.under))...) })
	}
	return nil
}

func (t Target) program() bool { return t.Server.Transport() == "stdio" }

// touch notes that the server is used now. The zero value is all servers, of which each is noted when it is used.
func (t Target) touch() {
	if t.used != nil {
		t.used.Store(time.Now().UnixNano())
	}
}

// asleep reports whether a server is a program that was listed and that nobody has used
// since.
func (t Target) asleep() bool {
	found := t.found.Last()
	return found != nil && t.program() && time.Unix(0, t.used.Load()).Before(found.At)
}
