//go:build unix

package httpclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// echoServer answers each request with the request's body. conns receives the server's end of each connection.
type echoServer struct {
	conns    chan net.Conn
	received atomic.Int64
}

// newEchoServer returns an echo server, a client that has one idle connection to the server, and the head for requests.
func newEchoServer(t *testing.T) (*echoServer, *Client, *Head) {
	t.Helper()
	s := &echoServer{conns: make(chan net.Conn, 16)}
	server := httptest.NewUnstartedServer(nil)
	lis := server.Listener
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			s.conns <- conn
			go s.serve(conn)
		}
	}()
	client, head := clientFor(t, server, &url.URL{Scheme: "http", Host: lis.Addr().String()})
	if got, err := send(t, client, head, nil, "first"); err != nil || got != "first" {
		t.Fatalf("%q, %v", got, err)
	}
	return s, client, head
}

func (s *echoServer) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		s.received.Add(1)
		if _, err := io.WriteString(conn, responseWith(string(body))); err != nil {
			return
		}
	}
}

func responseWith(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// send sends a request and returns the body of the response.
func send(t *testing.T, client *Client, head *Head, begin func() error, body string) (string, error) {
	t.Helper()
	resp, err := client.SendWhen(t.Context(), begin, head, nil, []byte(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return string(got), err
}

// The function begin takes some time, and meanwhile the server closes the idle connection. The client calls begin again
// and sends the request once, on another connection.
func TestSendWhen_UsesAnotherConnectionIfTheServerClosesTheFirstDuringBegin(t *testing.T) {
	t.Parallel()
	server, client, head := newEchoServer(t)
	conn, begun := client.idle[0], 0
	got, err := send(t, client, head, func() error {
		if begun++; begun == 1 {
			_ = (<-server.conns).Close()
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // waits until the client's end is closed
				t.Errorf("read a closed connection: %v", err)
			}
		}
		return nil
	}, "second")
	if err != nil || got != "second" || begun != 2 || server.received.Load() != 2 {
		t.Errorf("%q, %v; begin was called %d times, and the server received %d requests", got, err, begun, server.received.Load())
	}
}

// The server closes the connection while the function begin is running. The client calls begin again. This time, begin
// does not allow the request, so nothing is sent.
func TestSendWhen_SendsNothingIfTheSecondBeginFails(t *testing.T) {
	t.Parallel()
	server, client, head := newEchoServer(t)
	conn, begun, withheld := client.idle[0], 0, errors.New("withheld")
	_, err := send(t, client, head, func() error {
		if begun++; begun == 2 {
			return withheld
		}
		_ = (<-server.conns).Close()
		_, _ = conn.Read(make([]byte, 1)) // waits until the client's end is closed
		return nil
	}, "second")
	if !errors.Is(err, withheld) || !errors.Is(err, ErrNeverSent) || server.received.Load() != 1 {
		t.Errorf("%v; begin was called %d times, and the server received %d requests", err, begun, server.received.Load())
	}
}

// The server sends a response while the function begin is running, before it has received the request. The client must
// not treat that response as the answer to the request.
func TestSendWhen_IgnoresAResponseThatArrivesDuringBegin(t *testing.T) {
	t.Parallel()
	server, client, head := newEchoServer(t)
	conn, begun := client.idle[0], 0
	got, err := send(t, client, head, func() error {
		if begun++; begun == 1 {
			if _, err := io.WriteString(<-server.conns, "\r\n\r\n"+responseWith("forged")); err != nil {
				t.Error(err)
			}
			for conn.alive() { // until the first byte has arrived, which alive reads
			}
		}
		return nil
	}, "second")
	if err != nil || got != "second" || begun != 2 || server.received.Load() != 2 {
		t.Errorf("%q, %v; begin was called %d times, and the server received %d requests", got, err, begun, server.received.Load())
	}
}

// The server closes the connection each time that the function begin is running. The request is not sent.
func TestSendWhen_GivesUpIfTheServerClosesEachConnectionDuringBegin(t *testing.T) {
	t.Parallel()
	server, client, head := newEchoServer(t)
	var conn net.Conn = client.idle[0]
	dial := client.transport.DialContext
	client.transport.DialContext = func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		conn, err = dial(ctx, network, address)
		return conn, err
	}
	begun := 0
	_, err := send(t, client, head, func() error {
		begun++
		_ = (<-server.conns).Close()
		_, _ = conn.Read(make([]byte, 1)) // waits until the client's end is closed
		return nil
	}, "second")
	if !errors.Is(err, ErrNeverSent) || !errors.Is(err, ErrUnreached) || server.received.Load() != 1 {
		t.Errorf("%v; begin was called %d times, and the server received %d requests", err, begun, server.received.Load())
	}
}

// Over TLS, net/http manages the connection. If the server closes the connection while the function begin is running,
// the request fails and is not sent on another connection.
func TestSendWhen_NeverSendsTwiceOverTLS(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var received atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
					received.Add(1)
				}
			}))
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()
			at, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			client, head := clientFor(t, server, at)
			if _, err := send(t, client, head, nil, "first"); err != nil {
				t.Fatal(err)
			}
			begun := 0
			_, err = send(t, client, head, func() error {
				begun++
				server.CloseClientConnections()
				return nil
			}, "second")
			if err == nil || begun != 1 || received.Load() != 1 {
				t.Errorf("%v; begin was called %d times, and the server received %d requests", err, begun, received.Load())
			}
		})
	}
}

