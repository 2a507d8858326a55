package bodyreader

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

const (
	// maxStall is how long the gateway may wait for the server in total while it reads a message that is charged to the
	// memory budget. For every minBytesPerSecond bytes that arrive, the remaining time grows by one second, up to
	// maxStall.
	maxStall          = 10 * time.Second
	minBytesPerSecond = 64 << 10
)

// ErrSlow means that the gateway disconnected a server because the server sent a large message too slowly. Such a
// message occupies memory that other messages may need. Compare it with errors.Is.
var ErrSlow = errors.New("the server sent a large answer too slowly: less than 64 KiB a second, for 10 s")

type pacedReader struct {
	from io.Reader
	held func() bool
	cut  func()

	left  time.Duration
	timer *time.Timer
	late  atomic.Bool
}

// Pace returns a reader that enforces a minimum rate. If the message arrives more slowly than 64 KiB per second for
// more than 10 s, the reader disconnects the server. The rate is enforced only while held() returns true, which means
// that the message is charged to the memory budget. Only the time during which reads wait for the server counts.
//
// To disconnect the server, the reader calls cut() from another goroutine. This call must unblock the read, which then
// returns [ErrSlow].
func Pace(from io.Reader, held func() bool, cut func()) io.Reader {
	return &pacedReader{from: from, held: held, cut: cut, left: maxStall}
}

// Read implements io.Reader. Once the server has been disconnected, Read returns [ErrSlow].
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
