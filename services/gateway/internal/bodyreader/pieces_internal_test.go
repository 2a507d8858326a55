package bodyreader

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

func TestReadAll_ReturnsTheWholeBody(t *testing.T) {
	t.Parallel()
	const limit = 4 << 20
	body := make([]byte, limit+2)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	var p Pieces
	for _, size := range []int{0, 1, 511, pieceSize - 1, pieceSize, pieceSize + 1, 3 * pieceSize, limit, limit + 1} {
		for _, claimed := range []int64{-1, 10, int64(size)} {
			for name, r := range map[string]io.Reader{
				"at once": bytes.NewReader(body[:size]), "by halves": iotest.HalfReader(bytes.NewReader(body[:size])),
				"with its end": iotest.DataErrReader(bytes.NewReader(body[:size])),
			} {
				if got, err := p.ReadAll(r, claimed, limit); err != nil || !bytes.Equal(got, body[:size]) {
					t.Errorf("%d bytes, %d claimed, %s: %d bytes, %v", size, claimed, name, len(got), err)
				}
			}
		}
	}
	if got, err := p.ReadAll(bytes.NewReader(body), int64(len(body)), limit); err != nil || len(got) != limit+1 {
		t.Errorf("of too many bytes %d were read: %v", len(got), err)
	}
}

func TestReadAll_FailsForATruncatedBody(t *testing.T) {
	t.Parallel()
	var p Pieces
	for _, size := range []int{0, 1, pieceSize, pieceSize + 1} {
		for _, claimed := range []int64{-1, 10, 1 << 20} {
			cut := io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(io.ErrUnexpectedEOF))
			if _, err := p.ReadAll(cut, claimed, 4<<20); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d bytes of %d: %v", size, claimed, err)
			}
		}
	}
}

// Case X3.
func TestReadAll_LargeBodyIsAllocatedOnce(t *testing.T) {
	const size = 3 << 20
	body := make([]byte, size)
	var p Pieces
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.ReadAll(bytes.NewReader(body), size, 4<<20); err != nil {
				b.Fatal(err)
			}
		}
	})
	if got := result.AllocedBytesPerOp(); got > size*3/2 { // the race detector empties pools at random
		t.Errorf("a body of %d bytes allocates %d", size, got)
	}
}
