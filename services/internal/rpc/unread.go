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
	// readWithin is how long an answer on a connection may stay unread. The client gets another second for every
	// readRate bytes that it reads.
	readWithin = 10 * time.Second
	readRate   = 64 << 10
	// pieceSize is the size of the pieces into which an answer is divided. gRPC releases them one by one. minReleased
	// is the minimum capacity of a buffer that gRPC releases.
	pieceSize   = 64 << 10
	minReleased = 2 << 10
)

// An answer is a message that is sent to a caller over the network. A handler returns before gRPC has written the
// answer, and the answer stays in memory until the caller opens its flow-control window. Therefore an answer is counted
// from the time at which it is encoded until gRPC releases it. An answer serves as the buffer pool of its own pieces,
// because gRPC releases each buffer to the buffer's pool (docs/decisions/0013-grpc-resource-limits.md).
type answer struct {
	// data is the encoded message in pieces. buf is the buffer that contains all pieces.
	data mem.BufferSlice
	buf  *[]byte
	pool buffers
	// to is the connection over which the answer is sent. portion is the part of the caller's quota that the call uses, or
	// nil for an unauthenticated caller.
	to      *netPeer
	portion *callUsage
	size    int

	// The mutex of to.unread guards the following fields. since is the time at which the answer was sent. read is the
	// value of to.unread.read at that time. left is the number of pieces that gRPC has not released yet.
	since time.Time
	read  int64
	left  int
}

// answer encodes a message for the caller of ctx and counts it. For a call inside the process, it returns the message
// unchanged.
func (c *chain) answer(ctx context.Context, own *callUsage, m any) (any, error) {
	v := netPeerOf(ctx)
	if v == nil {
		return m, nil
	}
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("answer of type %T is not a protobuf message", m)
	}
	size := proto.Size(msg)
	if size > maxMessage {
		return nil, exhaustedError("an answer may have at most %d bytes, but this answer has %d: ask for less", maxMessage, size)
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
	v.unread.add(a)
	return a, nil
}

// count counts an answer against its caller's quota until uncount is called. An answer to an unauthenticated caller
// counts as one of the caller's calls.
func (a *answer) count() error {
	if a.portion == nil {
		a.to.unauthenticatedCalls.Add(1)
		return nil
	}
	return a.portion.chargeAnswer(a.size)
}

func (a *answer) uncount() {
	if a.portion == nil {
		a.to.unauthenticatedCalls.Add(-1)
		return
	}
	a.portion.releaseAnswer(a.size)
}

// cut splits text into pieces. The last piece can be up to twice as large as the others, because a separate small piece
// would be too small for gRPC to return to its pool.
func (a *answer) cut(text []byte) {
	a.left = max(1, len(text)/pieceSize)
	pieces := make([][]byte, a.left)
	for i := range pieces {
		pieces[i] = text
		if i < a.left-1 {
			pieces[i], text = text[:pieceSize], text[pieceSize:]
		}
		a.data = append(a.data, mem.NewBuffer(&pieces[i], a))
	}
}

// Get implements [mem.BufferPool]. It is not used, because gRPC takes no buffers from this pool.
func (a *answer) Get(length int) *[]byte {
	buf := make([]byte, length)
	return &buf
}

// Put implements [mem.BufferPool]. gRPC calls it after it has written a piece, or after the stream has ended.
func (a *answer) Put(piece *[]byte) {
	if a.to.unread.written(a, len(*piece)) {
		a.pool.put(a.buf)
	}
}

func send(ss grpc.ServerStream, m any) error {
	err := ss.SendMsg(m)
	if a, ok := m.(*answer); ok && err == nil && isClosed(ss) {
		a.to.unread.uncount(a) // if the stream has ended, gRPC might never release the answer
	}
	return err
}

// isClosed reports whether gRPC has closed a stream on which a message was sent. The stream's context does not show
// this, because it might be done while the stream is still open and holds the message. isClosed tries to send the
// headers again. On an open stream, that fails with a code other than the codes for a closed stream.
func isClosed(ss grpc.ServerStream) bool {
	code := status.Code(ss.SendHeader(nil))
	return code == codes.Canceled || code == codes.DeadlineExceeded
}

// codec is gRPC's codec, except that it returns an [answer] unchanged, because an answer is already encoded.
type codec struct{ encoding.CodecV2 }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return a.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// buffers provides buffers for encoded answers. Small buffers are reused.
type buffers struct{ pool mem.BufferPool }

func newBuffers() (buffers, error) {
	pool, err := mem.NewBinaryTieredBufferPool(11, 13, 14, 15, 16) // powers of two, up to the size of a piece
	if err != nil {
		return buffers{}, fmt.Errorf("make a pool of buffers: %w", err)
	}
	return buffers{pool}, nil
}

func (b buffers) get(size int) *[]byte {
	if size > pieceSize {
		buf := make([]byte, 0, size)
		return &buf
	}
	return b.pool.Get(max(size, minReleased))
}

func (b buffers) put(buf *[]byte) {
	if cap(*buf) <= pieceSize {
		b.pool.Put(buf)
	}
}

// unreadAnswers contains the answers on one connection that the client has not read yet. The zero value is empty.
// unreadAnswers is safe for concurrent use.
type unreadAnswers struct {
	closeConn func()

	mu     sync.Mutex
	unread map[*answer]struct{}
	// read is the number of bytes that gRPC has released.
	read int64
	// clock calls closeIfSlow while there are unread answers.
	clock   *time.Timer
	running bool
}

func (l *unreadAnswers) add(a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unread == nil {
		l.unread = make(map[*answer]struct{})
		l.clock = time.AfterFunc(readWithin, l.closeIfSlow)
		l.running = true
	}
	a.since, a.read = time.Now(), l.read
	l.unread[a] = struct{}{}
	if !l.running {
		l.clock.Reset(readWithin)
		l.running = true
	}
}

// written counts a piece that gRPC has released. It reports whether the piece was the last piece of the answer.
func (l *unreadAnswers) written(a *answer, size int) (last bool) {
	l.mu.Lock()
	l.read += int64(size)
	a.left--
	last = a.left == 0
	l.mu.Unlock()
	if last {
		l.uncount(a)
	}
	return last
}

// uncount removes an answer from the count. It is idempotent.
func (l *unreadAnswers) uncount(a *answer) {
	l.mu.Lock()
	_, counted := l.unread[a]
	delete(l.unread, a)
	l.mu.Unlock()
	if counted {
		a.uncount()
	}
}

// closeIfSlow closes the connection if an answer was not read in time. If all answers were read in time, it schedules
// the next check.
func (l *unreadAnswers) closeIfSlow() {
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
		l.closeConn()
	}
}

// end removes all answers from the count. It is called when the connection is closed, because gRPC does not release
// messages that are queued in the streams of a closed connection.
func (l *unreadAnswers) end() {
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

// countedConn is a connection that calls [unreadAnswers.end] when it is closed.
type countedConn struct {
	net.Conn
	line *unreadAnswers
}

// Close implements [net.Conn].
func (c countedConn) Close() error {
	err := c.Conn.Close()
	c.line.end()
	return err
}
