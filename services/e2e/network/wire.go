package network

import (
	"bytes"
	"sync/atomic"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// kind is the name under which toxiproxy knows [direction].
const kind = "sluice"

// States of the loss of commits' answers.
const (
	off int32 = iota
	waits
	lost
)

// commit is how a client of PostgreSQL asks for one: the end of a message.
var commit = []byte("commit\x00")

// wire is the state of faults that toxiproxy lacks, for all connections of a proxy.
type wire struct {
	// turns is how often connections have begun and ceased to be lost: they are
	// while it is odd.
	turns atomic.Int64
	// commits says whether a commit's answer is to be lost, or is.
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

// direction is what happens to one direction of every connection: a toxic.
type direction struct {
	wire *wire
	up   bool
}

// link is one direction of one connection.
type link struct{ born int64 }

// NewState implements toxics.StatefulToxic.
func (d *direction) NewState() any {
	if d.up {
		d.wire.opened.Add(1)
	}
	return &link{born: d.wire.turns.Load()}
}

// isLost reports whether nothing arrives on a connection any more.
func (d *direction) isLost(l *link) bool { return l.born%2 == 1 || d.wire.turns.Load() != l.born }

// Pipe implements toxics.Toxic.
func (d *direction) Pipe(stub *toxics.ToxicStub) {
	l := stub.State.(*link) // NewState made it
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			switch {
			case d.isLost(l) && c == nil:
				<-stub.Interrupt // the other end does not hear of it
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
