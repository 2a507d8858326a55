package streamable_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const discovered = `{"jsonrpc":"2.0","id":ID,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}`

func discover(t *testing.T, url string) (upstream.Conn, error) {
	t.Helper()
	hello := upstream.Discover(&upstream.Client{Name: "c", Version: "1"}).Request("", nil)
	conn, _, err := newHTTP(t, url).Open(within(t, soon), principal.Key{}, hello)
	return conn, err
}

func judged(t *testing.T, text string) upstream.Request {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return upstream.Request{Message: m}
}

// In revision 2026-07-28, each request has headers that repeat parts of the body. When the connection is closed, no
// request is sent to the server.
func TestModern_HeadersRepeatTheBody(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	s.on("server/discover", plain(200, "application/json", discovered))
	conn, err := discover(t, s.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		body, method, name string
		mirrored           []upstream.Header
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, "tools/call", "t", []upstream.Header{{Name: "Mcp-Param-Region", Value: "eu\r\nEvil: 1"}}},
		{`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"file:///\u00e4"}}`, "resources/read", "=?base64?ZmlsZTovLy/DpA==?=", nil},
		{`{"jsonrpc":"2.0","id":3,"method":"prompts/get","params":{"name":" p"}}`, "prompts/get", "=?base64?IHA=?=", nil},
		{`{"jsonrpc":"2.0","id":4,"method":"prompts/list","params":{"name":"x"}}`, "prompts/list", "", nil},
	} {
		req := judged(t, tt.body)
		req.Mirrored = tt.mirrored
		if _, err := conn.Request(within(t, soon), req, nil); err != nil {
			t.Fatal(err)
		}
		got := s.got(tt.method)[0]
		if string(got.body) != tt.body || got.session != "" || got.version != "2026-07-28" || got.header.Get("Mcp-Method") != tt.method || got.header.Get("Mcp-Name") != tt.name {
			t.Errorf("%s went with %v", tt.body, got.header)
		}
		if region := got.header.Get("Mcp-Param-Region"); tt.mirrored != nil && region != "=?base64?ZXUNCkV2aWw6IDE=?=" || got.header.Get("Evil") != "" {
			t.Errorf("its arguments went as %q", region)
		}
	}
	if err := conn.Listen(within(t, soon), upstream.Listener{}); !errors.Is(err, upstream.ErrNoStream) {
		t.Errorf("it has a stream: %v", err)
	}
	if err := conn.Close(within(t, soon)); err != nil || len(s.ended()) != 0 || len(s.got("initialize")) != 0 {
		t.Errorf("closing: %v, ended %v", err, s.ended())
	}
	if _, err := conn.Request(within(t, soon), message("ping", "9"), nil); !errors.Is(err, upstream.ErrClosed) {
		t.Errorf("once it is closed: %v", err)
	}
}

// Case U1. On a connection of revision 2026-07-28, a server sends requests on a stream. The requests, except pings, are
// passed to the receiver. The server gets no response, because in that revision a server may send requests only in its
// answers.
func TestModern_RequestsOnAStreamGetNoResponse(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	s.on("server/discover", plain(200, "application/json", discovered))
	s.on("tools/call", events("data: "+roots+"\n\ndata: "+strings.Replace(roots, "roots/list", "ping", 1)+"\n\ndata: "+progress+"\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n\n"))
	conn, err := discover(t, s.URL)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	if _, err := conn.Request(within(t, soon), withProgress(message("tools/call", "7"), "1"), func(m []byte) { seen = append(seen, string(m)) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{roots, progress}, seen); diff != "" || len(s.got("")) != 2 {
		t.Errorf("%d POSTs; events (-want +got):\n%s", len(s.got("")), diff)
	}
}

// The error is [upstream.ErrRevision] if and only if the answer to server/discover shows that the server does not
// support revision 2026-07-28.
func TestModern_RevisionIsDecidedByDiscover(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reply webReply
		older bool
	}{
		"it knows no such method":       {plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}`), true},
		"it wants a session":            {plain(400, "text/plain", "session id required"), true},
		"it finds nothing there":        {plain(404, "text/html", "<p>"), true},
		"it has a fault":                {plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"x"}}`), false},
		"it has no time, in JSON":       {plain(503, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"x"}}`), false},
		"it denies access, in JSON":     {plain(401, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"x"}}`), false},
		"it speaks others":              {plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"supportedVersions":["2025-11-25"]}}`), true},
		"it answers something":          {plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`), true},
		"it is broken":                  {plain(500, "text/plain", "x"), false},
		"it denies access":              {plain(401, "text/plain", "x"), false},
		"it has no time":                {plain(http.StatusTooManyRequests, "text/plain", "x"), false},
		"it answers what can't be read": {plain(200, "application/json", `{"jsonrpc":"2.0"`), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			s.on("server/discover", tt.reply)
			if _, err := discover(t, s.URL); err == nil || errors.Is(err, upstream.ErrRevision) != tt.older {
				t.Errorf("the error is %v, want one of an older server: %t", err, tt.older)
			}
		})
	}
}
