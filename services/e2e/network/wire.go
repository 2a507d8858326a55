package network

import (
	"bytes"
	"sync/atomic"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// kind is the type name under which [direction] is registered with toxiproxy.
const kind = "sluice"

// The states of [Proxy.LoseCommits] are: no fault, wait for a commit, and drop responses.
const (
	off int32 = iota
	waits
	lost
)

// commit is the end of the message with which a client of PostgreSQL commits.
var commit = []byte("commit\x00")

// wire is the state of the faults that toxiproxy lacks. All connections of a proxy share it.
type wire struct {
	// turns counts the starts and ends of [Proxy.Lose]. The fault is active while turns is odd.
	turns atomic.Int64
	// commits is the state of [Proxy.LoseCommits]: off, waits or lost.
	commits atomic.Int32
	// opened counts connections.
	opened atomic.Int64
}

func (w *wire) flip() { w.turns.Add(1) }

func (w *wire) mend() {
	if w.turns.Load()%2 == 1 {
		w.flip()
	}
	w.commits.Store(off)
}

// direction is the toxic for one direction of every connection.
type direction struct {
	wire *wire
	up   bool
}

// link is the state of one direction of one connection. born is the value of turns when the connection was opened.
type link struct{ born int64 }

// NewState implements toxics.StatefulToxic.
func (d *direction) NewState() any {
	if d.up {
		d.wire.opened.Add(1)
	}
	return &link{born: d.wire.turns.Load()}
}

// isLost reports whether a connection drops everything: it was opened during [Proxy.Lose], or existed at its start.
func (d *direction) isLost(l *link) bool { return l.born%2 == 1 || d.wire.turns.Load() != l.born }

// Pipe implements toxics.Toxic.
func (d *direction) Pipe(stub *toxics.ToxicStub) {
	l := stub.State.(*link) // NewState returns a *link
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			switch {
			case d.isLost(l) && c == nil:
				<-stub.Interrupt // the other end does not receive the end of the connection
				return
			case d.isLost(l):
				continue
			case c == nil || !d.up && d.wire.commits.Load() == lost:
				stub.Close()
				return
			case d.up && bytes.Contains(c.Data, commit):
				d.wire.commits.CompareAndSwap(waits, lost)
			}
			stub.Output <- c
		}
	}
}
