//go:build unix

package upstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

var ana = principal.Key{Tenant: "default", Subject: "ana"}

type scripted struct {
	upstream.Transport

	answer func() (upstream.Answer, error)
}

type scriptedConn struct {
	upstream.Conn

	server *scripted
}

func (f *scripted) Open(context.Context, principal.Key, upstream.Request) (upstream.Conn, upstream.Answer, error) {
	answer, err := f.answer()
	return &scriptedConn{server: f}, answer, err
}

func (c *scriptedConn) Request(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
	return c.server.answer()
}

func (*scriptedConn) Close(context.Context) error { return nil }

func (*scripted) Kind() string                  { return "stdio" }
func (*scripted) ToolsChanged() <-chan struct{} { return nil }

func well() (upstream.Answer, error) { return upstream.Answer{Status: http.StatusOK}, nil }

func newServer(t *testing.T, over upstream.Transport) *upstream.Server {
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

func web(t *testing.T, url string) upstream.Transport {
	t.Helper()
	over, err := streamable.New(streamable.Config{Name: "web", URL: url}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return over
}

func opened(t *testing.T, f *scripted) (*upstream.Server, *upstream.Session) {
	t.Helper()
	f.answer = well
	s := newServer(t, f)
	sess, _, err := s.Open(t.Context(), ana, upstream.ListTools("", nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, sess
}

func TestLastError_DescribesLastFailure(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		err    error
		want   string
	}{
		"never sent":       {0, fmt.Errorf("%w: x", upstream.ErrNeverSent), "the request never reached the server"},
		"in vain":          {0, fmt.Errorf("%w: x", upstream.ErrTimeout), "the server did not answer in time"},
		"no answer":        {200, upstream.ErrNoAnswer, "the server gave no usable answer"},
		"a status":         {503, upstream.ErrNoAnswer, "the server gave no usable answer: HTTP status 503"},
		"text of a server": {200, fmt.Errorf("%w: it wrote \x1b[31m s3cret", upstream.ErrNoAnswer), "the server gave no usable answer"},
		"an unknown name":  {0, fmt.Errorf("%w: %w", upstream.ErrNeverSent, &net.DNSError{Name: "s3cret"}), "the request never reached the server: its host name was not resolved"},
		"an unknown error": {0, errors.New("s3cret"), "the server gave no usable answer"},
	} {
		f := new(scripted)
		s, sess := opened(t, f)
		fails := func() (upstream.Answer, error) { return upstream.Answer{Status: tt.status}, tt.err }
		for what, ask := range map[string]func() error{
			"opening": func() error { _, _, err := s.Open(t.Context(), ana, upstream.ListTools("", nil), nil); return err },
			"asking": func() error {
				_, err := sess.SendRequest(t.Context(), upstream.ListTools("", nil), nil, nil)
				return err
			},
		} {
			f.answer = fails
			if err := ask(); !errors.Is(err, tt.err) || s.LastError() != tt.want {
				t.Errorf("%s, %s: %q and %v, want %q", name, what, s.LastError(), err, tt.want)
			}
			f.answer = well
			if err := ask(); err != nil || s.LastError() != "" {
				t.Errorf("%s, %s: after an answer there is %q, %v", name, what, s.LastError(), err)
			}
		}
	}
}

// If the gateway or the client has cancelled a request, the last error does not change, because the request says
// nothing about the state of the server.
func TestLastError_IgnoresCancelledRequests(t *testing.T) {
	t.Parallel()
	f := new(scripted)
	s, sess := opened(t, f)
	f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoAnswer }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sess.SendRequest(ctx, upstream.ListTools("", nil), nil, nil); err == nil || s.LastError() != "" {
		t.Errorf("%v, %q", err, s.LastError())
	}
	greets := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var hello struct {
			ID json.RawMessage `json:"id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&hello); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, hello.ID)
	}))
	t.Cleanup(greets.Close)
	s = newServer(t, web(t, greets.URL))
	sess, _, err := s.Open(t.Context(), ana, upstream.Initialize("", "test", "1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sess.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sess.SendRequest(t.Context(), upstream.ListTools("", nil), nil, nil); !errors.Is(err, upstream.ErrNeverSent) || s.LastError() != "" {
		t.Errorf("in a closed session: %v, %q", err, s.LastError())
	}
}

func TestInFlight_CountsWaitingRequests(t *testing.T) {
	t.Parallel()
	const many = 8
	f := new(scripted)
	s, sess := opened(t, f)
	if n := s.InFlight(); n != 0 {
		t.Errorf("%d are in flight before any was sent", n)
	}
	var sent, done sync.WaitGroup
	sent.Add(many)
	release := make(chan struct{})
	f.answer = func() (upstream.Answer, error) {
		sent.Done()
		<-release
		return well()
	}
	for range many {
		done.Go(func() { _, _ = sess.SendRequest(t.Context(), upstream.ListTools("", nil), nil, nil) })
	}
	sent.Wait()
	if n := s.InFlight(); n != many {
		t.Errorf("%d are in flight, want %d", n, many)
	}
	close(release)
	done.Wait()
	if n := s.InFlight(); n != 0 {
		t.Errorf("%d are in flight after the last answer", n)
	}
}

// The reason why a server is unavailable says what has failed, for example a connection or the check of a certificate.
// It contains no text that the server has sent.
func TestLastError_SaysWhyServerIsUnreachable(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "s3cret of the server", http.StatusUnauthorized)
	}))
	t.Cleanup(refuses.Close)
	foreign := httptest.NewUnstartedServer(http.NotFoundHandler())
	foreign.Config.ErrorLog = log.New(io.Discard, "", 0)
	foreign.StartTLS()
	t.Cleanup(foreign.Close)
	program := func(command string) upstream.Transport {
		s, err := stdio.New(stdio.Config{Name: "files", Command: []string{command}, WorkRoot: t.TempDir()}, stdio.Deps{Log: slog.New(slog.DiscardHandler), Room: upstreamtest.Answers(), Sandbox: sandbox.Nothing(), Limiter: proclimit.NewWatching(), Agents: upstreamtest.NoAgents})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, tt := range map[string]struct {
		over upstream.Transport
		want string
	}{
		"a closed port":            {web(t, closed.URL), "the request never reached the server: connection refused"},
		"it wants another token":   {web(t, refuses.URL), "the server refuses the gateway: HTTP 401; look at its headers (servers.web.http.headers)"},
		"an untrusted certificate": {web(t, foreign.URL), "the server's certificate can't be verified: the gateway does not trust its issuer; if the CA is your own, set servers.web.http.ca"},
		"a program that is not":    {program(filepath.Join(t.TempDir(), "none")), "its program can't be started: there is no such file"},
		"a program of no PATH":     {program("no-such-program"), "its program can't be started: there is no such file"},
	} {
		s := newServer(t, tt.over)
		_, _, err := s.Open(t.Context(), ana, upstream.Initialize("", "test", "1"), nil)
		if err == nil || s.LastError() != tt.want || strings.Contains(s.LastError(), "s3cret") {
			t.Errorf("%s: %q, want %q (%v)", name, s.LastError(), tt.want, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
