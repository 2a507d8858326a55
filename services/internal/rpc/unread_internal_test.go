package rpc

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Case X3. A client that has not read an answer within 10 s is disconnected. It gets more time only if it reads 64 KiB
// in each further second.
func TestLine_ClosesConnectionOfSlowReader(t *testing.T) {
	t.Parallel()
	const large = 4 << 20
	for _, tt := range []struct {
		name string
		// pause is the time after which the client begins to read. The field every is the time that the client takes to
		// read a piece.
		pause, every time.Duration
		want         bool
	}{
		{"nothing is read", time.Hour, time.Second, true},
		{"read at once", 0, time.Millisecond, false},
		{"read after 9 s", 9 * time.Second, 900 * time.Millisecond, false},
		{"read after 11 s", 11 * time.Second, time.Millisecond, true},
		{"as slow as may be", 0, time.Second, false},
		{"slower", 0, 1500 * time.Millisecond, true},
	} {
		t.Run("X3 "+tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var cut atomic.Bool
				v := new(netPeer)
				v.unread.closeConn = func() { cut.Store(true) }
				c := &chain{buffers: newTestBuffers(t)}
				a := &answer{to: v, size: large, pool: c.buffers}
				_ = a.count()
				a.buf = a.pool.get(large)
				a.cut((*a.buf)[:large])
				v.unread.add(a)
				time.Sleep(tt.pause)
				for _, piece := range a.data {
					time.Sleep(tt.every)
					if cut.Load() {
						break
					}
					piece.Free()
				}
				if cut.Load() != tt.want {
					t.Errorf("cut off is %t, want %t", cut.Load(), tt.want)
				}
				v.unread.end()
				if n := v.unauthenticatedCalls.Load(); n != 0 {
					t.Errorf("%d answers are still counted", n)
				}
			})
		})
	}
}

// Case X3. A client reads bytes before an answer is sent. It gets no additional time for reading the answer.
func TestLine_EarlierReadingGivesNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Pointer[time.Time]
		v := new(netPeer)
		v.unread.closeConn = func() { cut.Store(new(time.Now())) }
		send := func(size int) *answer {
			a := &answer{to: v, size: size, pool: newTestBuffers(t)}
			_ = a.count()
			a.buf = a.pool.get(size)
			a.cut((*a.buf)[:size])
			v.unread.add(a)
			return a
		}
		for _, piece := range send(8 << 20).data {
			piece.Free()
		}
		time.Sleep(time.Minute)
		begin := time.Now()
		send(10)
		time.Sleep(time.Minute)
		if took := cut.Load().Sub(begin); took != readWithin {
			t.Errorf("the connection was closed after %v, want %v", took, readWithin)
		}
		v.unread.end()
	})
}

// sentOn is a stream on which a message has been sent and whose context is done.
type sentOn struct {
	grpc.ServerStream
	header error
}

func (s sentOn) Context() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	cancel()
	return ctx
}
func (s sentOn) SendMsg(any) error            { return nil }
func (s sentOn) SendHeader(metadata.MD) error { return s.header }

// Case X3. The context of a call is done. The answers that were sent on the call's stream count as unread until gRPC
// has closed the stream.
func TestSend_CountsAnswersUntilStreamIsClosed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header error
		want   int32
	}{
		"it goes on":      {status.Error(codes.Internal, "transport: SendHeader called multiple times"), 1},
		"its caller went": {status.Error(codes.Canceled, ""), 0},
		"its time is up":  {status.Error(codes.DeadlineExceeded, ""), 0},
	} {
		v := new(netPeer)
		a := &answer{to: v, size: 10, pool: newTestBuffers(t)}
		_ = a.count()
		a.buf = a.pool.get(10)
		a.cut((*a.buf)[:10])
		v.unread.add(a)
		if err := send(sentOn{header: c.header}, a); err != nil {
			t.Error(err)
		}
		if n := v.unauthenticatedCalls.Load(); n != c.want {
			t.Errorf("%s: %d answers are counted, want %d", name, n, c.want)
		}
		v.unread.end()
	}
}

func newTestBuffers(t *testing.T) buffers {
	t.Helper()
	b, err := newBuffers()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
