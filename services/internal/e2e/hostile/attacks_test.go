package hostile_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// target is the mesh that is attacked.
type target struct {
	// MCP is the base URL of the edge, GRPC the address of all services.
	MCP, GRPC string
	// Token is the attackers' agent token.
	Token string
}

// attack is one way to harm. It is done over and over by so many workers.
type attack struct {
	name    string
	workers int
	do      func(ctx context.Context, m target)
}

// attacks are the cases X1 to X5, X8 and N2 and their relatives.
func attacks() []attack {
	digits := `{"name":"free","arguments":{"n":1e-` + strings.Repeat("9", 3<<20) + `}}`
	deep := `{"name":"free","arguments":{"n":` + strings.Repeat("[", 60) + `"` + strings.Repeat("z", 3<<20) + `"` + strings.Repeat("]", 60) + `}}`
	stuffed := `{"text":"` + strings.Repeat("ping ", 600_000) + `"}`
	list := func(server string) func(context.Context, target) {
		return func(ctx context.Context, m target) { m.ask(ctx, server, "tools/list", "{}") }
	}
	return []attack{
		{"X1 long numbers in arguments", 2, func(ctx context.Context, m target) { m.ask(ctx, "free", "tools/call", digits) }},
		{"X1 deep arguments", 2, func(ctx context.Context, m target) { m.ask(ctx, "free", "tools/call", deep) }},
		{"X1 long numbers in lists", 1, list("number")},
		{"X1 deep lists", 1, list("deep")},
		{"X1 10,000 tools in each list", 4, list("wide")},
		{"X2 streams of indexed headers", 2, hpackBomb},
		{"X2 connections that say nothing to gRPC", 2, func(ctx context.Context, m target) { hold(ctx, m.GRPC, "") }},
		{"X3 large answers, read slowly", 16, readSlowly},
		{"X3 a person who reads nothing", 4, readNothing},
		{"X4 text for a server of which all is denied", 2, func(ctx context.Context, m target) { m.ask(ctx, "closed", "ping", stuffed) }},
		{"X5 an unlimited tool", 8, func(ctx context.Context, m target) { m.call(ctx, "free", "free", "{}") }},
		{"X8 questions without end", 2, func(ctx context.Context, m target) { m.call(ctx, "drift", "ask", `{"n":"`+rand()+`"}`) }},
		{"X9 names that are hidden, or are not", 2, func(ctx context.Context, m target) {
			m.call(ctx, "free", "secret", "{}")
			m.call(ctx, "free", rand(), "{}")
		}},
		{"R11 denied without end", 4, func(ctx context.Context, m target) { m.call(ctx, "free", "denied", "{}") }},
		{"N2 sessions without end", 2, func(ctx context.Context, m target) { m.open(ctx, "free") }},
		{"N2 bodies that do not end", 4, func(ctx context.Context, m target) {
			hold(ctx, strings.TrimPrefix(m.MCP, "http://"), "POST /mcp/free HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+m.Token+
				"\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n{")
		}},
		{"I1 credentials that are none", 2, func(ctx context.Context, m target) { m.Token = rand(); m.call(ctx, "free", "free", "{}") }},
		{"U1 a server over stdio that prints without end", 1, list("spam")},
	}
}

// client never waits longer than a held call does.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// open opens a session, whose handle it returns.
func (m target) open(ctx context.Context, server string) string {
	resp := m.post(ctx, server, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	if resp == nil {
		return ""
	}
	drain(resp)
	return resp.Header.Get("Mcp-Session-Id")
}

// ask opens a session, asks one thing in it and reads the answer.
func (m target) ask(ctx context.Context, server, method, params string) {
	session := m.open(ctx, server)
	if resp := m.post(ctx, server, session, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`); resp != nil {
		drain(resp)
	}
	m.end(ctx, server, session)
}

func (m target) call(ctx context.Context, server, tool, arguments string) {
	m.ask(ctx, server, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

// post sends a message; nil where nothing of HTTP came back.
func (m target) post(ctx context.Context, server, session, body string) *http.Response {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.MCP+"/mcp/"+server, strings.NewReader(body))
	if err != nil {
		return nil
	}
	return m.send(req, session)
}

func (m target) end(ctx context.Context, server, session string) {
	if req, err := http.NewRequestWithContext(ctx, http.MethodDelete, m.MCP+"/mcp/"+server, nil); err == nil && session != "" {
		if resp := m.send(req, session); resp != nil {
			drain(resp)
		}
	}
}

func (m target) send(req *http.Request, session string) *http.Response {
	req.Header.Set("Authorization", "Bearer "+m.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil
	}
	return resp
}

func drain(resp *http.Response) {
	_, _ = io.Copy(io.Discard, resp.Body) // what it says is nobody's
	_ = resp.Body.Close()
}

// readSlowly has a large answer made and reads 64 KiB of it a second, until it is cut
// off.
func readSlowly(ctx context.Context, m target) {
	session := m.open(ctx, "big")
	defer m.end(ctx, "big", session)
	resp := m.post(ctx, "big", session, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big"}}`)
	if resp == nil {
		return
	}
	defer resp.Body.Close()
	for {
		if n, err := io.CopyN(io.Discard, resp.Body, 64<<10); err != nil || n == 0 {
			return
		}
		if !rest(ctx, time.Second) {
			return
		}
	}
}

// hold opens connections that say so much and no more, and keeps each for a while.
func hold(ctx context.Context, addr, say string) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		rest(ctx, 10*time.Millisecond)
		return
	}
	_, _ = io.WriteString(conn, say)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	time.AfterFunc(30*time.Second, func() { _ = conn.Close() })
	rest(ctx, 10*time.Millisecond)
}

// hpackBomb opens a connection to gRPC whose streams have headers that are small on the
// wire and large where they are read (RFC 7541, section 7.3).
func hpackBomb(ctx context.Context, m target) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", m.GRPC)
	if err != nil {
		rest(ctx, 10*time.Millisecond)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	frames := http2.NewFramer(conn, conn)
	if frames.WriteSettings() != nil {
		return
	}
	go io.Copy(io.Discard, conn) // what it says is nobody's
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for id := uint32(1); id < 80; id += 2 {
		block.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/sluice.policy.v1.PolicyService/DecideCall"}, {":authority", "localhost"}, {"content-type", "application/grpc"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		for range 4000 {
			_ = enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 3900)})
		}
		for first, rest := true, block.Bytes(); len(rest) > 0; first = false {
			part := rest[:min(len(rest), 16<<10)]
			rest = rest[len(part):]
			if first {
				err = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndHeaders: len(rest) == 0})
			} else {
				err = frames.WriteContinuation(id, len(rest) == 0, part)
			}
			if err != nil {
				return
			}
		}
	}
}

// rest waits, and tells whether ctx goes on.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// rand is a text that was never there before.
func rand() string { return crand.Text() }
