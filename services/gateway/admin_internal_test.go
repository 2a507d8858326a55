package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// noConn is a connection for sessions that send no requests.
type noConn struct{ upstream.Conn }

func newAdmin(t *testing.T) *Service {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	cfg := journal.DefaultConfig(t.TempDir(), t.TempDir())
	cfg.Log = log
	j, err := journal.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	sessions, err := session.NewStore(session.Config{Idle: time.Hour, MaxPerPrincipal: 100, Ended: func(*session.Session) {}}, log)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := decisioncache.New(decisioncache.Deps{Policy: struct{ policyv1.PolicyServiceClient }{}, Meters: counts, Log: log}, false)
	if err != nil {
		t.Fatal(err)
	}
	memory := forms.Open(t.Context(), filepath.Join(t.TempDir(), "forms.json"), slog.New(slog.DiscardHandler))
	s := &Service{forms: memory, deps: Deps{Tokens: new(authn.Tokens)}, journal: j, sessions: sessions, decisions: decisions, mcp: new(mcpserver.Server), reads: fairqueue.NewForProcessor[string]()}
	openArguments(t, s)
	return s
}

func (s *Service) record(t *testing.T, tenant, subject string) string {
	t.Helper()
	id := fmt.Sprintf("%s-%s", tenant, subject)
	err := s.journal.Refusal(t.Context(), &journal.Record{
		DecisionID: id, Principal: journal.Principal{Tenant: tenant, Subject: subject}, Server: "files", Tool: "safe", Code: "denied_by_rule",
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func as(t *testing.T, tenant string) context.Context {
	t.Helper()
	return authn.WithCaller(t.Context(), &authn.Caller{Person: &identityv1.Principal{Tenant: tenant, Subject: "op"}})
}

func subjects(records []*gatewayv1.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.GetPrincipal().GetTenant()+"/"+r.GetPrincipal().GetSubject())
	}
	return out
}

// Case I4. Callers see only the decisions of their own tenant. Callers in the tenant "default" also see the counts of
// unauthenticated requests. A mesh service that acts for no person or principal sees nothing.
func TestDecisions_AreVisibleOnlyInTheirTenant(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	id := s.record(t, "acme", "ana")
	s.record(t, "default", "dora")
	s.record(t, "", "nobody")
	for name, tt := range map[string]struct {
		ctx  context.Context
		want []string
	}{
		"acme":                   {as(t, "acme"), []string{"acme/ana"}},
		"default":                {as(t, "default"), []string{"default/dora", "/nobody"}},
		"another":                {as(t, "evil"), nil},
		"a tenant that is empty": {as(t, ""), nil},
		"a role for itself":      {authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_CONSOLE}), nil},
		"a role for a principal": {authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_CONSOLE, Principal: &identityv1.Principal{Tenant: "acme"}}), []string{"acme/ana"}},
		"no verified caller":     {t.Context(), nil},
	} {
		resp, err := s.ListDecisions(tt.ctx, &gatewayv1.ListDecisionsRequest{})
		got := subjects(resp.GetRecords())
		slices.Reverse(got) // the newest record comes first
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s lists %v, %v; want %v", name, got, err, tt.want)
		}
		found, err := s.GetDecision(tt.ctx, &gatewayv1.GetDecisionRequest{Id: id})
		if sees := slices.Contains(tt.want, "acme/ana"); sees != (len(found.GetRecords()) == 1) || !sees && rpc.Reason(err) != "DECISION_UNKNOWN" {
			t.Errorf("%s gets %v, %v", name, found, err)
		}
		if got := s.watch(tt.ctx, t); !slices.Equal(got, tt.want) {
			t.Errorf("%s watches %v, want %v", name, got, tt.want)
		}
	}
	never, err := s.GetDecision(as(t, "evil"), &gatewayv1.GetDecisionRequest{Id: "never-was"})
	_, foreign := s.GetDecision(as(t, "evil"), &gatewayv1.GetDecisionRequest{Id: id})
	if never != nil || err == nil || err.Error() != foreign.Error() {
		t.Errorf("another tenant's decision is answered with %v, a missing one with %v", foreign, err)
	}
}

