package bodyreader

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// pieceSize is the size of a piece, in bytes.
const pieceSize = 64 << 10

// Pieces are reusable buffers for bodies until they are complete. So a large body is allocated only once, and the
// garbage collector is not kept busy by growing bodies. The zero value is ready. It is safe for concurrent use.
type Pieces struct{ free sync.Pool }

// ReadAll reads a body, at most one byte beyond the limit, after which the parser refuses it. claimed is the announced
// length, or -1; it causes at most the allocation of a first piece.
func (p *Pieces) ReadAll(r io.Reader, claimed int64, limit int) ([]byte, error) {
	r = io.LimitReader(r, int64(limit)+1)
	if 0 <= claimed && claimed <= pieceSize {
		return readSmall(r, int(claimed))
	}
	var read [][]byte
	var stint gosched.Work
	defer func() {
		for _, piece := range read {
			p.free.Put((*[pieceSize]byte)(piece[:pieceSize]))
		}
	}()
	for {
		piece, ok := p.free.Get().(*[pieceSize]byte)
		if !ok {
			piece = new([pieceSize]byte)
		}
		stint.Part()
		n, err := 0, error(nil)
		for n < pieceSize && err == nil { // io.ReadFull would not distinguish the end from a premature end
			var more int
			more, err = r.Read(piece[n:])
			n += more
		}
		read = append(read, piece[:n])
		switch {
		case errors.Is(err, io.EOF):
			all := make([]byte, 0, pieceSize*(len(read)-1)+n)
			for _, piece := range read {
				all = append(all, piece...)
				stint.Part()
			}
			return all, nil
		case err != nil:
			return nil, err
		}
	}
}

// readSmall reads a body of about the claimed length into a buffer of that size, plus one byte to detect the end.
func readSmall(r io.Reader, claimed int) ([]byte, error) {
	all := make([]byte, 0, claimed+1)
	for {
		n, err := r.Read(all[len(all):cap(all)])
		all = all[:len(all)+n]
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case len(all) == cap(all):
			all = slices.Grow(all, bytes.MinRead)
		}
	}
}
