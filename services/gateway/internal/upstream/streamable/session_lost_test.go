package streamable_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
)

// unknownAs returns a reply with the given status to requests in an unknown session.
func unknownAs(status int) webReply {
	return plain(status, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no valid session ID provided"}}`)
}

// Case U3. The gateway detects a lost session even if the server answers with a status other than 404. The request is
// sent only once, and no further message is sent in the session.
func TestRequest_LostSessionIsNoticedByAnyStatus(t *testing.T) {
	t.Parallel()
	refuses := plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"x"}}`)
	repeated := greet("second", "2025-11-25")
	for name, tt := range map[string]struct {
		call, then webReply
		lost       bool
		probes     int
	}{
		"400":                         {unknownAs(400), repeated, true, 1},
		"401":                         {unknownAs(401), repeated, true, 1},
		"403":                         {unknownAs(403), repeated, true, 1},
		"410, no JSON":                {plain(410, "text/plain", "gone"), repeated, true, 1},
		"400, another id":             {plain(400, "application/json", `{"jsonrpc":"2.0","id":"server-error","error":{"code":1,"message":""}}`), repeated, true, 1},
		"400, a server that has none": {unknownAs(400), greet("", "2025-11-25"), true, 1},
		"400, which is the answer":    {plain(400, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":""}}`), repeated, false, 0},
		"401, to all":                 {unknownAs(401), unknownAs(401), false, 1},
		"400, and refused again":      {unknownAs(400), refuses, false, 1},
		"429":                         {unknownAs(429), repeated, false, 0},
		"500":                         {unknownAs(500), repeated, false, 0},
		"400, a stream had begun":     {plain(400, "text/event-stream", "data: "+progress+"\n\n"), repeated, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			conn := openHTTP(t, s.URL)
			s.on("initialize", tt.then)
			s.on("tools/call", tt.call)
			answer, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
			if errors.Is(err, upstream.ErrSessionLost) != tt.lost || errors.Is(err, upstream.ErrNeverSent) || (err == nil) != (tt.probes == 0 && strings.Contains(name, "answer")) {
				t.Errorf("got %d, %v", answer.Status, err)
			}
			_, err = conn.Request(within(t, soon), message("tools/call", "2"), nil)
			if errors.Is(err, upstream.ErrSessionLost) != tt.lost || tt.lost && !errors.Is(err, upstream.ErrNeverSent) {
				t.Errorf("the next got %v", err)
			}
			sent := 2
			if tt.lost {
				sent = 1
			}
			if calls, probes := len(s.got("tools/call")), len(s.got("initialize"))-1; calls != sent || probes != tt.probes {
				t.Errorf("%d calls and %d probes, want %d and %d", calls, probes, sent, tt.probes)
			}
			if ended := s.ended(); tt.lost && !strings.Contains(name, "none") && !cmp.Equal(ended, []string{"second"}) {
				t.Errorf("the sessions %q were ended, want that of the probe alone", ended)
			}
		})
	}
}

// Case U3. The gateway checks at most once a minute whether a session is lost, no matter how many requests the client
// sends.
func TestRequest_ProbesOnceAMinute(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	s.on("initialize", unknownAs(401))
	s.on("tools/call", unknownAs(401))
	for i := range 5 {
		if _, err := conn.Request(within(t, soon), message("tools/call", fmt.Sprint(i)), nil); errors.Is(err, upstream.ErrSessionLost) || err == nil {
			t.Fatal(err)
		}
	}
	if n := len(s.got("initialize")); n != 2 {
		t.Errorf("%d times a session was opened, want 2", n)
	}
}

