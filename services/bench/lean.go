package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
)

var forwardedHeaders = []string{"Authorization", "Content-Type", "Accept", "Mcp-Session-Id", "Mcp-Protocol-Version"}

// lean is a minimal gateway with net/http. It reads each request and each response completely, as every gateway that
// checks messages must. Unlike such a gateway, lean makes no decisions and records nothing.
type lean struct {
	addr string
	idle sync.Pool // of *leanConn
}

// leanConn is a connection to the server, with its buffers.
type leanConn struct {
	net.Conn

	in        *bufio.Reader
	out, body []byte
}

// NewLean returns a minimal gateway in front of the server at addr, a host and port. It reads whole messages, makes no
// decisions and records nothing. It is safe for concurrent use.
func NewLean(addr string) http.Handler { return &lean{addr: addr} }

// ServeHTTP implements http.Handler.
func (l *lean) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, _ := l.idle.Get().(*leanConn)
	if conn == nil {
		opened, err := net.Dial("tcp", l.addr)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		conn = &leanConn{Conn: opened, in: bufio.NewReader(opened)}
	}
	if err := conn.exchange(w, r); err != nil {
		_ = conn.Close() // the response already contains the error
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	l.idle.Put(conn)
}

// exchange forwards a request to the server and the response to the client.
func (c *leanConn) exchange(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength < 0 || r.ContentLength > maxBody {
		return fmt.Errorf("the request's body must have a known length of at most %d bytes, has %d", maxBody, r.ContentLength)
	}
	c.out = fmt.Appendf(c.out[:0], "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.Method, r.URL.Path, r.Host, r.ContentLength)
	for _, name := range forwardedHeaders {
		if value := r.Header.Get(name); value != "" {
			c.out = append(append(append(append(c.out, name...), ": "...), value...), "\r\n"...)
		}
	}
	c.out = append(c.out, "\r\n"...)
	start := len(c.out)
	c.out = append(c.out, make([]byte, r.ContentLength)...)
	if _, err := io.ReadFull(r.Body, c.out[start:]); err != nil {
		return err
	}
	if _, err := c.Write(c.out); err != nil {
		return err
	}
	status, length, err := c.readHead(w.Header())
	if err != nil {
		return err
	}
	c.body = append(c.body[:0], make([]byte, length)...)
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return err
	}
	w.WriteHeader(status)
	_, _ = w.Write(c.body) // the client may have disconnected
	return nil
}

// readHead reads the head of a response into h, and returns the status and the length of the body.
func (c *leanConn) readHead(h http.Header) (status, length int, err error) {
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch {
		case len(line) == 0:
			return status, length, nil
		case status == 0:
			if status, err = strconv.Atoi(string(bytes.TrimPrefix(line, []byte("HTTP/1.1 "))[:3])); err != nil {
				return 0, 0, err
			}
		case string(name) == "Content-Length":
			if length, err = strconv.Atoi(string(value)); err != nil || length > maxAnswer {
				return 0, 0, fmt.Errorf("the response has %s bytes, but at most %d are allowed", value, maxAnswer)
			}
		default:
			h.Set(string(name), string(value))
		}
	}
}
