package servers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	withSessions = "2025-11-25"
	stateless    = "2026-07-28"
)

// transport is a transport to a fake server that supports the given revisions. If hangs is true and the server does not
// support revision 2026-07-28, the server never answers requests of that revision.
type transport struct {
	upstream.ListChanged

	kind   string
	speaks []string
	hangs  bool
	lists  atomic.Int64
}

func (s *transport) Kind() string { return s.kind }
func (*transport) Close() error   { return nil }

func (s *transport) Open(ctx context.Context, _ principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	discover := r.Method() == "server/discover"
	switch {
	case discover && !slices.Contains(s.speaks, stateless) && s.hangs:
		<-ctx.Done()
		return nil, upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrTimeout)
	case discover && !slices.Contains(s.speaks, stateless):
		return nil, upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrRevision)
	case discover:
		a, err := answer(r, `"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}`)
		return conn{s}, a, err
	case !slices.Contains(s.speaks, withSessions):
		a, err := answer(r, `"error":{"code":-32601,"message":"x"}`)
		a.Status = 404
		return conn{s}, a, err
	default:
		a, err := answer(r, `"result":{"protocolVersion":"2025-11-25","capabilities":{}}`)
		return conn{s}, a, err
	}
}

type conn struct{ *transport }

func (c conn) Request(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	c.lists.Add(1)
	return answer(r, `"result":{"tools":[{"name":"t"},{"name":"t"}]}`)
}
func (conn) Notify(context.Context, upstream.Request) error  { return nil }
func (conn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }
func (conn) Close(context.Context) error                     { return nil }

func answer(r upstream.Request, outcome string) (upstream.Answer, error) {
	a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,`+outcome+`}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: a, Status: 200}, err
}

func newServer(t *testing.T, s *transport) *servers.Server {
	t.Helper()
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	up, err := upstream.New(s, counts)
	if err != nil {
		t.Fatal(err)
	}
	reporter, err := toolreport.New(new(toolreporttest.Catalog), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	out, err := servers.New("files", servers.Config{Upstream: up, Timeout: time.Minute}, servers.Deps{Memory: memory, Catalogue: reporter, Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestServer_FindsOutTheRevisions tests servers that use sessions, stateless servers, servers that support both, and a
// server that never answers requests of revision 2026-07-28. It checks which revisions each server is known to support
// before and after a request.
func TestServer_FindsOutTheRevisions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		revisions           []string
		hangs, speaks, only bool
		versions            []string
	}{
		"sessions":  {[]string{withSessions}, false, false, false, []string{withSessions}},
		"stateless": {[]string{stateless}, false, true, true, []string{stateless}},
		"both":      {[]string{withSessions, stateless}, false, true, false, []string{stateless, withSessions}},
		"hangs":     {[]string{withSessions}, true, false, false, []string{withSessions}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, &transport{kind: "http", speaks: tt.revisions, hangs: tt.hangs})
				if speaks, known := s.Stateless(); speaks || known || s.Versions() != nil || s.IsStateless() || s.Discovery() != s.Own() {
					t.Errorf("before it is asked: %t, %t, %v", speaks, known, s.Versions())
				}
				if _, err := s.Own().Get(t.Context(), time.Minute); err != nil {
					t.Fatal(err)
				}
				if speaks, err := s.AskStateless(t.Context()); err != nil || speaks != tt.speaks {
					t.Errorf("asked, it speaks %s: %t, %v", stateless, speaks, err)
				}
				if speaks, known := s.Stateless(); speaks != tt.speaks || !known || s.IsStateless() != tt.only || !slices.Equal(s.Versions(), tt.versions) {
					t.Errorf("after it is asked: %t, %t, %v", speaks, known, s.Versions())
				}
				if (s.Discovery() == s.Revision(stateless)) != tt.speaks {
					t.Error("the discovery is not that of the revision that the server speaks")
				}
				synctest.Wait()
			})
		})
	}
}

// TestServer_OpenProvidesASession checks that a session can be opened with every server, even if the server is
// stateless.
func TestServer_OpenProvidesASession(t *testing.T) {
	t.Parallel()
	memory, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	for _, speaks := range []string{withSessions, stateless} {
		s := newServer(t, &transport{kind: "http", speaks: []string{speaks}})
		for _, when := range []string{"first", "known"} {
			who := principal.Key{Tenant: "acme", Subject: "ana"}
			held := memory.Open(&limits.Owner{Accounts: principal.AccountsOfKey(who)})
			sess, got, err := s.Open(t.Context(), who, upstream.Initialize(withSessions, "c", "1"), held)
			if err != nil || !got.Message.Result.Present() {
				t.Fatalf("%s, %s: %v, %v", speaks, when, got.Message, err)
			}
			if err := errors.Join(sess.Close(t.Context())); err != nil {
				t.Error(err)
			}
			held.Close()
			if _, err := s.Own().Get(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if greeting, err := servers.Greeting(s.Own().Last()); err != nil || !greeting.ProtocolVersion.Present() {
			t.Errorf("%s: %v, %v", speaks, greeting, err)
		}
	}
}

// TestDiscover_ListsAProgramAgainOnlyAfterUse checks that an unused stdio server is listed only once, and that HTTP
// servers are listed repeatedly.
func TestDiscover_ListsAProgramAgainOnlyAfterUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		program, web := &transport{kind: "stdio", speaks: []string{withSessions}}, &transport{kind: "http", speaks: []string{withSessions}}
		all := map[string]*servers.Server{"program": newServer(t, program), "web": newServer(t, web)}
		const period = time.Hour + 7300*time.Millisecond // no timer of the schedule expires at the same time
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		var policy atomic.Bool
		go func() {
			servers.Discover(ctx, all, policy.Load)
			close(ended)
		}()
		time.Sleep(period)
		if n := program.lists.Load() + web.lists.Load(); n != 0 {
			t.Errorf("without a policy, lists were read %d times", n)
		}
		policy.Store(true)
		time.Sleep(period)
		if n := program.lists.Load(); n != 1 {
			t.Errorf("an idle program was listed %d times", n)
		}
		if n := web.lists.Load(); n < 2 {
			t.Errorf("a server over HTTP was listed %d times", n)
		}
		all["program"].Touch()
		time.Sleep(period)
		if n := program.lists.Load(); n != 2 {
			t.Errorf("a used program was listed %d times", n)
		}
		cancel()
		<-ended
	})
}

// TestFaults_NameWhatEachListLeavesOut checks that new faults of a list replace all earlier faults of that list, and
// that at most 100 faults are stored.
func TestFaults_NameWhatEachListLeavesOut(t *testing.T) {
	t.Parallel()
	s := newServer(t, &transport{kind: "http", speaks: []string{withSessions}})
	if _, err := s.Own().Get(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	twice := s.Faults()
	if len(twice) == 0 || twice[0].GetList() != "tools" || twice[0].GetName() != "t" {
		t.Errorf("a name that is there twice: %v", twice)
	}
	s.SetFaults("prompts", make([]aggregate.LeftOut, 150))
	if n := len(s.Faults()) - len(twice); n != 100 {
		t.Errorf("%d faults are remembered", n)
	}
	s.SetFaults("prompts", nil)
	if n := len(s.Faults()); n != len(twice) {
		t.Errorf("%d faults are left", n)
	}
}
