package network

import (
	"bytes"
	"sync/atomic"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// kind is the type name under which [direction] is registered with toxiproxy.
const kind = "sluice"

// These constants are the states of [Proxy.DropCommitResponses].
const (
	commitsPass int32 = iota
	commitAwaited
	commitSeen
)

// commit is the end of the message with which a PostgreSQL client commits a transaction.
var commit = []byte("commit\x00")

// faultState is the state of the faults that toxiproxy lacks. All connections of a proxy share it.
type faultState struct {
	// dropToggles is the number of times that [Proxy.DropSilently] was started or ended. The fault is active while
	// dropToggles is odd.
	dropToggles atomic.Int64
	// commits is the state of [Proxy.DropCommitResponses]: commitsPass, commitAwaited or commitSeen.
	commits atomic.Int32
	// opened counts connections.
	opened atomic.Int64
}

func (w *faultState) toggleDrop() { w.dropToggles.Add(1) }

func (w *faultState) endFaults() {
	if w.dropToggles.Load()%2 == 1 {
		w.toggleDrop()
	}
	w.commits.Store(commitsPass)
}

// direction is the toxic for one direction of every connection.
type direction struct {
	wire *faultState
	up   bool
}

// link is the state of one direction of a connection. togglesAtOpen is the value of dropToggles when the connection was
// opened.
type link struct{ togglesAtOpen int64 }

// NewState implements toxics.StatefulToxic.
func (d *direction) NewState() any {
	if d.up {
		d.wire.opened.Add(1)
	}
	return &link{togglesAtOpen: d.wire.dropToggles.Load()}
}

// isLost reports whether a connection drops all data. This is the case if the connection was opened during
// [Proxy.DropSilently], or already existed when DropSilently was called.
func (d *direction) isLost(l *link) bool {
	return l.togglesAtOpen%2 == 1 || d.wire.dropToggles.Load() != l.togglesAtOpen
}

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
				<-stub.Interrupt // the other end is not told that the connection has ended
				return
			case d.isLost(l):
				continue
			case c == nil || !d.up && d.wire.commits.Load() == commitSeen:
				stub.Close()
				return
			case d.up && bytes.Contains(c.Data, commit):
				d.wire.commits.CompareAndSwap(commitAwaited, commitSeen)
			}
			stub.Output <- c
		}
	}
}
