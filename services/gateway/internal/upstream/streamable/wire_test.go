package streamable_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// rawServer starts a server that passes each connection to handle. number counts the connections and starts at 1.
func rawServer(t *testing.T, handle func(number int, conn net.Conn, in *bufio.Reader)) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for number := 1; ; number++ {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(number, conn, bufio.NewReader(conn))
			}()
		}
	}()
	return "http://" + lis.Addr().String()
}

// nextID reads the next request and returns its id. It returns false when the connection is closed.
func nextID(in *bufio.Reader) (id string, ok bool) {
	req, err := http.ReadRequest(in)
	if err != nil {
		return "", false
	}
	body, err := io.ReadAll(req.Body)
	_, id, _ = strings.Cut(string(body), `"id":`)
	id, _, _ = strings.Cut(id, ",")
	return id, err == nil
}

func raw(id, result string) string {
	body := `{"jsonrpc":"2.0","id":` + id + `,"result":` + result + `}`
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

const greeting = `{"protocolVersion":"2025-11-25","capabilities":{}}`

// A server sends additional bytes after an answer. These bytes are not mistaken for the answer to the next request.
func TestRequest_IgnoresBytesBeforeTheRequest(t *testing.T) {
	t.Parallel()
	url := rawServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
		for {
			id, ok := nextID(in)
			if !ok {
				return
			}
			_, _ = io.WriteString(conn, raw(id, greeting)+raw("2", `{"planted":true}`))
		}
	})
	conn := openHTTP(t, url)
	answer, err := conn.Request(within(t, soon), message("tools/call", "2"), nil)
	if err != nil || strings.Contains(string(answer.Message.Raw), "planted") {
		t.Errorf("got %v and an answer that was there before its request", err)
	}
}

func TestRequest_ReadsUnusualHeads(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before string
		want   error
	}{
		"an interim answer before":  {"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", nil},
		"another protocol":          {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", upstream.ErrNoAnswer},
		"no end of a head":          {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20), upstream.ErrNoAnswer},
		"no end of interim answers": {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 1<<15), upstream.ErrNoAnswer},
		"no HTTP":                   {"SSH-2.0-x\r\n", upstream.ErrNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := rawServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				for {
					id, ok := nextID(in)
					if !ok {
						return
					}
					if id == "1" {
						_, _ = io.WriteString(conn, tc.before)
					}
					_, _ = io.WriteString(conn, raw(id, greeting))
				}
			})
			conn := openHTTP(t, url)
			if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := conn.Request(within(t, soon), message("tools/call", "2"), nil); err != nil {
				t.Errorf("the next request got %v", err)
			}
		})
	}
}

// No request is lost if the server has closed an idle connection, or has announced that it will close a connection.
func TestRequest_IsNotLostOnClosedConnections(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"which it said before": "Connection: close\r\n",
		"without a word":       "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := make(chan struct{}, 16)
			url := rawServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				id, _ := nextID(in)
				_, _ = io.WriteString(conn, strings.Replace(raw(id, greeting), "\r\n", "\r\n"+head, 1))
				if head == "" {
					_ = conn.Close()
				}
				closed <- struct{}{}
				_, _ = nextID(in) // the server reads no further request from this connection
			})
			conn := openHTTP(t, url)
			for range 5 {
				<-closed
				if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// The gateway receives an answer even if the server sends it before it has read the whole request.
func TestRequest_ReceivesAnswerBeforeTheRequestIsRead(t *testing.T) {
	t.Parallel()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 1<<20 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":0,"result":`+greeting+`}`)
	}))
	t.Cleanup(echo.Close)
	large := message("tools/call", "1")
	large.Message.Raw = []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"text":"` + strings.Repeat("x", 4<<20) + `"}}`)
	if _, err := openHTTP(t, echo.URL).Request(within(t, soon), large, nil); err == nil || !strings.Contains(err.Error(), "413") {
		t.Errorf("got %v, want to hear of the status 413", err)
	}
}

func TestRequest_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"before the head": "",
		"in the head":     "HTTP/1.1 200 OK\r\nContent-Type: app",
		"in the body":     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waits := make(chan struct{})
			url := rawServer(t, func(_ int, conn net.Conn, in *bufio.Reader) {
				for id, ok := nextID(in); ok; id, ok = nextID(in) {
					if id == "0" {
						_, _ = io.WriteString(conn, raw(id, greeting))
						continue
					}
					_, _ = io.WriteString(conn, before)
					close(waits)
				}
			})
			conn := openHTTP(t, url)
			ctx, cancel := context.WithCancel(within(t, time.Minute))
			go func() {
				<-waits
				cancel()
			}()
			begin := time.Now()
			if _, err := conn.Request(ctx, message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrNoAnswer) {
				t.Errorf("got %v, want %v", err, upstream.ErrNoAnswer)
			}
			if took := time.Since(begin); took > soon*2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// The user and the password in a server's URL are sent as credentials, unless a configured header replaces them.
func TestRequest_SendsTheUserOfTheURL(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{"": "Basic YW5hOnB3", "Bearer ours": "Bearer ours"} {
		s := newWeb(t)
		cfg := streamable.Config{Name: "web", URL: strings.Replace(s.URL, "http://", "http://ana:pw@", 1), Headers: map[string]string{}}
		if header != "" {
			cfg.Headers["Authorization"] = header
		}
		transport, err := streamable.New(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := transport.Open(within(t, soon), principal.Key{}, message("initialize", "1")); err != nil {
			t.Fatal(err)
		}
		if posts := s.got("initialize"); len(posts) != 1 || posts[0].header.Get("Authorization") != want {
			t.Errorf("it came as %v, want %q", posts, want)
		}
	}
}
