package bodyreader

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// pieceSize is the size of each buffer in the pool, in bytes.
const pieceSize = 64 << 10

// Pieces is a pool of buffers that collect a body until it is complete. Because of the pool, even a large body needs
// only one allocation, which saves work for the garbage collector. The zero value is ready to use. It is safe for
// concurrent use.
type Pieces struct{ free sync.Pool }

// ReadAll reads a body. It stops one byte after the limit, so that the parser refuses a body that is too large. The
// caller passes the length that the peer has announced, or -1 if the peer has announced none. ReadAll does not trust
// the announced length, and allocates at most one piece before any bytes arrive.
func (p *Pieces) ReadAll(r io.Reader, announced int64, limit int) ([]byte, error) {
	r = io.LimitReader(r, int64(limit)+1)
	if 0 <= announced && announced <= pieceSize {
		return readSmall(r, int(announced))
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
		for n < pieceSize && err == nil { // io.ReadFull could not tell the end of the body from an error
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

// readSmall reads a body whose announced length is small. The buffer has one byte more than announced, so that the end
// of the body is detected.
func readSmall(r io.Reader, announced int) ([]byte, error) {
	all := make([]byte, 0, announced+1)
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
