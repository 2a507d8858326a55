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
	"sync/atomic"
	"testing"
)

// echoServer answers each request with the request's body. conns contains the server's end of each connection.
type echoServer struct {
	conns    chan net.Conn
	received atomic.Int64
}

// newEchoServer returns a server and a client for it that has one idle connection.
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

// begin takes some time, and the server closes the idle connection meanwhile. The request is sent once, on another
// connection, after begin was called again.
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

// The server closes the connection during begin, and begin does not allow the request any more when it is called again.
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

// The server sends a response during begin, before it has the request. That response is not the answer to the request.
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

// The server closes each connection during begin. The request is not sent.
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

// Over TLS, net/http uses the connection. If the server closes the connection during begin, the request fails and is not
// sent on another connection.
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