// stream is the server side of a WatchDecisions call. It cancels the call after it has received the expected number of
// records.
type stream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelFunc
	got    []string
	left   int
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Send(r *gatewayv1.WatchDecisionsResponse) error {
	if r.GetRecord() == nil {
		if len(s.got) > 0 {
			return errors.New("the first message is not the first")
		}
		return nil
	}
	s.got = append(s.got, subjects([]*gatewayv1.Record{r.GetRecord()})...)
	if s.left--; s.left == 0 {
		s.cancel()
	}
	return nil
}

// watch calls WatchDecisions with Last set to 10, and returns the subjects of the records that it receives before the
// timeout.
func (s *Service) watch(ctx context.Context, t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	out := &stream{ctx: ctx, cancel: cancel, left: 10}
	err := s.WatchDecisions(&gatewayv1.WatchDecisionsRequest{Last: 10}, out)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the watch ended with %v", err)
	}
	return out.got
}

func TestListDecisions_AppliesTheFilter(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	s.record(t, "acme", "ana")
	s.record(t, "acme", "ben")
	for name, tt := range map[string]struct {
		filter *gatewayv1.DecisionFilter
		want   int
	}{
		"none":            {nil, 2},
		"subject":         {&gatewayv1.DecisionFilter{Subject: "ben"}, 1},
		"server":          {&gatewayv1.DecisionFilter{Server: "files"}, 2},
		"another server":  {&gatewayv1.DecisionFilter{Server: "x"}, 0},
		"another tool":    {&gatewayv1.DecisionFilter{Tool: "x"}, 0},
		"code":            {&gatewayv1.DecisionFilter{Codes: []commonv1.Code{commonv1.Code_CODE_BATCH, commonv1.Code_CODE_DENIED_BY_RULE}}, 2},
		"another code":    {&gatewayv1.DecisionFilter{Codes: []commonv1.Code{commonv1.Code_CODE_BATCH}}, 0},
		"kind":            {&gatewayv1.DecisionFilter{Kinds: []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_REFUSAL}}, 2},
		"another kind":    {&gatewayv1.DecisionFilter{Kinds: []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_INTENT}}, 0},
		"all of it":       {&gatewayv1.DecisionFilter{Server: "files", Tool: "safe", Subject: "ana"}, 1},
		"one that is not": {&gatewayv1.DecisionFilter{Server: "files", Tool: "safe", Subject: "eve"}, 0},
	} {
		resp, err := s.ListDecisions(as(t, "acme"), &gatewayv1.ListDecisionsRequest{Filter: tt.filter})
		if err != nil || len(resp.GetRecords()) != tt.want {
			t.Errorf("%s: %d, %v; want %d", name, len(resp.GetRecords()), err, tt.want)
		}
	}
}

