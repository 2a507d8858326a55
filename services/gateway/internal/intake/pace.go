package intake

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

const (
	// patience is how long a server may be waited for that has begun a message which
	// takes room, and slowest how many bytes earn another second of it.
	patience = 10 * time.Second
	slowest  = 64 << 10
)

// ErrSlow means that a server was cut off because it sends a large message too slowly:
// others may need the room that it takes. Compare with errors.Is.
var ErrSlow = errors.New("the server sent a large answer too slowly: less than 64 KiB a second, for 10 s")

// pace is what [Pace] returns.
type pace struct {
	from io.Reader
	held func() bool
	cut  func()

	left  time.Duration
	timer *time.Timer
	late  atomic.Bool
}

// Pace reads what a server sends, and cuts it off where that takes room, which held tells
// of the message at hand, and comes more slowly than 64 KiB a second, beyond 10 s. Only
// the time counts in which the server is waited for: not that in which nothing is read. A
// message that takes no room may come as slowly as its server likes. To cut off, cut is
// called from another goroutine, which ends the reading; then its error is [ErrSlow].
func Pace(from io.Reader, held func() bool, cut func()) io.Reader {
	return &pace{from: from, held: held, cut: cut, left: patience}
}

// Read implements io.Reader. Once the server was cut off the error is [ErrSlow].
func (p *pace) Read(to []byte) (int, error) {
	if !p.held() {
		p.left = patience
		return p.from.Read(to)
	}
	p.start()
	begin := time.Now()
	n, err := p.from.Read(to)
	p.timer.Stop()
	earned := time.Duration(n) * time.Second / slowest
	p.left = max(0, min(patience, p.left-time.Since(begin)+earned))
	if p.late.Load() {
		return n, ErrSlow
	}
	return n, err
}

// start begins to wait for the server.
func (p *pace) start() {
	if p.timer != nil {
		p.timer.Reset(p.left)
		return
	}
	p.timer = time.AfterFunc(p.left, func() {
		p.late.Store(true)
		p.cut()
	})
}
