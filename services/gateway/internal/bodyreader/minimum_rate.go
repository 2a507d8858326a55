package bodyreader

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

const (
	// maxStall is how long a read may wait for a server that has begun a message that takes memory. Each
	// minBytesPerSecond bytes that arrive extend that by a second.
	maxStall          = 10 * time.Second
	minBytesPerSecond = 64 << 10
)

// ErrSlow means that a server was cut off because it sent a large message too slowly, while others may need the memory.
// Compare with errors.Is.
var ErrSlow = errors.New("the server sent a large answer too slowly: less than 64 KiB a second, for 10 s")

type pacedReader struct {
	from io.Reader
	held func() bool
	cut  func()

	left  time.Duration
	timer *time.Timer
	late  atomic.Bool
}

// Pace returns a reader that cuts a server off if its message takes memory, which held reports, and comes more slowly
// than 64 KiB a second for more than 10 s. Only the time in which a read waits for the server counts. A message that
// takes no memory may come at any pace. To cut off, Pace calls cut from another goroutine, which must end the read;
// then the error is [ErrSlow].
func Pace(from io.Reader, held func() bool, cut func()) io.Reader {
	return &pacedReader{from: from, held: held, cut: cut, left: maxStall}
}

// Read implements io.Reader. After the server was cut off, its error is [ErrSlow].
func (p *pacedReader) Read(to []byte) (int, error) {
	if !p.held() {
		p.left = maxStall
		return p.from.Read(to)
	}
	p.start()
	begin := time.Now()
	n, err := p.from.Read(to)
	p.timer.Stop()
	earned := time.Duration(n) * time.Second / minBytesPerSecond
	p.left = max(0, min(maxStall, p.left-time.Since(begin)+earned))
	if p.late.Load() {
		return n, ErrSlow
	}
	return n, err
}

func (p *pacedReader) start() {
	if p.timer != nil {
		p.timer.Reset(p.left)
		return
	}
	p.timer = time.AfterFunc(p.left, func() {
		p.late.Store(true)
		p.cut()
	})
}
