// Package bodyreader reads messages of untrusted peers, within a memory budget and at a minimum pace.
package bodyreader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

const (
	// leastMemory is the first allocation for a message, in bytes.
	leastMemory = 512
	// sureMemory is how many bytes of a message must have arrived, beyond the first piece, until its announced length
	// is allocated. So the memory is allocated once, and a server that announces more than it sends must send a part.
	sureMemory = 1 << 20
	// maxRead is how much is read or copied without yielding the processor, in bytes.
	maxRead = 256 << 10
)

// Memory is the buffer for one message. It grows with what arrives, because a peer may announce any length, and beyond
// a first piece only within the budget. If the length is announced, the whole is allocated once a part has arrived. A
// Memory is for one goroutine. [New] creates it.
type Memory struct {
	ctx      context.Context //nolint:containedctx // it bounds every wait for memory
	budget   *limits.Memory
	maxBytes int  // the largest expected size of the message, in bytes
	sized    bool // the message announces this size
	bytes    []byte
	stint    gosched.Work
}

// New returns an empty buffer for a message of at most maxBytes bytes; the caller must not add more. The bytes count in
// memory; if memory is nil, only small messages are accepted. Waiting for memory ends with ctx.
func New(ctx context.Context, memory *limits.Memory, maxBytes int) *Memory {
	return &Memory{ctx: ctx, budget: memory, maxBytes: maxBytes}
}

// Body reads a body of at most limit bytes with this announced length; -1 means that no length is announced. The result
// counts in memory. Errors: [limits.ErrMemory], [ErrSlow], an error for a body that is too large, and those of body.
func Body(ctx context.Context, body io.ReadCloser, length int64, limit int, memory *limits.Memory) ([]byte, error) {
	if length > int64(limit) {
		return nil, fmt.Errorf("the answer of %d bytes is larger than %d", length, limit)
	}
	if 0 <= length && length < limits.UncountedBytes { // most are small: they count nothing and need no pace
		m := Memory{ctx: ctx, budget: memory, maxBytes: int(length) + 1, sized: true}
		err := m.readFrom(body)
		return m.bytes, err
	}
	m := &Memory{ctx: ctx, budget: memory, maxBytes: limit + 1, sized: length >= 0} // one byte more, to detect a body that is too long
	if m.sized {
		m.maxBytes = int(length) + 1
		if err := m.reserve(min(m.maxBytes, limits.UncountedBytes)); err != nil {
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

// reserve makes room in the buffer for n more bytes.
func (m *Memory) reserve(n int) error {
	need, had := len(m.bytes)+n, cap(m.bytes)
	if need <= had {
		return nil
	}
	size := max(need, min(max(m.nextCapacity(had), leastMemory), m.maxBytes))
	if err := m.budget.Grow(m.ctx, size); err != nil {
		return err
	}
	grown := make([]byte, 0, size)
	for part := range slices.Chunk(m.bytes, maxRead) { // in pieces, because the garbage collector waits until a copy has ended
		m.stint.Part()
		grown = append(grown, part...)
	}
	m.bytes = grown
	return nil
}

// nextCapacity returns the next capacity for a buffer that is full.
func (m *Memory) nextCapacity(had int) int {
	switch {
	case !m.sized || had < limits.UncountedBytes:
		return 2 * had
	case had < sureMemory:
		return sureMemory
	default:
		return m.maxBytes
	}
}

// Bytes returns the message so far. It is valid until the next call that changes it.
func (m *Memory) Bytes() []byte { return m.bytes }

// Truncate keeps the first n bytes.
func (m *Memory) Truncate(n int) { m.bytes = m.bytes[:n] }

// Add appends a part. Errors are those of waiting for memory.
func (m *Memory) Add(part []byte) error {
	if err := m.reserve(len(part)); err != nil {
		return err
	}
	m.bytes = append(m.bytes, part...)
	return nil
}

// readFrom reads r up to the expected size.
func (m *Memory) readFrom(r io.Reader) error {
	for len(m.bytes) < m.maxBytes {
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

// IsHeld reports whether the buffer takes memory that counts in the budget.
func (m *Memory) IsHeld() bool { return cap(m.bytes) > limits.UncountedBytes }

// Settle gives back the memory that the message did not need.
func (m *Memory) Settle() { m.budget.Settle(cap(m.bytes)) }

// Drop discards the message.
func (m *Memory) Drop() {
	m.bytes = nil
	m.budget.Settle(0)
}
