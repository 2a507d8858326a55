package streamable_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

var anaKey = principal.Key{Tenant: "t", Subject: "ana"}

// startShortLived starts a server whose tokens are renewed with each request, and whose streams stay open.
func startShortLived(t *testing.T) *accounts {
	t.Helper()
	server := startAccounts(t, "ana")
	server.life, server.streamEnded = time.Nanosecond, make(chan string, 10)
	t.Cleanup(server.CloseClientConnections)
	return server
}

// listening listens to a session until its stream ends. It returns when the stream is open.
func listening(t *testing.T, conn upstream.Conn) (ended <-chan error) {
	t.Helper()
	room := upstreamtest.Answers().Open(upstreamtest.Holder(anaKey))
	opened, out := make(chan struct{}), make(chan error, 1)
	go func() {
		defer room.Close()
		out <- conn.Listen(t.Context(), upstream.Listener{Room: room, Opened: func() { close(opened) }, Event: func(upstream.Event) error { return nil }})
	}()
	select {
	case <-opened:
	case err := <-out:
		t.Fatalf("the stream was not opened: %v", err)
	}
	return out
}

// wantLost checks the error of a message in a session whose sign-in has ended.
func wantLost(t *testing.T, what string, err error) {
	t.Helper()
	if cause := upstream.CauseOf(err); !errors.Is(err, upstream.ErrSessionLost) || !errors.Is(err, upstream.ErrSignedOut) || cause == nil || !cause.OfPerson {
		t.Errorf("%s: the error is %v, with the cause %+v", what, err, cause)
	}
}

func (a *accounts) endedSessions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ended)
}

