package bodyreader

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

const (
	// maxStall is how long reads may wait for a server that has begun a message that uses memory of the budget. For each
	// minBytesPerSecond bytes that arrive, the limit is extended by a second.
	maxStall          = 10 * time.Second
	minBytesPerSecond = 64 << 10
)

// ErrSlow means that a connection was cut off because the server has sent a large message too slowly. A slow message
// would block memory that other messages may need. Compare with errors.Is.
var ErrSlow = errors.New("the server sent a large answer too slowly: less than 64 KiB a second, for 10 s")

type pacedReader struct {
	from io.Reader
	held func() bool
	cut  func()

	left  time.Duration
	timer *time.Timer
	late  atomic.Bool
}

// Pace returns a reader that enforces a minimum rate: it cuts the server off if the message arrives more slowly than 64
// KiB per second for more than 10 s. The rate is enforced only while held returns true, because the message uses memory
// of the budget. Only the time in which a read waits for the server counts.
//
// To cut the server off, the reader calls cut from another goroutine. The function cut must end the blocked read, which
// then returns [ErrSlow].
func Pace(from io.Reader, held func() bool, cut func()) io.Reader {
	return &pacedReader{from: from, held: held, cut: cut, left: maxStall}
}

// Read implements io.Reader. After the server was cut off, Read returns [ErrSlow].
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
