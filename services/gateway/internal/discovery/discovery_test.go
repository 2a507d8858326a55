package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/paramheaders"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// web is a fake transport to a server that supports only certain revisions.
type web struct {
	upstream.ListChanged

	speaks []string
	broken bool // its list is malformed
	hangs  bool // its list is never answered
	asked  []string
}

func (*web) Kind() string { return "http" }
func (*web) Close() error { return nil }

func (s *web) Open(_ context.Context, _ principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	s.asked = append(s.asked, r.Method())
	modern := r.Method() == "server/discover"
	switch {
	case modern && !slices.Contains(s.speaks, "2026-07-28"):
		return nil, upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrRevision)
	case modern:
		a, err := answer(r, `{"supportedVersions":["2026-07-28"],"capabilities":{}}`)
		return webConn{s}, a, err
	case !slices.Contains(s.speaks, "2025-11-25"):
		a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,"error":{"code":-32601,"message":"x"}}`), jsonrpc.AnswerLimits())
		return webConn{s}, upstream.Answer{Message: a, Status: 404}, err
	default:
		a, err := answer(r, `{"protocolVersion":"2025-11-25","capabilities":{}}`)
		return webConn{s}, a, err
	}
}

type webConn struct{ *web }

func (c webConn) Request(ctx context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	if c.hangs {
		<-ctx.Done()
		return upstream.Answer{}, upstream.ErrTimeout
	}
	if c.broken {
		return upstream.Answer{}, upstream.ErrNoAnswer
	}
	c.asked = append(c.asked, fmt.Sprint(r.Method(), " ", strings.Contains(string(r.Body()), "2026-07-28")))
	return answer(r, `{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}]}`)
}
func (webConn) Notify(context.Context, upstream.Request) error  { return nil }
func (webConn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }
func (webConn) Close(context.Context) error                     { return nil }

// viewOf returns a [discovery.Server] that queries s in the given revision.
func viewOf(t *testing.T, s upstream.Transport, version string) *discovery.Server {
	t.Helper()
	return viewWith(t, s, version, new(toolreporttest.Catalog))
}

// viewWith is like [viewOf], with a catalog that the test controls.
func viewWith(t *testing.T, s upstream.Transport, version string, catalog *toolreporttest.Catalog) *discovery.Server {
	t.Helper()
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	up, err := upstream.New(s, counts)
	if err != nil {
		t.Fatal(err)
	}
	reporter, err := toolreport.New(catalog, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	space, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	view, err := discovery.New(discovery.Config{Name: "files", Version: version, Timeout: timeout}, discovery.Deps{Server: up, Room: space, Catalogue: reporter, Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// The gateway queries a server in the newest revision that uses sessions. If the server is stateless, the gateway uses
// revision 2026-07-28.
func TestGet_AsksInARevisionThatTheServerSpeaks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		speaks  []string
		version string
		want    string
		asked   []string
	}{
		{"with sessions", []string{"2025-11-25"}, "", "2025-11-25", []string{"initialize", "tools/list false"}},
		{"both", []string{"2025-11-25", "2026-07-28"}, "", "2025-11-25", []string{"initialize", "tools/list false"}},
		{"both, asked without", []string{"2025-11-25", "2026-07-28"}, "2026-07-28", "2026-07-28", []string{"server/discover", "tools/list true"}},
		{"without", []string{"2026-07-28"}, "", "2026-07-28", []string{"initialize", "server/discover", "tools/list true"}},
		{"with, asked without", []string{"2025-11-25"}, "2026-07-28", "", []string{"server/discover"}},
		{"neither", nil, "", "", []string{"initialize", "server/discover"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &web{speaks: tt.speaks}
			view := viewOf(t, s, tt.version)
			found, err := view.Get(t.Context(), discovery.Fresh)
			if (err == nil) != (tt.want != "") || err == nil && found.Version != tt.want || view.SpeaksRevision() != (tt.want != "") {
				t.Errorf("found %+v, %v, greeted %t", found, err, view.SpeaksRevision())
			}
			if diff := cmp.Diff(tt.asked, s.asked); diff != "" {
				t.Errorf("it was asked (-want +got):\n%s", diff)
			}
			var mirrors []paramheaders.Binding
			if tt.want != "" { // clients without sessions may use any server, regardless of its revision
				mirrors = []paramheaders.Binding{{Path: []string{"a"}, Header: "Mcp-Param-A"}}
			}
			if diff := cmp.Diff(mirrors, view.ParamHeaders("t")); diff != "" || view.ParamHeaders("x") != nil {
				t.Errorf("heads say (-want +got):\n%s", diff)
			}
		})
	}
}

// A server counts as supporting a revision even if its tool list is malformed. This ends when the server answers that
// it no longer supports the revision.
func TestSpeaksRevision_UntilServerRefusesTheRevision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &web{speaks: []string{"2026-07-28"}, broken: true}
		view := viewOf(t, s, "2026-07-28")
		if _, err := view.Get(t.Context(), discovery.Fresh); err == nil || !view.SpeaksRevision() {
			t.Errorf("its list is broken: %v, greeted %t", err, view.SpeaksRevision())
		}
		s.speaks = nil
		time.Sleep(time.Minute)
		if _, err := view.Get(t.Context(), discovery.Fresh); !errors.Is(err, upstream.ErrRevision) || view.SpeaksRevision() {
			t.Errorf("it was put back: %v, greeted %t", err, view.SpeaksRevision())
		}
	})
}

// The catalog does not accept a server's list. The gateway queries the server again after a short time, because the
// server did not cause the failure.
func TestGet_AsksAgainSoonWhenCatalogRefusesTheList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, catalog := &web{speaks: []string{"2025-11-25"}}, new(toolreporttest.Catalog)
		view := viewWith(t, s, "", catalog)
		catalog.Fail(errors.New("the disk is full"))
		if _, err := view.Get(t.Context(), discovery.Fresh); !errors.Is(err, toolreport.ErrNotReported) || !errors.Is(view.ReportError(), toolreport.ErrNotReported) {
			t.Errorf("the catalog fails: %v, %v", err, view.ReportError())
		}
		catalog.Fail(nil)
		if _, err := view.Get(t.Context(), discovery.Fresh); err == nil {
			t.Error("the server is asked again at once")
		}
		time.Sleep(300 * time.Millisecond)
		if _, err := view.Get(t.Context(), discovery.Fresh); err != nil || view.ReportError() != nil {
			t.Errorf("the catalog is available again: %v, %v", err, view.ReportError())
		}
		s.broken = true
		time.Sleep(time.Hour)
		if _, err := view.Get(t.Context(), discovery.Fresh); err == nil || view.ReportError() != nil {
			t.Errorf("the server's list is broken: %v, %v", err, view.ReportError())
		}
	})
}

// RecheckList queries the server again, but at most every two seconds.
func TestRecheckList_AsksAtMostEveryTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &web{speaks: []string{"2025-11-25"}}
		view := viewOf(t, s, "")
		if _, err := view.Get(t.Context(), discovery.Fresh); err != nil {
			t.Fatal(err)
		}
		began := view.Last().At
		for range 5 {
			view.RecheckList(t.Context(), 2*time.Second)
		}
		time.Sleep(1900 * time.Millisecond)
		if at := view.Last().At; at != began {
			t.Errorf("it is asked again after %v", at.Sub(began))
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := len(s.asked); got != 4 { // initialize and tools/list, twice
			t.Errorf("it was asked %q", s.asked)
		}
		time.Sleep(10 * time.Second)
		view.RecheckList(t.Context(), 2*time.Second) // RecheckList must query the server before it returns
		if got := len(s.asked); got != 6 {
			t.Errorf("it was asked %q", s.asked)
		}
	})
}

// A query has failed, and the server then answers in a session. The gateway queries the server again. All waiting
// callers share one query, and the number of queries is limited.
func TestGetWithRetry_AsksAgainAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &web{speaks: []string{"2025-11-25"}, broken: true}
		view := viewOf(t, s, "")
		began := time.Now()
		if found := view.GetWithRetry(t.Context()); found != nil || time.Since(began).Round(10*time.Millisecond) != 750*time.Millisecond {
			t.Errorf("a server whose list is broken: %v after %v", found, time.Since(began))
		}
		if n := len(s.asked); n != 3 {
			t.Errorf("it was asked %q", s.asked)
		}
		began = time.Now()
		if found := view.GetWithRetry(t.Context()); found != nil || time.Since(began) != 0 {
			t.Errorf("a list that is broken for longer is waited for: %v", time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &web{speaks: []string{"2025-11-25"}, broken: true}
		view := viewOf(t, s, "")
		if _, err := view.Get(t.Context(), discovery.Fresh); err == nil {
			t.Fatal("the list is read")
		}
		s.broken, s.asked = false, nil
		for range 5 {
			go view.GetWithRetry(t.Context())
		}
		time.Sleep(time.Second)
		if view.Last() == nil || len(s.asked) != 2 {
			t.Errorf("found is %v, and it was asked %q", view.Last(), s.asked)
		}
	})
}

// After a timeout, the gateway does not query the server again at once, because the callers have already waited for the
// server's answer.
func TestGetWithRetry_DoesNotWaitForServerThatTimedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		view := viewOf(t, &web{speaks: []string{"2025-11-25"}, hangs: true}, "")
		began := time.Now()
		if found := view.GetWithRetry(t.Context()); found != nil || time.Since(began) != timeout {
			t.Errorf("%v after %v, want nothing after %v", found, time.Since(began), timeout)
		}
	})
}
