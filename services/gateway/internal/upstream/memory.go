package upstream

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

const (
	// leastMemory is how much is taken for a message at first, in bytes.
	leastMemory = 512
	// sureMemory is how much of one has to come, beyond its first piece, for the length
	// that it says to be believed: that costs memory once, and a server that does not send
	// the rest has sent a part.
	sureMemory = 1 << 20
	// maxRead is how much is read without a rest, in bytes.
	maxRead = 256 << 10
)

// memory takes in one message of a server. It grows with what has come, for a server
// may claim any length, and beyond a first piece only once there is room for that. One
// whose length is said has the whole once a part of it has come.
type memory struct {
	ctx   context.Context //nolint:containedctx // it bounds every wait for room
	room  *room.Holding
	most  int  // bytes that it can have to take in
	sized bool // the message says that it has as many
	bytes []byte
	stint turn.Stint
}

// reserve makes room for n bytes more.
func (m *memory) reserve(n int) error {
	need, had := len(m.bytes)+n, cap(m.bytes)
	if need <= had {
		return nil
	}
	size := max(need, min(max(m.next(had), leastMemory), m.most))
	if err := m.room.Grow(m.ctx, size); err != nil {
		return err
	}
	grown := make([]byte, len(m.bytes), size)
	copy(grown, m.bytes)
	m.bytes = grown
	return nil
}

// next is how much is taken once so much is full.
func (m *memory) next(had int) int {
	switch {
	case !m.sized || had < room.Free:
		return 2 * had
	case had < sureMemory:
		return sureMemory
	default:
		return m.most
	}
}

// add takes a part in.
func (m *memory) add(part []byte) error {
	if err := m.reserve(len(part)); err != nil {
		return err
	}
	m.bytes = append(m.bytes, part...)
	return nil
}

// readFrom takes in what r has, up to the most.
func (m *memory) readFrom(r io.Reader) error {
	for len(m.bytes) < m.most {
		if err := m.reserve(1); err != nil {
			return err
		}
		m.stint.Part()
		n, err := r.Read(m.bytes[len(m.bytes):min(cap(m.bytes), len(m.bytes)+maxRead)])
		m.bytes = m.bytes[:len(m.bytes)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isHeld tells whether it takes room that others may need.
func (m *memory) isHeld() bool { return cap(m.bytes) > room.Free }

// settle gives back the room that the message did not need.
func (m *memory) settle() { m.room.Keep(cap(m.bytes)) }

// drop forgets the message.
func (m *memory) drop() {
	m.bytes = nil
	m.room.Keep(0)
}
