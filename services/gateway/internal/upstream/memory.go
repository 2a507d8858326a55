package upstream

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// leastMemory is how much is taken for a message at first, in bytes.
const leastMemory = 512

// memory takes in one message of a server. It grows with what has come, for a server
// may claim any length, and beyond a first piece only once there is room for the
// whole: of many that each had a part none would end.
type memory struct {
	ctx   context.Context //nolint:containedctx // it bounds every wait for room
	room  *room.Holding
	most  int // bytes that it can have to take in
	bytes []byte
}

// reserve makes room for n bytes more.
func (m *memory) reserve(n int) error {
	need, had := len(m.bytes)+n, cap(m.bytes)
	if need <= had {
		return nil
	}
	size := max(need, min(max(2*had, leastMemory), m.most))
	if size > room.Free && had <= room.Free {
		if err := m.room.Grow(m.ctx, max(m.most, size)); err != nil {
			return err
		}
	}
	grown := make([]byte, len(m.bytes), size)
	copy(grown, m.bytes)
	m.bytes = grown
	return nil
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
		n, err := r.Read(m.bytes[len(m.bytes):cap(m.bytes)])
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

// settle gives back the room that the message did not need.
func (m *memory) settle() { m.room.Keep(cap(m.bytes)) }

// drop forgets the message.
func (m *memory) drop() {
	m.bytes = nil
	m.room.Keep(0)
}
