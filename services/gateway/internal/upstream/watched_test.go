//go:build unix

package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
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
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// scripted is a server whose answers a test gives.
type scripted struct {
	upstream.Server

	answer func() (upstream.Answer, error)
}

// scriptedConn is a session with it.
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

func (*scripted) Transport() string { return "stdio" }

func well() (upstream.Answer, error) { return upstream.Answer{Status: http.StatusOK}, nil }

func watch(t *testing.T, s upstream.Server) *upstream.Watched {
	t.Helper()
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := upstream.Watch(s, counts)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// watched returns a watched server and a session with it.
func watched(t *testing.T, f *scripted) (*upstream.Watched, upstream.Conn) {
	t.Helper()
	f.answer = well
	w := watch(t, f)
	conn, _, err := w.Open(t.Context(), ana, upstream.ListTools(""))
	if err != nil {
		t.Fatal(err)
	}
	return w, conn
}

func TestTheLastErrorOfAServerIsKnown(t *testing.T) {
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
		w, conn := watched(t, f)
		fails := func() (upstream.Answer, error) { return upstream.Answer{Status: tt.status}, tt.err }
		for what, ask := range map[string]func() error{
			"opening": func() error { _, _, err := w.Open(t.Context(), ana, upstream.ListTools("")); return err },
			"asking":  func() error { _, err := conn.Request(t.Context(), upstream.ListTools(""), nil); return err },
		} {
			f.answer = fails
			if err := ask(); !errors.Is(err, tt.err) || w.LastError() != tt.want {
				t.Errorf("%s, %s: %q and %v, want %q", name, what, w.LastError(), err, tt.want)
			}
			f.answer = well
			if err := ask(); err != nil || w.LastError() != "" {
				t.Errorf("%s, %s: after an answer there is %q, %v", name, what, w.LastError(), err)
			}
		}
	}
}

// A request that our own side ended says nothing about the server: what was known
// before still holds.
func TestARequestThatWasCancelledTellsNothing(t *testing.T) {
	t.Parallel()
	f := new(scripted)
	w, conn := watched(t, f)
	f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoAnswer }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conn.Request(ctx, upstream.ListTools(""), nil); err == nil || w.LastError() != "" {
		t.Errorf("%v, %q", err, w.LastError())
	}
	w = watch(t, newHTTP(t, newWeb(t).URL))
	conn, _, err := w.Open(within(t, soon), ana, message("initialize", "0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(within(t, soon)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Request(within(t, soon), message("tools/list", "1"), nil); !errors.Is(err, upstream.ErrNeverSent) || w.LastError() != "" {
		t.Errorf("in a closed session: %v, %q", err, w.LastError())
	}
}

func TestRequestsInFlightAreCounted(t *testing.T) {
	t.Parallel()
	const many = 8
	f := new(scripted)
	w, conn := watched(t, f)
	if n := w.InFlight(); n != 0 {
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
		done.Go(func() { _, _ = conn.Request(t.Context(), upstream.ListTools(""), nil) })
	}
	sent.Wait()
	if n := w.InFlight(); n != many {
		t.Errorf("%d are in flight, want %d", n, many)
	}
	close(release)
	done.Wait()
	if n := w.InFlight(); n != 0 {
		t.Errorf("%d are in flight after the last answer", n)
	}
}

// Servers that are away are told apart by what the system says, never by what a
// server wrote.
func TestWhyAServerIsAway(t *testing.T) {
	t.Parallel()
	gone := newWeb(t)
	gone.Close()
	refuses := newWeb(t)
	refuses.on("initialize", func(w http.ResponseWriter, _ *http.Request, _ webPost) {
		http.Error(w, "s3cret of the server", http.StatusUnauthorized)
	})
	foreign := httptest.NewUnstartedServer(http.NotFoundHandler())
	foreign.Config.ErrorLog = log.New(io.Discard, "", 0)
	foreign.StartTLS()
	t.Cleanup(foreign.Close)
	program := func(command string) upstream.Server {
		s, err := upstream.NewStdio(upstream.StdioConfig{Name: "files", Command: []string{command}, WorkRoot: t.TempDir()}, upstream.StdioDeps{Log: newLog(), Room: hall(), Sandbox: sandbox.Nothing()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, tt := range map[string]struct {
		server upstream.Server
		want   string
	}{
		"nobody listens":          {newHTTP(t, gone.URL), "the request never reached the server: connection refused"},
		"it wants another token":  {newHTTP(t, refuses.URL), "the server gave no usable answer: HTTP status 401"},
		"a certificate of nobody": {newHTTP(t, foreign.URL), "the request never reached the server: its certificate can't be verified"},
		"a program that is not":   {program(filepath.Join(t.TempDir(), "none")), "the request never reached the server: there is no such file"},
		"a program of no PATH":    {program("no-such-program"), "the request never reached the server: there is no such file"},
	} {
		w := watch(t, tt.server)
		_, _, err := w.Open(within(t, soon), ana, message("initialize", "0"))
		if err == nil || w.LastError() != tt.want || strings.Contains(w.LastError(), "s3cret") {
			t.Errorf("%s: %q, want %q (%v)", name, w.LastError(), tt.want, err)
		}
		if err := w.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
