package streamable_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// forgotten is the reply to requests in a session that the server has ended.
var forgotten = plain(404, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`)

var fine = plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`)

// A server has lost a session because it was restarted. The gateway opens one new session and sends the request again,
// because the server has not read the request.
func TestRequest_OpensAForgottenSessionAgain(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	s.on("initialize", greet("second", "2025-11-25"))
	s.on("tools/call", inTurn(forgotten, fine))
	answer, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if err != nil || answer.Status != 200 {
		t.Fatalf("%d %v", answer.Status, err)
	}
	var got []string
	for _, p := range s.got("")[1:] {
		got = append(got, p.method+" in "+p.session)
	}
	want := []string{"tools/call in first", "initialize in ", "notifications/initialized in second", "tools/call in second"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestRequest_OpensOneSessionForAllWaitingRequests(t *testing.T) {
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
	done := make(chan error, 20)
	for range cap(done) {
		go func() {
			_, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := len(s.got("initialize")); n != 2 {
		t.Errorf("%d sessions were opened, want 2", n)
	}
}

func TestRequest_IsRepeatedOnlyIfItWasNotRead(t *testing.T) {
	t.Parallel()
	read := plain(404, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}`)
	greeting := greet("first", "2025-11-25")
	tests := []struct {
		name              string
		first, then, call webReply
		want              error
		sent              int
	}{
		{"a second time it is forgotten", greeting, greet("second", "2025-11-25"), forgotten, upstream.ErrNoAnswer, 2},
		{"the server has read it and answers 404", greeting, greeting, read, nil, 1},
		{"a stream had begun", greeting, greeting, plain(404, "text/event-stream", "data: "+progress+"\n\n"), upstream.ErrNoAnswer, 1},
		{"there was no session", greet("", "2025-11-25"), greeting, forgotten, upstream.ErrNoAnswer, 1},
		{"a new session is refused", greeting, plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"x"}}`), forgotten, upstream.ErrNoAnswer, 1},
		{"a new session is not found", greeting, forgotten, forgotten, upstream.ErrNoAnswer, 1},
		{"the new session speaks another revision", greeting, greet("second", "2025-06-18"), forgotten, upstream.ErrNoAnswer, 1},
		{"the new session's name could not be a header", greeting, greet("se\tcond", "2025-11-25"), forgotten, upstream.ErrNoAnswer, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			s.on("initialize", inTurn(tt.first, tt.then))
			conn := openHTTP(t, s.URL)
			s.on("tools/call", tt.call)
			_, err := conn.Request(within(t, soon), message("tools/call", "1"), func([]byte) {})
			if !errors.Is(err, tt.want) || errors.Is(err, upstream.ErrNeverSent) {
				t.Errorf("got %v, want %v alone", err, tt.want)
			}
			if n := len(s.got("tools/call")); n != tt.sent {
				t.Errorf("it was sent %d times, want %d", n, tt.sent)
			}
		})
	}
}

// Case R2. A request was answered with 404. The error is never [upstream.ErrNeverSent], no matter how the second
// attempt ends, because bytes of the request were sent.
func TestRequest_RepeatedRequestNeverCountsAsUnsent(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	alone := func(reply webReply) webReply {
		return func(w http.ResponseWriter, r *http.Request, p webPost) {
			w.Header().Set("Connection", "close")
			reply(w, r, p)
		}
	}
	s.on("initialize", alone(greet("first", "2025-11-25")))
	s.on("tools/call", alone(forgotten))
	s.on("notifications/initialized", func(w http.ResponseWriter, _ *http.Request, _ webPost) {
		_ = s.Listener.Close() // makes the second attempt fail to connect
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusAccepted)
	})
	_, err := openHTTP(t, s.URL).Request(within(t, soon), message("tools/call", "1"), nil)
	if !errors.Is(err, upstream.ErrNoAnswer) || errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("got %v, want %v alone", err, upstream.ErrNoAnswer)
	}
	if n := len(s.got("tools/call")); n != 1 {
		t.Errorf("the call came %d times", n)
	}
}

// A session does not use the buffer that its initialize request was read into.
func TestOpen_CopiesInitialize(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	initialize := message("initialize", "0")
	want := string(initialize.Body())
	conn, _, err := newHTTP(t, s.URL).Open(within(t, soon), principal.Key{}, initialize)
	if err != nil {
		t.Fatal(err)
	}
	clear(initialize.Body())
	s.on("tools/call", inTurn(forgotten, fine))
	if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); err != nil {
		t.Fatal(err)
	}
	if got := s.got("initialize"); len(got) != 2 || string(got[1].body) != want {
		t.Errorf("the new session was opened with %q", got[len(got)-1].body)
	}
}

