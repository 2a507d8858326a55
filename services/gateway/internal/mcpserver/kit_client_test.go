package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

type httpResponse struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
}

// code returns the decision code in a response, or "" if there is none.
func (r httpResponse) code() string {
	var m struct {
		Result struct {
			Meta map[string]struct{ Code string } `json:"_meta"`
		}
		Error struct {
			Data struct{ Code string }
		}
	}
	_ = json.Unmarshal([]byte(r.body), &m)
	if m.Error.Data.Code != "" {
		return m.Error.Data.Code
	}
	return m.Result.Meta["dev.sluice/decision"].Code
}

// do sends a request as the caller ana. The given headers are added to the default headers. A given header replaces a
// default header with the same name.
func (w *testGateway) do(method, path, body string, header http.Header) httpResponse {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + anaToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
	}
	for key, values := range header {
		if key == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[key] = values
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return httpResponse{status: resp.StatusCode, header: resp.Header, body: string(got), trailer: resp.Trailer}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}`

func (w *testGateway) connect() http.Header {
	w.t.Helper()
	return w.connectAs(initialize)
}

// connectAs opens a session with the given initialize request, and returns the headers for further requests in the
// session.
func (w *testGateway) connectAs(initialize string) http.Header {
	w.t.Helper()
	got := w.do("POST", w.path, initialize, nil)
	id := got.header.Get("Mcp-Session-Id")
	if got.status != http.StatusOK || id == "" {
		w.t.Fatalf("initialize: %d %s", got.status, got.body)
	}
	return http.Header{"Mcp-Session-Id": {id}}
}

const toolCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"}}`

// dial returns a connection on which a test can send raw bytes.
func (w *testGateway) dial() net.Conn {
	w.t.Helper()
	c, err := w.listener.DialContext(w.t.Context(), "", "")
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func requestHead(token, session string, length int) string {
	out := "POST /mcp/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: text/event-stream, application/json\r\n"
	if token != "" {
		out += "Authorization: Bearer " + token + "\r\n"
	}
	if session != "" {
		out += "Mcp-Session-Id: " + session + "\r\n"
	}
	return out + fmt.Sprintf("Content-Length: %d\r\n\r\n", length)
}

// status reads the next response from a connection and returns its HTTP status.
func status(c net.Conn) (int, error) {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (*pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipeListener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
