// Package intake takes in what a stranger sends, as far as there is room for it and as
// long as it keeps to a pace.
package intake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

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

// Memory takes in one message. It grows with what has come, for whoever sends it may
// claim any length, and beyond a first piece only once there is room for that. One whose
// length is said has the whole once a part of it has come. It is for one goroutine; make
// one with [New].
type Memory struct {
	ctx   context.Context //nolint:containedctx // it bounds every wait for room
	room  *room.Holding
	most  int  // bytes that the message is expected to have at the most
	sized bool // the message says that it has as many
	bytes []byte
	stint turn.Stint
}

// New returns an empty memory for a message that has most bytes at the most, which whoever
// adds to it holds to. It counts in a room, where nil is for small messages alone; waiting
// for more of that ends with ctx.
func New(ctx context.Context, has *room.Holding, most int) *Memory {
	return &Memory{ctx: ctx, room: has, most: most}
}

// Body reads a body of at most limit bytes that says how long it is: -1 for one that does
// not. The result lies in the room.
func Body(ctx context.Context, body io.ReadCloser, length int64, limit int, has *room.Holding) ([]byte, error) {
	if length > int64(limit) {
		return nil, fmt.Errorf("the answer of %d bytes is larger than %d", length, limit)
	}
	if 0 <= length && length < room.Free { // most are small: they take no room, and may come as slowly as they like
		m := Memory{ctx: ctx, room: has, most: int(length) + 1, sized: true}
		err := m.readFrom(body)
		return m.bytes, err
	}
	m := &Memory{ctx: ctx, room: has, most: limit + 1, sized: length >= 0} // by one byte more a body that is too long is known
	if m.sized {
		m.most = int(length) + 1
		if err := m.reserve(min(m.most, room.Free)); err != nil {
			return nil, err
		}
	}
	if err := m.readFrom(Pace(body, m.IsHeld, func() { _ = body.Close() })); err != nil {
		return nil, err
	}
	if len(m.bytes) > limit {
		return nil, fmt.Errorf("the answer is larger than %d bytes", limit)
	}
	m.Settle()
	return m.bytes, nil
}

// reserve makes room for n bytes more.
func (m *Memory) reserve(n int) error {
	need, had := len(m.bytes)+n, cap(m.bytes)
	if need <= had {
		return nil
	}
	size := max(need, min(max(m.next(had), leastMemory), m.most))
	if err := m.room.Grow(m.ctx, size); err != nil {
		return err
	}
	grown := make([]byte, 0, size)
	for part := range slices.Chunk(m.bytes, maxRead) { // the collector stops everything until a copy has ended
		m.stint.Part()
		grown = append(grown, part...)
	}
	m.bytes = grown
	return nil
}

// next is how much is taken once so much is full.
func (m *Memory) next(had int) int {
	switch {
	case !m.sized || had < room.Free:
		return 2 * had
	case had < sureMemory:
		return sureMemory
	default:
		return m.most
	}
}

// Bytes is what was taken in, until the next call that changes it.
func (m *Memory) Bytes() []byte { return m.bytes }

// Cut keeps the first n bytes.
func (m *Memory) Cut(n int) { m.bytes = m.bytes[:n] }

// Add takes a part in. Errors are those of waiting for room.
func (m *Memory) Add(part []byte) error {
	if err := m.reserve(len(part)); err != nil {
		return err
	}
	m.bytes = append(m.bytes, part...)
	return nil
}

// readFrom takes in what r has, up to the most.
func (m *Memory) readFrom(r io.Reader) error {
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

// IsHeld reports whether it takes room that others may need.
func (m *Memory) IsHeld() bool { return cap(m.bytes) > room.Free }

// Settle gives back the room that the message did not need.
func (m *Memory) Settle() { m.room.Keep(cap(m.bytes)) }

// Drop forgets the message.
func (m *Memory) Drop() {
	m.bytes = nil
	m.room.Keep(0)
}
