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

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// ErrSnapshot means that a snapshot can't be restored, because it is damaged or was taken with another module or
// another version of the fuel meter. Compare it with errors.Is.
var ErrSnapshot = errors.New("the snapshot can't be restored")

// snapshotHeader is the JSON header of a snapshot. A snapshot consists of the length of the header (4 bytes,
// little-endian), the header, and the memory. The memory is compressed with DEFLATE (RFC 1951).
//
// Only the differences from the module's initial memory are stored, because most of a guest's memory never changes.
// They consist of one bit for each block, least significant bit first, and of the blocks that differ. A bit is 1 if the
// block differs.
type snapshotHeader struct {
	// Version is the version of the format, which is 2.
	Version int `json:"version"`
	// Module is the digest of the guest's module. Meter is the version of the fuel meter that counts the guest's fuel.
	Module string `json:"module"`
	Meter  int    `json:"meter"`
	// Pages is the size of the memory in WebAssembly pages. Globals contains the values of the mutable globals, in the
	// order of the module.
	Pages   uint32   `json:"pages"`
	Globals []uint64 `json:"globals"`
	// Clock is the guest's time in nanoseconds since 1970. Random is the state of the guest's random number generator.
	Clock  uint64 `json:"clock"`
	Random []byte `json:"random"`
}

const (
	snapshotVersion = 2
	maxHeader       = 1 << 20
	blockSize       = 1 << 10
)

// An image is the initial memory of a module. It maps block numbers to blocks, and omits blocks whose bytes are all
// zero.
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

// changedBlocks returns one bit for each block of the memory, which is 1 if the block differs from the image.
func (m image) changedBlocks(memory []byte) []byte {
	bits := make([]byte, len(memory)/blockSize/8)
	for i := range len(bits) * 8 {
		initial, ok := m[i]
		if !ok {
			initial = zeroes
		}
		if string(block(memory, i)) != initial {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

func block(memory []byte, i int) []byte { return memory[i*blockSize:][:blockSize] }

// blocks returns the blocks of the memory for which bits contains a 1.
func blocks(memory, bits []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range len(bits) * 8 {
			if bits[i/8]&(1<<(i%8)) != 0 && !yield(block(memory, i)) {
				return
			}
		}
	}
}

// Snapshot returns the whole state of the instance. It returns an error if a step is running or has failed.
func (in *Instance) Snapshot() ([]byte, error) {
	if !in.busy.CompareAndSwap(false, true) {
		return nil, errors.New("engine: a step runs")
	}
	defer in.busy.Store(false)
	if in.failed != nil {
		return nil, in.failed
	}
	h := snapshotHeader{Version: snapshotVersion, Module: in.program.Digest, Meter: wasmmeter.MeterVersion, Pages: in.in.Memory().Size() / pageSize, Clock: in.clock}
	for _, global := range in.state {
		h.Globals = append(h.Globals, global.Get())
	}
	var err error
	if h.Random, err = in.random.MarshalBinary(); err != nil {
		return nil, fmt.Errorf("write the state of the random numbers: %w", err)
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
	bits := in.program.image.changedBlocks(memory)
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

// Restore returns an instance that continues from a snapshot. It returns [ErrSnapshot], or [ErrMemory] if the memory
// exceeds the limits.
func (p *Program) Restore(ctx context.Context, limits Limits, snapshot []byte) (*Instance, error) {
	h, packed, err := parseHeader(snapshot)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	case h.Version != snapshotVersion:
		return nil, fmt.Errorf("%w: its format version is %d, want %d", ErrSnapshot, h.Version, snapshotVersion)
	case h.Module != p.Digest:
		return nil, fmt.Errorf("%w: it belongs to the module %s", ErrSnapshot, h.Module)
	case h.Meter != wasmmeter.MeterVersion:
		return nil, fmt.Errorf("%w: its fuel was counted by version %d of the meter, want %d", ErrSnapshot, h.Meter, wasmmeter.MeterVersion)
	case len(h.Globals) != len(p.state), h.Pages < p.pages:
		return nil, fmt.Errorf("%w: its memory or its globals do not fit the module", ErrSnapshot)
	case int64(h.Pages)*pageSize > limits.Memory:
		return nil, fmt.Errorf("%w: it needs %d bytes, and has %d", ErrMemory, int64(h.Pages)*pageSize, limits.Memory)
	}
	in, ctx, err := p.instantiate(ctx, limits)
	if err != nil {
		return nil, err
	}
	if err := in.restoreState(h, packed); err != nil {
		if !errors.Is(err, ErrMemory) && !errors.Is(err, ErrSystem) {
			err = fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		return nil, errors.Join(err, in.Close(ctx))
	}
	return in, nil
}

func parseHeader(snapshot []byte) (h snapshotHeader, packed []byte, err error) {
	if len(snapshot) < 4 {
		return h, nil, io.ErrUnexpectedEOF
	}
	n := binary.LittleEndian.Uint32(snapshot)
	if n > maxHeader || uint64(n) > uint64(len(snapshot)-4) {
		return h, nil, io.ErrUnexpectedEOF
	}
	return h, snapshot[4+n:], json.Unmarshal(snapshot[4:4+n], &h)
}

// restoreState sets the memory, the globals, the clock and the random number generator to the values in the snapshot.
func (in *Instance) restoreState(h snapshotHeader, packed []byte) (err error) {
	defer recoverAllocation(&err)
	if more := h.Pages - in.program.pages; more > 0 {
		if _, ok := in.in.Memory().Grow(more); !ok {
			return errors.New("the memory can't grow to its size")
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
		return errors.New("bytes follow its memory")
	}
	for i, global := range in.state {
		global.Set(h.Globals[i])
	}
	in.clock, in.random = h.Clock, new(rand.ChaCha8)
	return in.random.UnmarshalBinary(h.Random)
}
