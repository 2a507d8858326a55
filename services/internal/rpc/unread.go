package rpc

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// readWithin is how long what a connection was sent may lie here unread. Each
	// readRate bytes that it has read meanwhile give it a second more.
	readWithin = 10 * time.Second
	readRate   = 64 << 10
	// piece is how much of an answer gRPC gives back at a time, and tracked the least
	// capacity of a buffer that it gives back at all.
	piece   = 64 << 10
	tracked = 2 << 10
)

// An answer is a message on its way to a caller over the network. gRPC's handlers
// return before any of it is written, and it lies here for as long as the caller opens
// no window for it; so it is counted from when it is encoded until gRPC needs it no
// more. It is the pool of its own pieces, for that is whom gRPC tells
// (docs/decisions/0013-grpc-resource-limits.md).
type answer struct {
	// data is the text in pieces, and buf what it was encoded into.
	data mem.BufferSlice
	buf  *[]byte
	pool buffers
	// to is the connection, and portion the call's; nil for one of nobody known.
	to      *visitor
	portion *portion
	size    int

	// The line's lock guards these. since is when it was sent and read how much had been
	// read then; left are its pieces that were not given back.
	since time.Time
	read  int64
	left  int
}

// answer encodes a message that is to be sent to the caller of ctx, and counts it as its
// own; inside the process it is sent as it is.
func (c *chain) answer(ctx context.Context, own *portion, m any) (any, error) {
	v := visitorOf(ctx)
	if v == nil {
		return m, nil
	}
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("answer of type %T is no protobuf message", m)
	}
	size := proto.Size(msg)
	if size > maxMessage {
		return nil, exhausted("an answer has at most %d bytes, this one %d: ask for less", maxMessage, size)
	}
	a := &answer{to: v, portion: own, size: size, pool: c.buffers}
	if err := a.count(); err != nil {
		return nil, err
	}
	a.buf = a.pool.get(size)
	text, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*a.buf)[:0], msg)
	if err != nil {
		a.uncount()
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	a.cut(text)
	v.line.add(a)
	return a, nil
}

// count counts an answer for its caller, until uncount. A stranger's is one of its calls.
func (a *answer) count() error {
	if a.portion == nil {
		a.to.strangers.Add(1)
		return nil
	}
	return a.portion.answer(a.size)
}

func (a *answer) uncount() {
	if a.portion == nil {
		a.to.strangers.Add(-1)
		return
	}
	a.portion.read(a.size)
}

// cut cuts the text into pieces, the last of which is up to twice as large, so that
// none is too small to be given back.
func (a *answer) cut(text []byte) {
	a.left = max(1, len(text)/piece)
	pieces := make([][]byte, a.left)
	for i := range pieces {
		pieces[i] = text
		if i < a.left-1 {
			pieces[i], text = text[:piece], text[piece:]
		}
		a.data = append(a.data, mem.NewBuffer(&pieces[i], a))
	}
}

// Get implements mem.BufferPool; gRPC takes nothing from this one.
func (a *answer) Get(length int) *[]byte {
	buf := make([]byte, length)
	return &buf
}

// Put implements mem.BufferPool: a piece was written, or its stream is gone.
func (a *answer) Put(piece *[]byte) {
	if a.to.line.written(a, len(*piece)) {
		a.pool.put(a.buf)
	}
}

// send sends an answer.
func send(ss grpc.ServerStream, m any) error {
	err := ss.SendMsg(m)
	if a, ok := m.(*answer); ok && err == nil && over(ss) {
		a.to.line.settle(a) // the stream went while it was sent, and then gRPC may forget to give it back
	}
	return err
}

// over reports whether gRPC has closed a stream that something was sent on. Its context does not:
// that may have ended while the stream goes on, and holds what it was sent. Headers that are
// sent a second time are refused in one way on a stream that goes on, and in others on one that
// does not.
func over(ss grpc.ServerStream) bool {
	code := status.Code(ss.SendHeader(nil))
	return code == codes.Canceled || code == codes.DeadlineExceeded
}

// codec is gRPC's own, but for answers, which are encoded already.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return a.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// buffers are of what answers are encoded into: the small ones are used again.
type buffers struct{ pool mem.BufferPool }

func newBuffers() (buffers, error) {
	pool, err := mem.NewBinaryTieredBufferPool(11, 13, 14, 15, 16) // up to a piece
	if err != nil {
		return buffers{}, fmt.Errorf("make a pool of buffers: %w", err)
	}
	return buffers{pool}, nil
}

func (b buffers) get(size int) *[]byte {
	if size > piece {
		buf := make([]byte, 0, size)
		return &buf
	}
	return b.pool.Get(max(size, tracked))
}

func (b buffers) put(buf *[]byte) {
	if cap(*buf) <= piece {
		b.pool.Put(buf)
	}
}

// A line is what one connection was sent and has not read. The zero line is empty. It
// is safe for concurrent use.
type line struct {
	// hangUp closes the connection.
	hangUp func()

	mu     sync.Mutex
	unread map[*answer]struct{}
	// read is how many bytes gRPC has given back.
	read int64
	// clock looks for what lies here for too long, while there is something.
	clock   *time.Timer
	running bool
}

// add notes an answer that is about to be sent.
func (l *line) add(a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unread == nil {
		l.unread = make(map[*answer]struct{})
		l.clock = time.AfterFunc(readWithin, l.look)
		l.running = true
	}
	a.since, a.read = time.Now(), l.read
	l.unread[a] = struct{}{}
	if !l.running {
		l.clock.Reset(readWithin)
		l.running = true
	}
}

// written notes that gRPC gave a piece back, and reports whether it was the last one.
func (l *line) written(a *answer, size int) (last bool) {
	l.mu.Lock()
	l.read += int64(size)
	a.left--
	last = a.left == 0
	l.mu.Unlock()
	if last {
		l.settle(a)
	}
	return last
}

// settle ends the counting of an answer; twice is once.
func (l *line) settle(a *answer) {
	l.mu.Lock()
	_, counted := l.unread[a]
	delete(l.unread, a)
	l.mu.Unlock()
	if counted {
		a.uncount()
	}
}

// look hangs up if an answer has not been read in time, and else looks again when the
// next one may be late.
func (l *line) look() {
	l.mu.Lock()
	now := time.Now()
	next := readWithin
	for a := range l.unread {
		earned := time.Duration((l.read-a.read)/readRate) * time.Second
		next = min(next, a.since.Add(readWithin+earned).Sub(now))
	}
	if l.running = len(l.unread) > 0; l.running && next > 0 {
		l.clock.Reset(next)
	}
	l.mu.Unlock()
	if next <= 0 {
		l.hangUp()
	}
}

// end ends the counting of all answers: the connection is closed, and gRPC does not
// give back what its streams had queued.
func (l *line) end() {
	l.mu.Lock()
	left := l.unread
	l.unread = nil
	if l.clock != nil {
		l.clock.Stop()
	}
	l.mu.Unlock()
	for a := range left {
		a.uncount()
	}
}

// lined is a connection whose line ends with it.
type lined struct {
	net.Conn
	line *line
}

// Close implements net.Conn.
func (c lined) Close() error {
	err := c.Conn.Close()
	c.line.end()
	return err
}
