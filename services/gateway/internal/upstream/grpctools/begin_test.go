package grpctools_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
)

// gate forwards connections to an address. While a gate is closed, it accepts connections but forwards nothing.
type gate struct {
	net.Listener

	to       string
	mu       sync.Mutex
	open     chan struct{}
	conns    []net.Conn
	accepted chan struct{}
}

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Listener: lis, to: to, open: make(chan struct{}), accepted: make(chan struct{}, 64)}
	close(g.open)
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.conns = append(g.conns, conn)
			open := g.open
			g.mu.Unlock()
			g.accepted <- struct{}{}
			go g.forward(t.Context(), conn, open)
		}
	}()
	return g
}

func (g *gate) forward(ctx context.Context, conn net.Conn, open <-chan struct{}) {
	defer conn.Close()
	select {
	case <-open:
	case <-ctx.Done():
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", g.to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(server, conn) }()
	_, _ = io.Copy(conn, server)
}

// close closes the gate and all its connections. The returned function opens the gate again.
func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	opened := make(chan struct{})
	g.open = opened
	for len(g.accepted) > 0 {
		<-g.accepted
	}
	for _, conn := range g.conns {
		_ = conn.Close()
	}
	return func() { close(opened) }
}

// A call waits for the connection to its server. The gateway checks whether the call may begin only once there is a
// connection.
func TestCall_BeginsWhenThereIsAConnection(t *testing.T) {
	t.Parallel()
	n := newNotes(t)
	n.write = func(_ context.Context, note protoreflect.Message) (protoreflect.Message, error) {
		t.Error("the server received a call that must not begin")
		return note, nil
	}
	between := newGate(t, n.addr)
	conn := open(t, transport(t, between.Addr().String(), nil))
	opens := between.close()
	waiting, cancel := context.WithCancel(within(t))
	go func() {
		for waiting.Err() == nil { // until the gateway notices that the connection has ended, a call fails at once
			_, _ = conn.Request(waiting, call(t, "note_write", `{"noteId":"a"}`), nil)
		}
	}()
	<-between.accepted // the gateway has begun another connection, whose handshake waits
	cancel()
	stopped, errs := errors.New("an operator has stopped the call"), make(chan error, 1)
	var opened, early atomic.Bool
	req := call(t, "note_write", `{"noteId":"a"}`)
	req.Permit = upstreamtest.Permit{Begin: func() error {
		early.Store(!opened.Load())
		return stopped
	}}
	go func() {
		_, err := conn.Request(within(t), req, nil)
		errs <- err
	}()
	<-time.After(100 * time.Millisecond) // enough for a call that does not wait; any other call waits for opens
	opened.Store(true)
	opens()
	if err := <-errs; !errors.Is(err, stopped) || !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("the call is %v, want that it was never sent because it was stopped", err)
	}
	if early.Load() {
		t.Error("the call began without a connection")
	}
}
