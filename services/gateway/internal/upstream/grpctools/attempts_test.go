package grpctools_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
)

// refuser forwards HTTP/2 connections to a gRPC server. For a given number of streams, it does not forward the
// messages, and tells the client that the server has not processed these streams.
type refuser struct {
	net.Listener

	to string
	// refuse writes the frames that the client receives for a stream in place of an answer.
	refuse func(to *http2.Framer, stream uint32) error
	// remaining is the number of streams that refuser must still refuse.
	remaining atomic.Int64
}

func newRefuser(t *testing.T, to string, refuse func(*http2.Framer, uint32) error) *refuser {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &refuser{Listener: lis, to: to, refuse: refuse}
	var forwarding sync.WaitGroup
	t.Cleanup(func() {
		_ = lis.Close()
		forwarding.Wait()
	})
	forwarding.Go(func() {
		for {
			client, err := lis.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { r.forward(client) })
			context.AfterFunc(t.Context(), func() { _ = client.Close() })
		}
	})
	return r
}

// forward forwards data on one connection until one of its ends is closed.
func (r *refuser) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer server.Close()
	var mu sync.Mutex // frames to the client are written as a whole
	go func() {
		defer client.Close()
		for {
			_, frame, err := readFrame(server)
			if err != nil {
				return
			}
			mu.Lock()
			_, err = client.Write(frame)
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	if _, err := io.CopyN(server, client, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	for {
		header, frame, err := readFrame(client)
		if err == nil {
			err = r.forwardFrame(client, server, &mu, header, frame)
		}
		if err != nil {
			return
		}
	}
}

// forwardFrame forwards a frame from the client. If the frame contains a message and streams must still be refused,
// forwardFrame refuses the frame's stream instead.
func (r *refuser) forwardFrame(client, server net.Conn, mu *sync.Mutex, header http2.FrameHeader, frame []byte) error {
	if header.Type != http2.FrameData || header.Length == 0 || r.remaining.Load() == 0 {
		_, err := server.Write(frame)
		return err
	}
	r.remaining.Add(-1)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(
		r.refuse(http2.NewFramer(client, nil), header.StreamID),
		http2.NewFramer(server, nil).WriteRSTStream(header.StreamID, http2.ErrCodeCancel),
	)
}

// readFrame reads one frame. It returns the frame's header and the whole frame.
func readFrame(from io.Reader) (http2.FrameHeader, []byte, error) {
	var frame bytes.Buffer
	header, err := http2.ReadFrameHeader(io.TeeReader(from, &frame))
	if err != nil {
		return header, nil, err
	}
	_, err = io.CopyN(&frame, from, int64(header.Length))
	return header, frame.Bytes(), err
}

var refusals = map[string]func(*http2.Framer, uint32) error{
	"GOAWAY": func(to *http2.Framer, _ uint32) error { return to.WriteGoAway(0, http2.ErrCodeNo, nil) },
	"a refused stream": func(to *http2.Framer, stream uint32) error {
		return to.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
	},
}

// received returns a counter of the calls that the server receives.
func (n *notes) received() *atomic.Int64 {
	var count atomic.Int64
	n.write = func(_ context.Context, note protoreflect.Message) (protoreflect.Message, error) {
		count.Add(1)
		return note, nil
	}
	return &count
}

// The server does not process a call. Before the gateway sends the call again, an operator stops it. The server never
// receives the call.
func TestCall_UnprocessedCallIsNotSentAgainAfterAStop(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotes(t)
			received := n.received()
			between := newRefuser(t, n.addr, refuse)
			conn := open(t, transport(t, between.Addr().String(), nil))
			between.remaining.Store(1)
			stopped := errors.New("an operator has stopped the call")
			req := call(t, "note_write", `{"noteId":"a"}`)
			req.Permit = upstreamtest.Permit{Begin: func() error {
				if between.remaining.Load() == 0 {
					return stopped
				}
				return nil
			}}
			_, err := conn.Request(within(t), req, nil)
			if !errors.Is(err, stopped) || !errors.Is(err, upstream.ErrNeverSent) || !errors.Is(err, upstream.ErrWithheld) {
				t.Errorf("the call is %v, want that it was never sent because it was stopped", err)
			}
			if received.Load() != 0 {
				t.Error("the server received the stopped call")
			}
		})
	}
}

// The server does not process a call at first. The gateway sends it again, and the server processes it once.
func TestCall_UnprocessedCallIsSentAgainWithARenewedPermit(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotes(t)
			received := n.received()
			between := newRefuser(t, n.addr, refuse)
			conn := open(t, transport(t, between.Addr().String(), nil))
			between.remaining.Store(2)
			renewed := 0
			req := call(t, "note_write", `{"noteId":"a"}`)
			req.Permit = upstreamtest.Permit{Begin: func() error {
				if between.remaining.Load() == 0 {
					renewed++
				}
				return nil
			}}
			answer, err := conn.Request(within(t), req, nil)
			if err != nil || resultOf(t, answer).IsError || received.Load() != 1 || renewed == 0 {
				t.Errorf("%v, the server received the call %d times after %d renewals", err, received.Load(), renewed)
			}
		})
	}
}

// If the server never processes a call, the call is reported as never sent.
func TestCall_IsNeverSentIfTheServerRefusesEachAttempt(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotes(t)
			received := n.received()
			between := newRefuser(t, n.addr, refuse)
			conn := open(t, transport(t, between.Addr().String(), nil))
			between.remaining.Store(100)
			_, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil)
			if !errors.Is(err, upstream.ErrNeverSent) || errors.Is(err, upstream.ErrUnreached) || received.Load() != 0 || between.remaining.Load() != 97 {
				t.Errorf("%v, sent %d times, received %d times", err, 100-between.remaining.Load(), received.Load())
			}
			between.remaining.Store(0)
			if _, err := conn.Request(within(t), call(t, "note_write", `{"noteId":"a"}`), nil); err != nil || received.Load() != 1 {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// Approvers have allowed a call to be executed once. The server reports that it has not processed the call, but this
// report may be wrong. The gateway does not send the call again, and the outcome of the call is unknown.
func TestCall_IsSentOnceIfItMayRunOnce(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotes(t)
			received := n.received()
			between := newRefuser(t, n.addr, refuse)
			conn := open(t, transport(t, between.Addr().String(), nil))
			between.remaining.Store(100)
			req := call(t, "note_write", `{"noteId":"a"}`)
			req.Once = true
			_, err := conn.Request(within(t), req, nil)
			if sent := 100 - between.remaining.Load(); sent != 1 || !errors.Is(err, upstream.ErrNoAnswer) || errors.Is(err, upstream.ErrNeverSent) {
				t.Errorf("the call was sent %d times: %v", sent, err)
			}
			between.remaining.Store(0)
			if _, err := conn.Request(within(t), req, nil); err != nil || received.Load() != 1 {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}