func TestRequest_WaitsForANewSessionNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	s.on("tools/call", plain(404, "text/plain", "x"))
	s.on("initialize", func(_ http.ResponseWriter, r *http.Request, _ webPost) { <-r.Context().Done() })
	patient := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := conn.Request(ctx, message("tools/call", "1"), nil)
		patient <- err
	}()
	eventually.Holds(t, "a new session is being opened", func() bool { return len(s.got("initialize")) == 2 })
	begin := time.Now()
	if _, err := conn.Request(within(t, 100*time.Millisecond), message("tools/call", "2"), nil); err == nil {
		t.Error("a call passed without a session")
	}
	if took := time.Since(begin); took > soon {
		t.Errorf("it took %v", took)
	}
	cancel()
	<-patient
}

func TestClose_SessionIsNotReopened(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	for range 2 {
		if err := conn.Close(within(t, soon)); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.ended(); !slices.Equal(got, []string{"first"}) {
		t.Errorf("the sessions %q were ended, want the first, once", got)
	}
	before := len(s.got(""))
	if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("got %v, want %v", err, upstream.ErrNeverSent)
	}
	if err := conn.Notify(within(t, soon), message("notifications/cancelled", "")); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("got %v, want %v", err, upstream.ErrNeverSent)
	}
	if got := s.got(""); len(got) != before {
		t.Errorf("the server was sent %s", got[len(got)-1].body)
	}
}

func TestClose_DuringReopeningLeavesNoSession(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	begun, goOn := make(chan struct{}), make(chan struct{})
	s.on("tools/call", plain(404, "text/plain", "x"))
	s.on("initialize", func(w http.ResponseWriter, r *http.Request, p webPost) {
		close(begun)
		<-goOn
		greet("second", "2025-11-25")(w, r, p)
	})
	done := make(chan error, 1)
	go func() {
		_, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
		done <- err
	}()
	<-begun
	if err := conn.Close(within(t, soon)); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-done; err == nil {
		t.Error("a call passed on a closed session")
	}
	if got := s.ended(); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("the sessions %q were ended, want both", got)
	}
}

// No cancellation is sent to a server that uses no sessions, because the server cannot identify the cancelled request.
func TestNotify_SendsCancellationsOnlyInASession(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	s.on("initialize", greet("", "2025-11-25"))
	conn := openHTTP(t, s.URL)
	for _, method := range []string{"notifications/cancelled", "notifications/initialized"} {
		if err := conn.Notify(within(t, soon), message(method, "")); err != nil {
			t.Fatal(err)
		}
	}
	if n, m := len(s.got("notifications/cancelled")), len(s.got("notifications/initialized")); n != 0 || m != 1 {
		t.Errorf("%d cancellations and %d others were sent, want 0 and 1", n, m)
	}
}

func TestOpen_RefusesInvalidHandshakes(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]webReply{
		"a session that can't be a header": greet("a b", "2025-11-25"),
		"a session without end":            greet(strings.Repeat("x", 8<<10), "2025-11-25"),
		"no answer":                        plain(200, "application/json", ""),
		"not found":                        plain(404, "text/plain", ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			s.on("initialize", reply)
			_, _, err := newHTTP(t, s.URL).Open(within(t, soon), principal.Key{}, message("initialize", "0"))
			if !errors.Is(err, upstream.ErrNoAnswer) {
				t.Errorf("got %v, want %v", err, upstream.ErrNoAnswer)
			}
		})
	}
}

// The revision in a header is always a revision that the gateway knows. It is never an arbitrary string from the
// server.
func TestRequest_SendsOnlyKnownRevisions(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	s.on("initialize", greet("first", "1; X"))
	conn := openHTTP(t, s.URL)
	if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); err != nil {
		t.Fatal(err)
	}
	if got := s.got("tools/call")[0].version; got != "" {
		t.Errorf("the header says %q", got)
	}
}

// A request that may be sent only once is not sent again if the server has lost the session.
func TestRequest_OnceIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	s.on("tools/call", func(w http.ResponseWriter, _ *http.Request, _ webPost) { w.WriteHeader(http.StatusNotFound) })
	once := message("tools/call", "1")
	once.Once = true
	if _, err := conn.Request(within(t, soon), once, nil); !errors.Is(err, upstream.ErrNoAnswer) || len(s.got("tools/call")) != 1 {
		t.Errorf("%v after %d sendings", err, len(s.got("tools/call")))
	}
}
