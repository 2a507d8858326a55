package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"time"
)

const (
	protocolVersion = "2025-11-25"
	echoText        = "hello"
	// firstID is the JSON-RPC id of a session's first call. It is so large that all ids have the same number of digits.
	firstID = 1_000_000_000
	// maxAnswer is the maximum size of a response's body, in bytes.
	maxAnswer = 64 << 10
)

type endpoint struct {
	// addr is the host and port of the endpoint's URL, and path is the URL's path.
	addr, path string
}

// caller makes calls one after another over one connection. It implements HTTP without net/http in order to use less
// CPU time.
type caller struct {
	addr string
	// mark is a string that every correct response contains.
	mark []byte
	// sessions contains the sessions in which the caller makes its calls. For each call, the caller takes a session
	// from the channel, and puts it back after the call. Several callers may share the channel.
	sessions chan *callerSession

	conn net.Conn
	in   *bufio.Reader
	body []byte
}

type callerSession struct {
	// request is a complete HTTP request. The JSON-RPC id in its body begins at idOffset.
	request  []byte
	idOffset int
	next     int64
}

// newCaller returns a caller without a connection. Every correct response contains the given mark.
func newCaller(to endpoint, sessions chan *callerSession, mark string) *caller {
	return &caller{addr: to.addr, mark: []byte(mark), sessions: sessions}
}

// openSessions opens a session for each token. In these sessions, callers call only the given tool.
func openSessions(ctx context.Context, to endpoint, tokens []string, tool string) (chan *callerSession, error) {
	sessions := make(chan *callerSession, len(tokens))
	for _, token := range tokens {
		s, err := newCallerSession(ctx, to, token, tool)
		if err != nil {
			return nil, err
		}
		sessions <- s
	}
	return sessions, nil
}

func newCallerSession(ctx context.Context, to endpoint, token, tool string) (*callerSession, error) {
	session, err := openSession(ctx, to, token)
	if err != nil {
		return nil, err
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"text":%q}}}`, firstID, tool, echoText)
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nMcp-Session-Id: %s\r\nMcp-Protocol-Version: %s\r\n"+
		"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n",
		to.path, to.addr, token, session, protocolVersion, len(body))
	request := []byte(head + body)
	return &callerSession{request: request, idOffset: bytes.LastIndex(request, strconv.AppendInt(nil, firstID, 10)), next: firstID}, nil
}

// connect closes the connection, if there is one, and opens a new connection with a deadline.
func (c *caller) connect(ctx context.Context, deadline time.Time) error {
	c.close()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	c.conn, c.in = conn, bufio.NewReader(conn)
	return conn.SetDeadline(deadline)
}

func (c *caller) close() {
	if c.conn != nil {
		_ = c.conn.Close() // no call is in flight
	}
}

// call makes one call and checks that the response has the id of the call and contains the mark.
func (c *caller) call() error {
	s := <-c.sessions
	defer func() { c.sessions <- s }()
	id := strconv.AppendInt(s.request[:s.idOffset], s.next, 10)[s.idOffset:]
	s.next++
	if _, err := c.conn.Write(s.request); err != nil {
		return fmt.Errorf("send a call: %w", err)
	}
	if err := c.readResponse(); err != nil {
		return fmt.Errorf("read a response: %w", err)
	}
	_, after, found := bytes.Cut(c.body, []byte(`"id":`))
	if !found || !bytes.HasPrefix(after, id) || !bytes.Contains(c.body, c.mark) {
		return fmt.Errorf("the response to call %s is wrong, because it does not have that id or does not contain %s: %s", id, c.mark, c.body)
	}
	return nil
}

func (c *caller) readResponse() error {
	status, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	ok := bytes.HasPrefix(status, []byte("HTTP/1.1 200 "))
	length := -1
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		if string(name) == "Content-Length" {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return err
			}
		}
	}
	if length < 0 || length > maxAnswer {
		return fmt.Errorf("the response has no Content-Length, or is longer than %d bytes", maxAnswer)
	}
	c.body = append(c.body[:0], make([]byte, length)...)
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("the status is not 200: %s", c.body)
	}
	return nil
}

func openSession(ctx context.Context, to endpoint, token string) (string, error) {
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + protocolVersion +
		`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	head, err := post(ctx, to, token, "", initialize)
	if err != nil {
		return "", fmt.Errorf("open a session: %w", err)
	}
	session := head.Get("Mcp-Session-Id")
	if session == "" {
		return "", errors.New("open a session: the response has no Mcp-Session-Id")
	}
	if _, err := post(ctx, to, token, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		return "", fmt.Errorf("open a session: %w", err)
	}
	return session, nil
}

// post sends one message with net/http and returns the headers of the response.
func post(ctx context.Context, to endpoint, token, session, body string) (textproto.MIMEHeader, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.addr+to.path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", protocolVersion)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return textproto.MIMEHeader(resp.Header), nil
}