// The stream of a session ends when the person disconnects the server, or connects it again. The session at the server
// is ended with the old token, and the gateway sends no other request in the session.
func TestSignOut_EndsTheSessionAndItsStream(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*accounts){
		"disconnected":    func(a *accounts) { a.disconnect("ana") },
		"another account": func(a *accounts) { a.connectAgain("ana") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startShortLived(t)
			conn, err := openFor(within(t, soon), server.transport(t), "bot", "ana")
			if err != nil {
				t.Fatal(err)
			}
			ended := listening(t, conn)
			change(server)
			wantLost(t, "the stream", <-ended)
			<-server.streamEnded
			_, err = conn.Request(within(t, soon), message("tools/call", "1"), nil)
			if wantLost(t, "a call", err); !errors.Is(err, upstream.ErrNeverSent) || server.calls.Load() != 0 {
				t.Errorf("the call was sent: %v", err)
			}
			wantLost(t, "a notification", conn.Notify(within(t, soon), message("notifications/initialized", "")))
			wantLost(t, "another stream", conn.Listen(within(t, soon), upstream.Listener{}))
			eventually.Holds(t, "the session was ended with the old token", func() bool { return slices.Equal(server.endedSessions(), []string{"session-1 ana 1"}) })
			if err := conn.Close(within(t, soon)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A subscription of revision 2026-07-28, which has no sessions, ends with the connection. Later requests use the next
// one.
func TestSignOut_EndsASubscription(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*accounts){
		"disconnected":    func(a *accounts) { a.disconnect("ana") },
		"another account": func(a *accounts) { a.connectAgain("ana") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startShortLived(t)
			hello := message("server/discover", "0")
			hello.Person = anaKey
			conn, _, err := server.transport(t).Open(within(t, soon), principal.Key{Tenant: "t", Subject: "bot"}, hello)
			if err != nil {
				t.Fatal(err)
			}
			received, ended := make(chan struct{}, 1), make(chan error, 1)
			go func() {
				_, err := conn.Request(t.Context(), message("subscriptions/listen", "1"), func([]byte) { received <- struct{}{} })
				ended <- err
			}()
			<-received
			change(server)
			wantLost(t, "the subscription", <-ended)
			<-server.streamEnded
			_, err = conn.Request(within(t, soon), message("tools/call", "2"), nil)
			if name == "disconnected" != upstream.IsSignIn(err) || name == "another account" != (err == nil) {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// The stream of a server with HTTP+SSE is the session, so it ends with the connection, and no other one is opened.
func TestSignOut_EndsTheStreamOfHTTPWithSSE(t *testing.T) {
	t.Parallel()
	tokens := startShortLived(t)
	server := newOlder(t, nil)
	over, err := streamable.New(streamable.Config{Name: "web", URL: server.URL + "/sse", Tokens: accesstoken.New(tokens, "web", server.URL+"/sse", accesstoken.Account{Person: anaKey})}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = over.Close() })
	conn := openOver(t, over)
	ended := listening(t, conn)
	tokens.connectAgain("ana")
	wantLost(t, "the stream", <-ended)
	_, err = conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if wantLost(t, "a call", err); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("the call was sent: %v", err)
	}
	wantLost(t, "a notification", conn.Notify(within(t, soon), message("notifications/initialized", "")))
	wantLost(t, "another stream", conn.Listen(within(t, soon), upstream.Listener{}))
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.streams) != 1 {
		t.Errorf("%d streams were opened", len(server.streams))
	}
}

// Without a stream, the next request finds out that the person has disconnected the server or signed in with another
// account. Then there can be another session.
func TestSignOut_NextRequestFindsOut(t *testing.T) {
	t.Parallel()
	server := startShortLived(t)
	over := server.transport(t)
	conn, err := openFor(within(t, soon), over, "bot", "ana")
	if err != nil {
		t.Fatal(err)
	}
	server.connectAgain("ana")
	_, err = conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if wantLost(t, "a call", err); !errors.Is(err, upstream.ErrNeverSent) || upstream.IsSignIn(err) {
		t.Errorf("the error is %v", err)
	}
	if conn, err = openFor(within(t, soon), over, "bot", "ana"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); err != nil {
		t.Error(err)
	}
	server.disconnect("ana")
	_, err = conn.Request(within(t, soon), message("tools/call", "2"), nil)
	if wantLost(t, "a call", err); !errors.Is(err, upstream.ErrNeverSent) || !upstream.IsSignIn(err) || !strings.Contains(upstream.CauseOf(err).Text, "sluice connect web") {
		t.Errorf("the error is %v", err)
	}
}

// A session that the client ends after the person has disconnected the server is ended at the server with the last token.
func TestSignOut_SessionIsEndedWithTheLastToken(t *testing.T) {
	t.Parallel()
	server := startShortLived(t)
	conn, err := openFor(within(t, soon), server.transport(t), "bot", "ana")
	if err != nil {
		t.Fatal(err)
	}
	server.disconnect("ana")
	if err := conn.Close(within(t, soon)); err != nil {
		t.Error(err)
	}
	eventually.Holds(t, "the session was ended", func() bool { return slices.Equal(server.endedSessions(), []string{"session-1 ana 1"}) })
}

const (
	revoked  = `Bearer error="invalid_token"`
	noScopes = `Bearer error="insufficient_scope", scope="repo read:org ignore<this>"`
)

// If the server refuses the token of a person, the error says what she can do. Nothing was executed after a status 401,
// so the call can be repeated. After a status 403, that is not known. Other people do not see the error.
func TestRefusal_OfAPersonsAccountSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"initialize", "server/discover", "tools/list", "tools/call"} {
		for _, c := range []struct {
			refusal refusal
			class   error
			signIn  bool
			says    []string
		}{
			{refusal{401, revoked}, upstream.ErrNeverSent, true, []string{"ana", "HTTP 401", "`sluice login`", "`sluice connect web`"}},
			{refusal{401, "Bearer"}, upstream.ErrNeverSent, true, []string{"ana", "`sluice connect web`"}},
			{refusal{401, ""}, upstream.ErrNoAnswer, false, []string{"ana", "`sluice connect web`"}},
			{refusal{403, noScopes}, upstream.ErrNoAnswer, true, []string{"ana", "`repo read:org`", "servers.web.credentials.oauth.scopes", "`sluice connect web`"}},
			{refusal{403, ""}, upstream.ErrNoAnswer, false, []string{"ana", "HTTP 403"}},
		} {
			t.Run(method+" "+c.refusal.challenge, func(t *testing.T) {
				t.Parallel()
				server := startAccounts(t, "ana")
				s := newUpstream(t, server.transport(t))
				err := send(within(t, soon), t, s, server, method, c.refusal)
				cause := upstream.CauseOf(err)
				if !errors.Is(err, c.class) || errors.Is(c.class, upstream.ErrNoAnswer) && errors.Is(err, upstream.ErrNeverSent) || cause == nil || cause.SignIn != c.signIn {
					t.Fatalf("the error is %v, with the cause %+v", err, cause)
				}
				for _, part := range c.says {
					if !strings.Contains(cause.Text, part) || strings.Contains(cause.Text, "ignore") {
						t.Errorf("the cause %q lacks %q", cause.Text, part)
					}
				}
				if s.LastError() != "" {
					t.Errorf("the server's last error is %q", s.LastError())
				}
			})
		}
	}
}

// newUpstream returns the server at a transport.
func newUpstream(t *testing.T, over upstream.Transport) *upstream.Server {
	t.Helper()
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := upstream.New(over, counts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// send sends a request with a method on behalf of ana. The server refuses this request.
func send(ctx context.Context, t *testing.T, s *upstream.Server, server *accounts, method string, refused refusal) error {
	t.Helper()
	refuse := func() {
		server.mu.Lock()
		defer server.mu.Unlock()
		server.refusals[method] = refused
	}
	hello := upstream.Initialize("2025-11-25", "c", "1")
	if method == "server/discover" {
		hello = upstream.Discover(new(upstream.Client))
	}
	if method == "initialize" || method == "server/discover" {
		refuse()
	}
	memory := upstreamtest.Answers().Open(upstreamtest.Holder(anaKey))
	defer memory.Close()
	session, _, err := s.Open(ctx, principal.Key{Tenant: "t", Subject: "bot"}, hello.OnBehalfOf(anaKey), memory)
	if err != nil {
		return err
	}
	refuse()
	_, err = session.Forward(ctx, message(method, "1"), nil)
	return err
}

// A call that may have been executed before the server refused the token does not count as never sent.
func TestRefusal_AfterAnAttemptIsNoProof(t *testing.T) {
	t.Parallel()
	server := startAccounts(t, "ana")
	conn, err := openFor(within(t, soon), server.transport(t), "bot", "ana")
	if err != nil {
		t.Fatal(err)
	}
	server.restart() // the server answers 404, and then refuses another session
	server.mu.Lock()
	server.refusals["initialize"] = refusal{401, revoked}
	server.mu.Unlock()
	_, err = conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if errors.Is(err, upstream.ErrNeverSent) || !errors.Is(err, upstream.ErrNoAnswer) || !upstream.IsSignIn(err) {
		t.Errorf("the error is %v", err)
	}
}
