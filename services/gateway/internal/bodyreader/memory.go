// Package bodyreader reads messages from untrusted peers. It charges the messages to a memory budget, and disconnects
// peers that send too slowly.
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
	// sureMemory is how many bytes of a large message must arrive before memory for the whole announced length is
	// allocated. A single allocation is possible because the length was announced, but an announcement alone must not
	// cause a large allocation.
	sureMemory = 1 << 20
	// maxRead limits how many bytes are read or copied before the goroutine yields the processor.
	maxRead = 256 << 10
)

// Memory is the buffer for one message. It grows as bytes arrive, because a peer could announce any length. A small
// first part of the message is not charged to the memory budget, and all further growth is charged. If the peer has
// announced the length, memory for the whole message is allocated after sureMemory bytes. A Memory is not safe for
// concurrent use. [New] creates a Memory.
type Memory struct {
	ctx      context.Context //nolint:containedctx // limits every wait for memory
	budget   *limits.Memory
	maxBytes int  // how long the message may be, in bytes
	sized    bool // whether the length of the message was announced
	bytes    []byte
	stint    gosched.Work
}

// New returns an empty buffer for a message. The caller must not add more than maxBytes bytes. The buffer charges the
// bytes to the given memory. If that is nil, only small messages are accepted. When ctx is done, the buffer stops
// waiting for memory.
func New(ctx context.Context, memory *limits.Memory, maxBytes int) *Memory {
	return &Memory{ctx: ctx, budget: memory, maxBytes: maxBytes}
}

// Body reads a body of at most the given number of bytes, and charges it to the memory budget. The caller passes the
// length that the peer has announced, or -1 if the peer has announced none. Body returns [limits.ErrMemory], [ErrSlow],
// an error about a body that is too large, or an error from reading the body.
func Body(ctx context.Context, body io.ReadCloser, announced int64, limit int, memory *limits.Memory) ([]byte, error) {
	if announced > int64(limit) {
		return nil, fmt.Errorf("the answer of %d bytes is larger than %d", announced, limit)
	}
	if 0 <= announced && announced < limits.UncountedBytes { // small bodies are not charged and have no minimum rate
		m := Memory{ctx: ctx, budget: memory, maxBytes: int(announced) + 1, sized: true}
		err := m.readFrom(body)
		return m.bytes, err
	}
	// The buffer accepts one byte more than the limit, so that a body that is too large is detected.
	m := &Memory{ctx: ctx, budget: memory, maxBytes: limit + 1, sized: announced >= 0}
	if m.sized {
		m.maxBytes = int(announced) + 1
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
	// The bytes are copied in parts, because the garbage collector must wait until a copy has finished.
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

// Bytes returns the bytes that have arrived so far. The slice is valid until the buffer is changed.
func (m *Memory) Bytes() []byte { return m.bytes }

// Truncate removes all bytes after the first n bytes of the message.
func (m *Memory) Truncate(n int) { m.bytes = m.bytes[:n] }

// Add appends a part of the message. It returns an error if the memory budget has no memory for that part.
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

// IsHeld reports whether some of the buffer's memory is charged to the budget.
func (m *Memory) IsHeld() bool { return cap(m.bytes) > limits.UncountedBytes }

// Settle returns memory to the budget that was charged but is not used by the buffer.
func (m *Memory) Settle() { m.budget.Settle(cap(m.bytes)) }

// Drop discards the message and returns its memory to the budget.
func (m *Memory) Drop() {
	m.bytes = nil
	m.budget.Settle(0)
}
