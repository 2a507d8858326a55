package streamable

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Case U1. A server sends endless output before or instead of the answer. For each way of sending a request, the
// request fails at a limit.
func TestRequest_CutsOffEndlessOutput(t *testing.T) {
	t.Parallel()
	const (
		head   = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
		stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
		slack  = 40 << 20 // system buffers on both sides: Linux may hold up to 32 MiB for the receiver
	)
	for name, tt := range map[string]struct {
		begin, again string
		most         int64
	}{
		"a status line":              {"HTTP/1.1 200 ", "O", slack},
		"a field of the head":        {head + "X: ", strings.Repeat("x", 1<<10), slack},
		"fields of the head":         {head, "X: y\r\n", slack},
		"interim responses":          {"", "HTTP/1.1 100 Continue\r\n\r\n", slack},
		"early hints":                {"", "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n", slack},
		"a chunk's extension":        {head + "Transfer-Encoding: chunked\r\n\r\n1;", strings.Repeat("x", 1<<10), slack},
		"chunks of a byte":           {head + "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("1;xxxxxxxxxxxxxxxx\r\n \r\n", 100), 8 * upstream.MaxMessage},
		"trailers":                   {head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", "X: y\r\n", slack},
		"blanks":                     {head + "\r\n", strings.Repeat(" ", 1<<10), upstream.MaxMessage + slack},
		"a line of a stream":         {stream, strings.Repeat("x", 1<<10), upstream.MaxMessage + slack},
		"comments":                   {stream, strings.Repeat(": x\n", 100), upstream.MaxMessage + slack},
		"a comment in each event":    {stream, strings.Repeat(": "+strings.Repeat("x", 1<<10)+"\n\n", 10), upstream.MaxStream + slack},
		"events that are no message": {stream, "event: ping\ndata: " + strings.Repeat("x", 1<<20) + "\n\n", upstream.MaxStream + slack},
		"empty events":               {stream, strings.Repeat("\n", 100), upstream.MaxStream + slack},
		"large events":               {stream, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("x", 1<<20) + `"}}` + "\n\n", upstream.MaxStream + slack},
	} {
		for way, blanks := range map[string]int{"a small request": 0, "a large request": httpclient.MaxRequest} {
			t.Run(name+" for "+way, func(t *testing.T) {
				t.Parallel()
				url, sent := endless(t, tt.begin, tt.again)
				server, err := New(Config{Name: "s", URL: url}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				all, err := limits.NewBudget(limits.AnswerQuotas())
				if err != nil {
					t.Fatal(err)
				}
				c := &conn{server: server, reopening: make(chan struct{}, 1)}
				c.state.Store(new(negotiated))
				req := written(`{"jsonrpc":"2.0","id":1,"method":"m"}` + strings.Repeat(" ", blanks))
				req.Room = all.Open(&limits.Owner{Server: "s"})
				defer req.Room.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				_, err = c.Request(ctx, req, func([]byte) {})
				t.Logf("%d KiB within %v: %.200v", sent.Load()>>10, time.Since(begin).Round(time.Millisecond), err)
				if err == nil || errors.Is(err, upstream.ErrTimeout) || sent.Load() > tt.most {
					t.Errorf("after %d bytes: %.200v", sent.Load(), err)
				}
			})
		}
	}
}

// endless starts a server that answers every request with the string begin, followed by endless repetitions of the
// string repeated. sent is the number of bytes sent.
func endless(t *testing.T, begin, repeated string) (url string, sent *atomic.Int64) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	sent = new(atomic.Int64)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				go io.Copy(io.Discard, conn)
				n, err := io.WriteString(conn, begin)
				piece := strings.Repeat(repeated, 1+(64<<10)/len(repeated))
				for ; err == nil; n, err = io.WriteString(conn, piece) {
					sent.Add(int64(n))
				}
			}()
		}
	}()
	return "http://" + lis.Addr().String(), sent
}
