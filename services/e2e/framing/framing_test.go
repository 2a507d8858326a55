//go:build unix

package framing

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

const (
	tools  = `[{"name":"safe","inputSchema":{"type":"object"}}]`
	policy = "version: 1\nname: open\ndefault: allow\n"
)

// twoServerMesh is a mesh with two servers. The proxies in the tests forward requests to the server named open and
// refuse requests to the server named hidden.
type twoServerMesh struct {
	*stack.Stack
	open, hidden *rawmcp.Server
}

func newTwoServerMesh(t *testing.T) *twoServerMesh {
	t.Helper()
	h := &twoServerMesh{open: rawmcp.Start(t, tools), hidden: rawmcp.Start(t, tools)}
	h.Stack = stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  open: {http: {url: %q}}\n  hidden: {http: {url: %q}}", h.open.URL, h.hidden.URL),
		Policy:  policy, Extra: "behind_proxy: [127.0.0.1]",
	})
	return h
}

// session opens a session with a server directly, bypassing the proxy.
func (h *twoServerMesh) session(t *testing.T, server string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, h.MCP(server), strings.NewReader(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + stack.AgentToken}, "Content-Type": {"application/json"}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.Header.Get("Mcp-Session-Id")
}

// callBody returns the body of a tool call. The test finds the response by the call's id.
func callBody(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"safe"}}`, id)
}

// requestHead returns the request line and the headers that precede Content-Length or Transfer-Encoding.
func requestHead(path, session string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + stack.AgentToken +
		"\r\nContent-Type: application/json\r\nMcp-Session-Id: " + session + "\r\n"
}

func wellFormedRequest(path, session string, id int) string {
	body := callBody(id)
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", requestHead(path, session), len(body), body)
}

// An ambiguity builds a request with an ambiguous end. One HTTP parser reads the smuggled request as part of the body,
// and another reads it as the next request.
type ambiguity struct {
	name string
	make func(head, body, smuggled string) string
}

func chunk(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

// twoFramings returns a function that builds a request with two lengths: its Content-Length covers all bytes, and its
// Transfer-Encoding ends before the smuggled request. lines contains the header lines.
func twoFramings(lines ...string) func(head, body, smuggled string) string {
	return func(head, body, smuggled string) string {
		all := chunk(body) + smuggled
		return head + fmt.Sprintf(strings.Join(lines, ""), len(all)) + "\r\n" + all
	}
}

// shortLength returns a function that builds a request whose Content-Length ends before the smuggled request. Another
// header may extend the body so that it includes the smuggled request.
func shortLength(lines string) func(head, body, smuggled string) string {
	return func(head, body, smuggled string) string {
		return head + strings.ReplaceAll(strings.ReplaceAll(lines, "SHORT", fmt.Sprint(len(body))), "LONG", fmt.Sprint(len(body)+len(smuggled))) + "\r\n" + body + smuggled
	}
}

func ambiguities() []ambiguity {
	const length = "Content-Length: %d\r\n"
	return []ambiguity{
		{"Content-Length, then Transfer-Encoding", twoFramings(length, "Transfer-Encoding: chunked\r\n")},
		{"Transfer-Encoding, then Content-Length", twoFramings("Transfer-Encoding: chunked\r\n", length)},
		{"another case", twoFramings(length, "tRANSFER-eNCODING: CHUNKED\r\n")},
		{"a coding that is none", twoFramings(length, "Transfer-Encoding: xchunked\r\n")},
		{"identity", twoFramings(length, "Transfer-Encoding: identity\r\n")},
		{"chunked, identity", twoFramings(length, "Transfer-Encoding: chunked, identity\r\n")},
		{"chunked twice", twoFramings(length, "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")},
		{"chunked and another line", twoFramings(length, "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n")},
		{"a space before the colon", twoFramings(length, "Transfer-Encoding : chunked\r\n")},
		{"a space before the name", twoFramings(length, " Transfer-Encoding: chunked\r\n")},
		{"a tab after the colon", twoFramings(length, "Transfer-Encoding:\tchunked\r\n")},
		{"a vertical tab", twoFramings(length, "Transfer-Encoding: \x0bchunked\r\n")},
		{"a quoted value", twoFramings(length, "Transfer-Encoding: \"chunked\"\r\n")},
		{"folded", twoFramings(length, "Transfer-Encoding:\r\n chunked\r\n")},
		{"folded into another field", twoFramings(length, "X-Field: x\r\n Transfer-Encoding: chunked\r\n")},
		{"a bare LF before it", twoFramings(length, "X-Field: x\nTransfer-Encoding: chunked\r\n")},
		{"a bare CR before it", twoFramings(length, "X-Field: x\rTransfer-Encoding: chunked\r\n")},
		{"a NUL in it", twoFramings(length, "Transfer-Encoding: chunked\x00\r\n")},
		{"bare LF everywhere", func(head, body, smuggled string) string {
			return strings.ReplaceAll(twoFramings(length, "Transfer-Encoding: chunked\r\n")(head, body, ""), "\r\n", "\n") + smuggled
		}},
		{"two lengths", shortLength("Content-Length: SHORT\r\nContent-Length: LONG\r\n")},
		{"two lengths, the long one first", shortLength("Content-Length: LONG\r\nContent-Length: SHORT\r\n")},
		{"two lengths in a line", shortLength("Content-Length: LONG, SHORT\r\n")},
		{"a length with a sign", shortLength("Content-Length: +SHORT\r\n")},
		{"a length in two lines, folded", shortLength("Content-Length: SHORT\r\n 0\r\n")},
		{"no length", shortLength("")},
		{"a length of another name", shortLength("Content_Length: LONG\r\nContent-Length: SHORT\r\n")},
		{"chunks that end with a bare LF", func(head, body, smuggled string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\n%s\n0\n\n", len(body), body) + smuggled
		}},
		{"an extension of a chunk with a bare LF", func(head, body, smuggled string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x;\n%s\r\n0\r\n\r\n", len(body), body) + smuggled
		}},
		{"a chunk whose length overflows", func(head, body, smuggled string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("1000000000000000%x\r\n%s\r\n0\r\n\r\n", len(body), body) + smuggled
		}},
		{"a chunk with 0x", func(head, body, smuggled string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("0x%x\r\n%s\r\n0\r\n\r\n", len(body), body) + smuggled
		}},
		{"a trailer that is a length", func(head, body, smuggled string) string {
			return head + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\nContent-Length: 10\r\n\r\n", len(body), body) + smuggled
		}},
		{"chunks in HTTP/1.0", func(head, body, smuggled string) string {
			return twoFramings(length, "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n")(strings.Replace(head, "HTTP/1.1", "HTTP/1.0", 1), body, smuggled)
		}},
	}
}

// Case H3. A proxy and the mesh may locate the end of a request at different bytes. The test checks that such a request
// does not bypass the proxy's rules, and that no client receives the response to another client's request. Either the
// request is refused, or every parser ends it at the same byte.
func TestFraming_AmbiguousRequestIsHarmless(t *testing.T) {
	t.Parallel()
	for _, p := range proxies() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			h := newTwoServerMesh(t)
			front := p.start(t, strings.TrimPrefix(h.URL, "http://"))
			open, hidden := h.session(t, "open"), h.session(t, "hidden")
			victim := newVictim(t, front, open)
			victim.checkCalls(t, "to begin with")
			before := len(h.hidden.Calls())
			for _, a := range ambiguities() {
				for _, smuggled := range []string{wellFormedRequest("/mcp/hidden", hidden, 666), strings.TrimSuffix(wellFormedRequest("/mcp/hidden", hidden, 666), "\r\n")} {
					exchange(t, front, a.make(requestHead("/mcp/open", open), callBody(1), smuggled))
					victim.checkCalls(t, a.name)
				}
				if after := len(h.hidden.Calls()); after != before {
					t.Errorf("%s: %d calls reached the hidden server", a.name, after-before)
					before = after
				}
			}
			exchange(t, front, wellFormedRequest("/mcp/hidden", hidden, 667))
			if len(h.hidden.Calls()) != before {
				t.Error("the proxy forwards everything, so this test proves nothing")
			}
			exchange(t, strings.TrimPrefix(h.URL, "http://"), wellFormedRequest("/mcp/hidden", hidden, 668))
			if len(h.hidden.Calls()) != before+1 {
				t.Error("the mesh does not serve the smuggled request, so this test proves nothing")
			}
		})
	}
}

// exchange sends the string text on a new connection and returns the bytes that it receives in response within 150 ms.
func exchange(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return "" // the server closed the connection
	}
	_ = conn.SetReadDeadline(time.Now().Add(150 * time.Millisecond))
	got, _ := io.ReadAll(conn) // until the server closes the connection or the deadline passes
	return string(got)
}

// victim is another client of the same proxy. The proxy forwards the victim's requests to the mesh on the same
// connections as the attacker's requests.
type victim struct {
	front, session string
	client         *http.Client
	id             int
}

func newVictim(t *testing.T, front, session string) *victim {
	t.Helper()
	v := &victim{front: front, session: session, client: &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}, id: 1000}
	t.Cleanup(v.client.CloseIdleConnections)
	return v
}

// checkCalls makes two calls and checks that each call receives the response with its own id. The parameter after is
// the name of the preceding attack, for error messages.
func (v *victim) checkCalls(t *testing.T, after string) {
	t.Helper()
	for range 2 {
		v.id++
		req, err := http.NewRequest(http.MethodPost, "http://"+v.front+"/mcp/open", strings.NewReader(callBody(v.id)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + stack.AgentToken}, "Content-Type": {"application/json"}, "Mcp-Session-Id": {v.session}}
		resp, err := v.client.Do(req)
		if err != nil {
			t.Errorf("%s: another client received no response: %v", after, err)
			return
		}
		raw, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var answer struct{ ID int }
		if err != nil || json.Unmarshal(raw, &answer) != nil || answer.ID != v.id {
			t.Errorf("%s: another client sent the id %d and received %d %s %v", after, v.id, resp.StatusCode, raw, err)
			return
		}
	}
}