// For each page size, the pages together contain every record exactly once. A page contains at most 3 MiB of records,
// even if the page size allows more. The number of pages is not checked, because a page also ends when the search for
// its records takes too long.
func TestListDecisions_PagesAreComplete(t *testing.T) {
	t.Parallel()
	const written, most = 1000, 3 << 20
	s := newAdmin(t)
	for i := range written {
		rec := &journal.Record{
			DecisionID: strconv.Itoa(i), Principal: journal.Principal{Tenant: "acme", Subject: "ana"}, Message: strings.Repeat("m", 4<<10),
		}
		write := s.journal.Intent
		if i%3 == 0 {
			write = s.journal.Refusal
		}
		if err := write(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int32{0, 300, 1000} {
		req, next := &gatewayv1.ListDecisionsRequest{PageSize: size}, written-1
		for n := 1; n == 1 || req.GetPageToken() != ""; n++ {
			resp, err := s.ListDecisions(as(t, "acme"), req)
			if err != nil || n > written || proto.Size(resp) > most+most>>8 {
				t.Fatalf("page %d of %d each: %d bytes, %v", n, size, proto.Size(resp), err)
			}
			for _, r := range resp.GetRecords() {
				if r.GetDecisionId() != strconv.Itoa(next) {
					t.Fatalf("page %d of %d each has record %s, want %d", n, size, r.GetDecisionId(), next)
				}
				next--
			}
			req.PageToken = resp.GetNextPageToken()
		}
		if next != -1 {
			t.Errorf("pages of %d each end before record %d", size, next)
		}
	}
	for _, token := range []string{"x", "1", "1-", "-1-1", "1-x", "1--1", "0-1", "99999999999999999999-1"} {
		if _, err := s.ListDecisions(as(t, "acme"), &gatewayv1.ListDecisionsRequest{PageToken: token}); rpc.Reason(err) != "PAGE_TOKEN_INVALID" {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// oneServer is a transport whose Open method calls a function that is provided by the test.
type oneServer struct {
	upstream.Transport

	open func(context.Context) (upstream.Conn, upstream.Answer, error)
}

func (*oneServer) Kind() string                  { return "http" }
func (*oneServer) ToolsChanged() <-chan struct{} { return nil }

func (s *oneServer) Open(ctx context.Context, _ principal.Key, _ upstream.Request) (upstream.Conn, upstream.Answer, error) {
	return s.open(ctx)
}

func reached(t *testing.T, over upstream.Transport) *upstream.Server {
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

func TestGetStatus_ShowsUnavailableAndBusyServers(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	opened, release := make(chan struct{}), make(chan struct{})
	s.servers = map[string]*upstream.Server{
		"away": reached(t, &oneServer{open: func(context.Context) (upstream.Conn, upstream.Answer, error) {
			return nil, upstream.Answer{}, fmt.Errorf("%w: it wrote s3cret", upstream.ErrNeverSent)
		}}),
		"busy": reached(t, &oneServer{open: func(context.Context) (upstream.Conn, upstream.Answer, error) {
			close(opened)
			<-release
			return noConn{}, upstream.Answer{}, nil
		}}),
		"calm": reached(t, new(oneServer)),
		"rests": reached(t, &oneServer{open: func(context.Context) (upstream.Conn, upstream.Answer, error) {
			return nil, upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNeverSent, upstream.ErrUnreached)
		}}),
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := s.servers["busy"].Open(t.Context(), principal.Key{}, upstream.ListTools("", nil), nil)
		done <- err
	}()
	<-opened
	if _, _, err := s.servers["away"].Open(t.Context(), principal.Key{}, upstream.ListTools("", nil), nil); err == nil {
		t.Error("an unavailable server opens a session")
	}
	for range 10 {
		if _, _, err := s.servers["rests"].Open(t.Context(), principal.Key{}, upstream.ListTools("", nil), nil); err == nil {
			t.Error("an unavailable server opens a session")
		}
	}
	resp, err := s.GetStatus(as(t, "default"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if last := resp.GetServers()[3]; time.Until(last.GetRestsUntil().AsTime()) <= 0 {
		t.Errorf("a server that was not reached 10 times in a row: %v", last)
	} else {
		last.RestsUntil = nil
	}
	want := []*gatewayv1.ServerStatus{
		{Name: "away", Transport: "http", LastError: "the request never reached the server"},
		{Name: "busy", Transport: "http", InFlight: 1},
		{Name: "calm", Transport: "http"},
		{Name: "rests", Transport: "http", LastError: "the request never reached the server"},
	}
	if diff := cmp.Diff(want, resp.GetServers(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func (s *Service) add(t *testing.T, tenant string) *session.Session {
	t.Helper()
	id, digest := session.NewID()
	sess := &session.Session{ID: id, Digest: digest, Key: session.Key{Key: principal.Key{Tenant: tenant, Subject: "ana"}, Server: "files"}, Upstream: reached(t, new(oneServer)).OpenLater(nil, nil), Opened: time.Now()}
	if err := s.sessions.Add(sess); err != nil {
		t.Fatal(err)
	}
	return sess
}

// pages lists a tenant's sessions page by page and returns their digests. It calls the function between after every
// page except the last one.
func (s *Service) pages(t *testing.T, tenant string, size int32, between func()) []string {
	t.Helper()
	var out []string
	token := ""
	for range 100 {
		resp, err := s.ListSessions(as(t, tenant), &gatewayv1.ListSessionsRequest{PageSize: size, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, sess := range resp.GetSessions() {
			if sess.GetTenant() != tenant {
				t.Errorf("tenant %s sees a session of %s", tenant, sess.GetTenant())
			}
			out = append(out, sess.GetDigest())
		}
		if token = resp.GetNextPageToken(); token == "" {
			return out
		}
		between()
	}
	t.Fatal("there is no last page")
	return nil
}

// Case I4. Callers see only the sessions of their own tenant. A page token that no list has returned is refused.
func TestListSessions_AreVisibleOnlyInTheirTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newAdmin(t)
		var want []string
		for range 5 {
			want = append([]string{s.add(t, "acme").Digest}, want...)
			time.Sleep(time.Second)
		}
		s.add(t, "another")
		for _, size := range []int32{0, 1, 2, 5, 1000} {
			if got := s.pages(t, "acme", size, func() {}); !slices.Equal(got, want) {
				t.Errorf("pages of %d: %v, want %v", size, got, want)
			}
		}
		if got := s.pages(t, "", 10, func() {}); len(got) != 0 {
			t.Errorf("a caller without a tenant sees %v", got)
		}
		for _, token := range []string{"x", want[0], "99999999999999999999-x", "-"} {
			if resp, err := s.ListSessions(as(t, "acme"), &gatewayv1.ListSessionsRequest{PageToken: token}); rpc.Reason(err) != "PAGE_TOKEN_INVALID" {
				t.Errorf("the token %q: %v, %v", token, resp, err)
			}
		}
		closeAll(t, s)
	})
}

func TestListSessions_ContinuesWhenSessionsChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newAdmin(t)
		var all []*session.Session // the most recently used session comes first
		for range 6 {
			all = append([]*session.Session{s.add(t, "acme")}, all...)
			time.Sleep(time.Second)
		}
		step := 0
		got := s.pages(t, "acme", 2, func() {
			step++
			switch step {
			case 1: // use the last session of the previous page and the first session of the next page
				for _, sess := range all[1:3] {
					_, done, err := s.sessions.Use(sess.ID, sess.Key)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Second)
					done()
				}
			case 2: // end the last session of the previous page
				if err := s.sessions.End(all[4].ID, all[4].Key); err != nil {
					t.Error(err)
				}
			}
		})
		want := []string{all[0].Digest, all[1].Digest, all[3].Digest, all[4].Digest, all[5].Digest}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want every session that stayed where it was, once: %v", got, want)
		}
		closeAll(t, s)
	})
}

// closeAll stops the background work of the session store and the journal, which must end before the synctest bubble
// ends.
func closeAll(t *testing.T, s *Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(s.sessions.Run(ctx), s.journal.Close()); err != nil {
		t.Error(err)
	}
}

func TestToStatus_MapsErrorsToCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{errNoDecision, codes.NotFound, "DECISION_UNKNOWN"},
		{fmt.Errorf("x: %w", journal.ErrSlowWatcher), codes.ResourceExhausted, "WATCHER_TOO_SLOW"},
		{fmt.Errorf("x: %w", journal.ErrClosed), codes.Unavailable, "STOPPING"},
		{errors.New("x"), codes.Unknown, ""},
	} {
		if got := toStatus(tt.err); status.Code(got) != tt.code || rpc.Reason(got) != tt.reason {
			t.Errorf("%v is %v %q, want %v %q", tt.err, status.Code(got), rpc.Reason(got), tt.code, tt.reason)
		}
	}
}
