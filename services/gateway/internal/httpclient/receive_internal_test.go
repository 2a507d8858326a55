package httpclient

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// Case X3. The operating system buffers only a limited part of an unread response, even if the client has read earlier
// responses quickly.
func TestClient_SystemBuffersLittleOfUnreadResponses(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	var sent atomic.Int64
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
		piece := make([]byte, 64<<10)
		for err == nil {
			var n int
			n, err = conn.Write(piece)
			sent.Add(int64(n))
		}
	}()
	conn, err := newTransport("127.0.0.1").DialContext(t.Context(), "tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	read, err := io.CopyN(io.Discard, conn, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	for last := int64(-1); last != sent.Load(); <-time.After(100 * time.Millisecond) {
		last = sent.Load()
	}
	unread := sent.Load() - read
	t.Logf("%d KiB came unread", unread>>10)
	if unread > 4*receiveBuffer {
		t.Errorf("%d bytes came unread", unread)
	}
}