// A connection has been idle for too long, or the server has closed it. The client opens a new connection, and the
// function begin does not allow the request. The client must not call begin for the old connection, and must not keep
// that connection.
func TestSendWhen_KeepsNoUnusableConnectionIfBeginFails(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*clientConn, net.Conn){
		"idle for too long": func(conn *clientConn, _ net.Conn) { conn.since = time.Now().Add(-2 * time.Minute) },
		"closed": func(conn *clientConn, server net.Conn) {
			_ = server.Close()
			_, _ = conn.Read(make([]byte, 1)) // waits until the client's end is closed
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client, head := newEchoServer(t)
			old := client.idle[0]
			spoil(old, <-server.conns)
			dialed, dial := 0, client.transport.DialContext
			client.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				dialed++
				return dial(ctx, network, address)
			}
			withheld := errors.New("withheld")
			_, err := send(t, client, head, func() error {
				if dialed == 0 {
					t.Error("begin was called before there was a new connection")
				}
				return withheld
			}, "second")
			if !errors.Is(err, withheld) || slices.Contains(client.idle, old) {
				t.Errorf("%v; the old connection is kept: %t", err, slices.Contains(client.idle, old))
			}
			if got, err := send(t, client, head, nil, "third"); err != nil || got != "third" {
				t.Errorf("%q, %v", got, err)
			}
			if len(client.idle) != 1 || client.idle[0] == old {
				t.Errorf("the idle connections are %v, want the new one", client.idle)
			}
		})
	}
}

// The function begin does not allow the request, so the client does not use the connection. The connection's idle time
// must not be reset.
func TestSendWhen_ConnectionGetsNoYoungerIfBeginFails(t *testing.T) {
	t.Parallel()
	_, client, head := newEchoServer(t)
	conn, since := client.idle[0], time.Now().Add(-time.Minute)
	conn.since = since
	withheld := errors.New("withheld")
	_, err := send(t, client, head, func() error {
		if got, err := send(t, client, head, nil, "meanwhile"); err != nil || got != "meanwhile" {
			t.Errorf("%q, %v", got, err)
		}
		return withheld
	}, "second")
	if !errors.Is(err, withheld) || !conn.since.Equal(since) {
		t.Errorf("%v; the connection is idle since %v, want %v", err, conn.since, since)
	}
	if len(client.idle) != 2 || client.idle[0] != conn {
		t.Errorf("the idle connections are %v, want the old one first", client.idle)
	}
}

// The server closes the connection while the function begin is running, and begin does not allow the request. The
// client closes its end of the connection, too.
func TestSendWhen_ClosesAConnectionThatEndsDuringAFailedBegin(t *testing.T) {
	t.Parallel()
	server, client, head := newEchoServer(t)
	conn, withheld := client.idle[0], errors.New("withheld")
	_, err := send(t, client, head, func() error {
		_ = (<-server.conns).Close()
		_, _ = conn.Read(make([]byte, 1)) // waits until the client's end is closed
		return withheld
	}, "second")
	if !errors.Is(err, withheld) || len(client.idle) != 0 {
		t.Errorf("%v; %d connections are idle", err, len(client.idle))
	}
}
