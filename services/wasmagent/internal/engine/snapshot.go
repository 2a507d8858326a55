package engine

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/module"
)

// ErrSnapshot is an error of [Program.Restore]: the snapshot is damaged, or belongs to another module or meter. Use
// errors.Is.
var ErrSnapshot = errors.New("the snapshot can't be gone on with")

// head is the beginning of a snapshot. A snapshot is a length of 4 bytes, little-endian; a head as JSON of that length;
// and, compressed by DEFLATE (RFC 1951), the blocks of the memory that differ from the module's initial memory: one bit
// for each block, least significant first, which is 1 if the block follows, and these blocks. Most of a guest's memory
// never changes.
type head struct {
	// Version is 2.
	Version int `json:"version"`
	// Module is the digest of the guest's module, and Meter the version of its fuel meter.
	Module string `json:"module"`
	Meter  int    `json:"meter"`
	// Pages is the size of the memory in pages of WebAssembly, and Globals are the mutable globals, in order.
	Pages   uint32   `json:"pages"`
	Globals []uint64 `json:"globals"`
	// Clock is the guest's time in nanoseconds, and Random the state of its random numbers.
	Clock  uint64 `json:"clock"`
	Random []byte `json:"random"`
}

const (
	snapshotVersion = 2
	maxHead         = 1 << 20
	blockSize       = 1 << 10
)

// An image is the initial memory of a module: the blocks that are not zero, by number.
type image map[int]string

var zeroes = string(make([]byte, blockSize))

func imageOf(memory []byte) image {
	out := make(image)
	for i := range len(memory) / blockSize {
		if b := block(memory, i); string(b) != zeroes {
			out[i] = string(b)
		}
	}
	return out
}

// changed returns one bit for each block, which is 1 if the block differs from the image.
func (m image) changed(memory []byte) []byte {
	bits := make([]byte, len(memory)/blockSize/8)
	for i := range len(bits) * 8 {
		was, ok := m[i]
		if !ok {
			was = zeroes
		}
		if string(block(memory, i)) != was {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

func block(memory []byte, i int) []byte { return memory[i*blockSize:][:blockSize] }

// blocks returns the blocks of the memory whose bit is 1.
func blocks(memory, bits []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range len(bits) * 8 {
			if bits[i/8]&(1<<(i%8)) != 0 && !yield(block(memory, i)) {
				return
			}
		}
	}
}

// Snapshot returns the whole state of the instance. It fails while a step runs, and after an error.
func (in *Instance) Snapshot() ([]byte, error) {
	if !in.busy.CompareAndSwap(false, true) {
		return nil, errors.New("engine: a step runs")
	}
	defer in.busy.Store(false)
	if in.failed != nil {
		return nil, in.failed
	}
	h := head{Version: snapshotVersion, Module: in.program.Digest, Meter: module.MeterVersion, Pages: in.in.Memory().Size() / pageSize, Clock: in.clock}
	for _, global := range in.state {
		h.Globals = append(h.Globals, global.Get())
	}
	var err error
	if h.Random, err = in.random.MarshalBinary(); err != nil {
		return nil, fmt.Errorf("keep the random numbers: %w", err)
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("write a snapshot: %w", err)
	}
	var out bytes.Buffer
	out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(text))))
	out.Write(text)
	pack, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("write a snapshot: %w", err)
	}
	memory, _ := in.in.Memory().Read(0, in.in.Memory().Size())
	bits := in.program.image.changed(memory)
	if _, err := pack.Write(bits); err != nil {
		return nil, fmt.Errorf("write a snapshot: %w", err)
	}
	for b := range blocks(memory, bits) {
		if _, err := pack.Write(b); err != nil {
			return nil, fmt.Errorf("write a snapshot: %w", err)
		}
	}
	if err := pack.Close(); err != nil {
		return nil, fmt.Errorf("write a snapshot: %w", err)
	}
	return out.Bytes(), nil
}

// Restore returns an instance that continues where the snapshot was taken. Errors: [ErrSnapshot], [ErrMemory] if the
// memory exceeds the limits.
func (p *Program) Restore(ctx context.Context, limits Limits, snapshot []byte) (*Instance, error) {
	h, packed, err := readHead(snapshot)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	case h.Version != snapshotVersion:
		return nil, fmt.Errorf("%w: its form is %d, and %d is known", ErrSnapshot, h.Version, snapshotVersion)
	case h.Module != p.Digest:
		return nil, fmt.Errorf("%w: it is of the module %s", ErrSnapshot, h.Module)
	case h.Meter != module.MeterVersion:
		return nil, fmt.Errorf("%w: its fuel was counted by meter %d, and this is %d", ErrSnapshot, h.Meter, module.MeterVersion)
	case len(h.Globals) != len(p.state), h.Pages < p.pages:
		return nil, fmt.Errorf("%w: it holds another state than the module has", ErrSnapshot)
	case int64(h.Pages)*pageSize > limits.Memory:
		return nil, fmt.Errorf("%w: %d bytes, of %d", ErrMemory, int64(h.Pages)*pageSize, limits.Memory)
	}
	in, ctx, err := p.instantiate(ctx, limits)
	if err != nil {
		return nil, err
	}
	if err := in.fill(h, packed); err != nil {
		if !errors.Is(err, ErrMemory) && !errors.Is(err, ErrSystem) {
			err = fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		return nil, errors.Join(err, in.Close(ctx))
	}
	return in, nil
}

func readHead(snapshot []byte) (h head, packed []byte, err error) {
	if len(snapshot) < 4 {
		return h, nil, io.ErrUnexpectedEOF
	}
	n := binary.LittleEndian.Uint32(snapshot)
	if n > maxHead || uint64(n) > uint64(len(snapshot)-4) {
		return h, nil, io.ErrUnexpectedEOF
	}
	return h, snapshot[4+n:], json.Unmarshal(snapshot[4:4+n], &h)
}

// fill sets the memory, the globals, the clock and the random numbers to those of the snapshot.
func (in *Instance) fill(h head, packed []byte) (err error) {
	defer recovered(&err)
	if more := h.Pages - in.program.pages; more > 0 {
		if _, ok := in.in.Memory().Grow(more); !ok {
			return errors.New("its memory can't become so large")
		}
	}
	memory, _ := in.in.Memory().Read(0, in.in.Memory().Size())
	rest := bytes.NewReader(packed)
	from := flate.NewReader(rest)
	bits := make([]byte, len(memory)/blockSize/8)
	if _, err := io.ReadFull(from, bits); err != nil {
		return fmt.Errorf("read its memory: %w", err)
	}
	for b := range blocks(memory, bits) {
		if _, err := io.ReadFull(from, b); err != nil {
			return fmt.Errorf("read its memory: %w", err)
		}
	}
	if n, err := from.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) || rest.Len() > 0 {
		return errors.New("there is more than its memory")
	}
	for i, global := range in.state {
		global.Set(h.Globals[i])
	}
	in.clock, in.random = h.Clock, new(rand.ChaCha8)
	return in.random.UnmarshalBinary(h.Random)
}
