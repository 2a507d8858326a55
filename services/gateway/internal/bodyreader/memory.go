// Package bodyreader reads messages from untrusted peers within a memory budget, and enforces a minimum transfer rate.
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
	// leastMemory is the size of the first allocation for a message, in bytes.
	leastMemory = 512
	// sureMemory is the number of bytes of a large message that must arrive before memory for the whole announced
	// length is allocated. The announced length makes a single allocation possible, but an announcement alone must not
	// cause a large allocation.
	sureMemory = 1 << 20
	// maxRead is the maximum number of bytes that are read or copied before the goroutine yields the processor.
	maxRead = 256 << 10
)

// Memory is the buffer for one message. It grows as bytes arrive, because a peer may announce any length. A small first
// part is not charged to the memory budget, and further growth needs memory from the budget. If the length is
// announced, memory for the whole message is allocated after sureMemory bytes. A Memory is not safe for concurrent use.
// [New] creates it.
type Memory struct {
	ctx      context.Context //nolint:containedctx // it bounds every wait for memory
	budget   *limits.Memory
	maxBytes int  // the maximum size of the message, in bytes
	sized    bool // the message announces its size
	bytes    []byte
	stint    gosched.Work
}

// New returns an empty buffer for a message. The caller must not add more than maxBytes bytes. The bytes are charged to
// memory. If memory is nil, only small messages are accepted. The buffer stops waiting for memory when ctx is done.
func New(ctx context.Context, memory *limits.Memory, maxBytes int) *Memory {
	return &Memory{ctx: ctx, budget: memory, maxBytes: maxBytes}
}

// Body reads a body whose size is at most the parameter limit, in bytes. The parameter length is the announced length,
// or -1 if no length is announced. The result is charged to the memory budget. The error is [limits.ErrMemory],
// [ErrSlow], an error about a body that is too large, or an error from reading the body.
func Body(ctx context.Context, body io.ReadCloser, length int64, limit int, memory *limits.Memory) ([]byte, error) {
	if length > int64(limit) {
		return nil, fmt.Errorf("the answer of %d bytes is larger than %d", length, limit)
	}
	if 0 <= length && length < limits.UncountedBytes { // small bodies are not charged and have no minimum rate
		m := Memory{ctx: ctx, budget: memory, maxBytes: int(length) + 1, sized: true}
		err := m.readFrom(body)
		return m.bytes, err
	}
	// maxBytes is one byte more than the limit, so that a body that is too large is detected.
	m := &Memory{ctx: ctx, budget: memory, maxBytes: limit + 1, sized: length >= 0}
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
	// The bytes are copied in parts, because the garbage collector has to wait for each copy to finish.
	for part := range slices.Chunk(m.bytes, maxRead) {
		m.stint.Part()
		grown = append(grown, part...)
	}
	m.bytes = grown
	return nil
}

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

// Bytes returns the bytes received so far. The slice is valid until the next call that changes the buffer.
func (m *Memory) Bytes() []byte { return m.bytes }

// Truncate keeps the first n bytes of the message.
func (m *Memory) Truncate(n int) { m.bytes = m.bytes[:n] }

// Add appends a part of the message. It returns an error if the memory budget does not allow it.
func (m *Memory) Add(part []byte) error {
	if err := m.reserve(len(part)); err != nil {
		return err
	}
	m.bytes = append(m.bytes, part...)
	return nil
}

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

// IsHeld reports whether the buffer uses memory that is charged to the budget.
func (m *Memory) IsHeld() bool { return cap(m.bytes) > limits.UncountedBytes }

// Settle gives memory back to the budget if the memory was reserved but is not needed.
func (m *Memory) Settle() { m.budget.Settle(cap(m.bytes)) }

// Drop discards the message.
func (m *Memory) Drop() {
	m.bytes = nil
	m.budget.Settle(0)
}
