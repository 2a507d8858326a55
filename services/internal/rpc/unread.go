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
	// readWithin is how long an answer may wait unread on a connection. Each readRate bytes that the client reads
	// meanwhile add a second.
	readWithin = 10 * time.Second
	readRate   = 64 << 10
	// piece is the size of the pieces of an answer that gRPC releases one by one. tracked is the smallest capacity of
	// a buffer that gRPC releases at all.
	piece   = 64 << 10
	tracked = 2 << 10
)

// An answer is a message that is being sent to a caller over the network. gRPC's handlers return before any of it is
// written, and it stays in memory until the caller opens its flow-control window; so it is counted from its encoding
// until gRPC releases it. It is the buffer pool of its own pieces, because gRPC releases buffers to their pool
// (docs/decisions/0013-grpc-resource-limits.md).
type answer struct {
	// data is the encoded message in pieces, and buf the buffer that contains it.
	data mem.BufferSlice
	buf  *[]byte
	pool buffers
	// to is the connection, and portion the call's quota; nil for an unauthenticated caller.
	to      *visitor
	portion *portion
	size    int

	// The line's lock guards these. since is when the answer was sent, read how many bytes had been read by then, and
	// left the number of pieces that gRPC has not released.
	since time.Time
	read  int64
	left  int
}

// answer encodes and counts a message for the caller of ctx. Inside the process it returns the message unchanged.
func (c *chain) answer(ctx context.Context, own *portion, m any) (any, error) {
	v := visitorOf(ctx)
	if v == nil {
		return m, nil
	}
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("answer of type %T is not a protobuf message", m)
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

// count counts an answer for its caller, until uncount. That of an unauthenticated caller counts as one of its calls.
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

// cut splits the text into pieces. The last one is up to twice as large, so that no piece is too small to be released
// by gRPC.
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

// Get implements mem.BufferPool; gRPC takes no buffers from this pool.
func (a *answer) Get(length int) *[]byte {
	buf := make([]byte, length)
	return &buf
}

// Put implements mem.BufferPool: a piece was written, or its stream has ended.
func (a *answer) Put(piece *[]byte) {
	if a.to.line.written(a, len(*piece)) {
		a.pool.put(a.buf)
	}
}

// send sends an answer.
func send(ss grpc.ServerStream, m any) error {
	err := ss.SendMsg(m)
	if a, ok := m.(*answer); ok && err == nil && over(ss) {
		a.to.line.settle(a) // the stream ended meanwhile, and then gRPC may never release the answer
	}
	return err
}

// over reports whether gRPC has closed a stream on which something was sent. The stream's context does not show that:
// it may have ended while the stream is open and still holds what was sent. Sending headers again fails with one code
// on an open stream, and with others on a closed one.
func over(ss grpc.ServerStream) bool {
	code := status.Code(ss.SendHeader(nil))
	return code == codes.Canceled || code == codes.DeadlineExceeded
}

// codec is gRPC's own codec, except for answers, which are encoded already.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return a.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// buffers provides the buffers for encoded answers; small ones are reused.
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

// A line contains the answers that one connection was sent and has not read. The zero line is empty. It is safe for
// concurrent use.
type line struct {
	// hangUp closes the connection.
	hangUp func()

	mu     sync.Mutex
	unread map[*answer]struct{}
	// read is how many bytes gRPC has released.
	read int64
	// clock calls look while there are unread answers.
	clock   *time.Timer
	running bool
}

// add adds an answer that is about to be sent.
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

// written counts a released piece, and reports whether it was the last one.
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

// settle uncounts an answer. It is idempotent.
func (l *line) settle(a *answer) {
	l.mu.Lock()
	_, counted := l.unread[a]
	delete(l.unread, a)
	l.mu.Unlock()
	if counted {
		a.uncount()
	}
}

// look closes the connection if an answer was not read in time, and otherwise schedules the next look.
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

// end uncounts all answers: the connection is closed, and gRPC does not release what its streams had queued.
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

// lined is a connection that ends its line when it is closed.
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