// Case U3. Cookies that a server sets in a session are sent only in that session.
func TestCookies_AreSentOnlyInTheirSession(t *testing.T) {
	t.Parallel()
	sets := func(lines ...string) webReply {
		return func(w http.ResponseWriter, r *http.Request, p webPost) {
			for _, line := range lines {
				w.Header().Add("Set-Cookie", line)
			}
			greet("first", "2025-11-25")(w, r, p)
		}
	}
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprintf("c%d=v", i)
	}
	for name, tt := range map[string]struct {
		set  []string
		want string
	}{
		"one":           {[]string{"backend=b2; Path=/; HttpOnly; SameSite=Lax"}, "backend=b2"},
		"its own host":  {[]string{"a=1; Domain=127.0.0.1"}, "a=1"},
		"another host":  {[]string{"a=1; Domain=example.com", "b=2"}, "b=2"},
		"another path":  {[]string{"a=1; Path=/other", "b=2; Path=/"}, "b=2"},
		"for TLS alone": {[]string{"a=1; Secure", "b=2"}, "b=2"},
		"set twice":     {[]string{"a=1", "b=2", "a=3"}, "b=2; a=3"},
		"taken back":    {[]string{"a=1", "b=2", "a=; Max-Age=0"}, "b=2"},
		"expired":       {[]string{"a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "b=2; Max-Age=60"}, "b=2"},
		"too long":      {[]string{"a=" + strings.Repeat("x", 5000), "b=2"}, "b=2"},
		"too many":      {many, "c4=v; c5=v; c6=v; c7=v; c8=v; c9=v; c10=v; c11=v; c12=v; c13=v; c14=v; c15=v; c16=v; c17=v; c18=v; c19=v"},
		"no cookie":     {[]string{"=; a", "b c=1", "b=2"}, "b=2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			s.on("initialize", sets(tt.set...))
			conn, other := openHTTP(t, s.URL), openHTTP(t, s.URL)
			for _, c := range []upstream.Conn{conn, other} {
				if _, err := c.Request(within(t, soon), message("tools/call", "1"), nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range s.got("tools/call") {
				if got := p.header["Cookie"]; !cmp.Equal(got, []string{tt.want}) {
					t.Errorf("the cookies are %q, want %q", got, tt.want)
				}
			}
			for _, p := range s.got("initialize") {
				if got := p.header["Cookie"]; got != nil {
					t.Errorf("a session was opened with %q", got)
				}
			}
		})
	}
}

// Case U3. A session's cookies are added to the configured cookie. They can change during the session, and are redacted
// from answers.
func TestCookies_AreRedactedFromAnswers(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	over, err := streamable.New(streamable.Config{Name: "test", URL: s.URL, Headers: map[string]string{"Cookie": "configured=1"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	conn := openOver(t, over)
	s.on("tools/call", func(w http.ResponseWriter, r *http.Request, p webPost) {
		w.Header().Add("Set-Cookie", "sticky=credential-"+p.id)
		echo := `{"jsonrpc":"2.0","id":ID,"result":{"content":["` + strings.Join(p.header["Cookie"], "|") + `"]}}`
		if p.id == "3" {
			plain(200, "text/event-stream", "data: "+echo+"\n\n")(w, r, p)
			return
		}
		plain(200, "application/json", echo)(w, r, p)
	})
	for _, tt := range []struct{ id, want string }{
		{"1", "configured=1"},
		{"2", "configured=1; sticky=[redacted]"},
		{"3", "configured=1; sticky=[redacted]"},
	} {
		answer, err := conn.Request(within(t, soon), message("tools/call", tt.id), nil)
		if err != nil {
			t.Fatal(err)
		}
		if raw := string(answer.Message.Raw); !strings.Contains(raw, `["`+tt.want+`"]`) {
			t.Errorf("the answer is %s, want %s in it", raw, tt.want)
		}
	}
	if got := s.got("tools/call")[2].header["Cookie"]; !cmp.Equal(got, []string{"configured=1; sticky=credential-2"}) {
		t.Errorf("the cookies are %q", got)
	}
}

// Case U3. A request that may be sent only once is answered with 404. It is not sent again, and a new session is opened
// for later requests.
func TestRequest_SentOnceOpensANewSessionAfterward(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	s.on("initialize", greet("second", "2025-11-25"))
	s.on("tools/call", func(w http.ResponseWriter, r *http.Request, p webPost) {
		if p.session == "first" {
			forgotten(w, r, p)
			return
		}
		fine(w, r, p)
	})
	for i := range 3 {
		req := message("tools/call", fmt.Sprint(i))
		req.Once = true
		_, err := conn.Request(within(t, soon), req, nil)
		if (err == nil) != (i > 0) || errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if calls, opened := len(s.got("tools/call")), len(s.got("initialize")); calls != 3 || opened != 2 {
		t.Errorf("%d calls in %d sessions, want 3 in 2", calls, opened)
	}
}
