package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

var (
	wouldDeny  = journal.Observed{Effect: "would_deny", Code: "denied_by_rule", Rule: journal.Rule{Document: "draft", Rule: "no"}}
	wouldAllow = journal.Observed{Effect: "would_allow"}
)

// recordCall records a call of ana to files/safe, changed by the given functions.
func (s *Service) recordCall(t *testing.T, kind journal.Kind, observed journal.Observed, change ...func(*journal.Record)) {
	t.Helper()
	r := &journal.Record{
		DecisionID: "id", Principal: journal.Principal{Tenant: "default", Subject: "ana", Agent: "dev"},
		Server: "files", Method: "tools/call", Tool: "safe", Observed: observed,
	}
	for _, f := range change {
		f(r)
	}
	write := map[journal.Kind]func(context.Context, *journal.Record) error{
		journal.KindIntent: s.journal.Intent, journal.KindOutcome: s.journal.Outcome, journal.KindRefusal: s.journal.Refusal, journal.KindPassed: s.journal.Passed,
	}[kind]
	if err := write(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// summarize reads all pages. It returns the rows as lines, and the number of calls. If a row occurs on several pages,
// its counts are added.
func (s *Service) summarize(ctx context.Context, t *testing.T, f *gatewayv1.DecisionFilter) (lines []string, calls int64) {
	t.Helper()
	counts := make(map[string]int64)
	req := &gatewayv1.SummarizeObservationsRequest{Filter: f}
	for more := true; more; more = req.GetPageToken() != "" {
		resp, err := s.SummarizeObservations(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		calls += resp.GetCalls()
		for _, r := range resp.GetRows() {
			would := journal.FromProto(&gatewayv1.Record{Observed: r.GetObserved()}).Observed
			rule := strings.Trim(would.Rule.Document+"/"+would.Rule.Rule, "/")
			counts[strings.TrimSpace(fmt.Sprint(r.GetServer(), " ", r.GetMethod(), " ", r.GetTool(), " ", r.GetSubject(), "/", r.GetAgent(), " ", r.GetAllowed(), " ", would.Effect, " ", would.Code, " ", rule))] += r.GetCount()
		}
		req.PageToken = resp.GetNextPageToken()
	}
	for line, n := range counts {
		lines = append(lines, fmt.Sprintf("%d %s", n, line))
	}
	slices.Sort(lines)
	return lines, calls
}

func TestSummarizeObservations_CountsCallsByResult(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	for range 3 {
		s.recordCall(t, journal.KindIntent, wouldDeny)
		s.recordCall(t, journal.KindOutcome, journal.Observed{})
	}
	s.recordCall(t, journal.KindIntent, journal.Observed{})
	s.recordCall(t, journal.KindRefusal, wouldAllow)
	s.recordCall(t, journal.KindRefusal, wouldDeny)
	s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.Subject, r.Agent = "ben", "" })
	s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.Method, r.Tool = "resources/read", "file:///a" })
	s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.Server, r.Observed.Rule.Rule = "mail", "other" })
	s.recordCall(t, journal.KindRefusal, journal.Observed{}, func(r *journal.Record) { r.Method, r.Tool = "initialize", "" })
	s.recordCall(t, journal.KindRefusal, journal.Observed{}, func(r *journal.Record) { r.Method, r.Count = "", 7 })
	s.recordCall(t, journal.KindPassed, journal.Observed{}, func(r *journal.Record) { r.Method, r.Count = "ping", 7 })
	got, calls := s.summarize(as(t, "default"), t, nil)
	want := []string{
		"1 files resources/read file:///a ana/dev true would_deny denied_by_rule draft/no",
		"1 files tools/call safe ana/dev false would_allow",
		"1 files tools/call safe ana/dev false would_deny denied_by_rule draft/no",
		"1 files tools/call safe ben/ true would_deny denied_by_rule draft/no",
		"1 mail tools/call safe ana/dev true would_deny denied_by_rule draft/other",
		"3 files tools/call safe ana/dev true would_deny denied_by_rule draft/no",
	}
	if diff := cmp.Diff(want, got); diff != "" || calls != 9 {
		t.Errorf("%d calls, want 9; rows (-want +got):\n%s", calls, diff)
	}
}

func TestSummarizeObservations_SelectsByFilter(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	for i := range 5 {
		s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.DecisionID, r.Subject = fmt.Sprintf("id-%d", i), fmt.Sprintf("ana%d", i) })
	}
	var times []*timestamppb.Timestamp
	for i := range 5 {
		resp, err := s.GetDecision(as(t, "default"), &gatewayv1.GetDecisionRequest{Id: fmt.Sprintf("id-%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, resp.GetRecords()[0].GetTime())
	}
	for name, tt := range map[string]struct {
		filter *gatewayv1.DecisionFilter
		want   int64
	}{
		"since": {&gatewayv1.DecisionFilter{Since: times[3]}, 2}, "until": {&gatewayv1.DecisionFilter{Until: times[2]}, 2},
		"between": {&gatewayv1.DecisionFilter{Since: times[1], Until: times[3]}, 2}, "a subject": {&gatewayv1.DecisionFilter{Subject: "ana4"}, 1},
		"a server": {&gatewayv1.DecisionFilter{Server: "mail"}, 0}, "a tool": {&gatewayv1.DecisionFilter{Tool: "safe"}, 5},
	} {
		if got, calls := s.summarize(as(t, "default"), t, tt.filter); calls != tt.want || len(got) != int(tt.want) {
			t.Errorf("%s: %d calls, %v, want %d", name, calls, got, tt.want)
		}
	}
	resp, err := s.SummarizeObservations(as(t, "default"), &gatewayv1.SummarizeObservationsRequest{Filter: &gatewayv1.DecisionFilter{Server: "files"}})
	if err != nil || !resp.GetSearched().AsTime().Equal(times[0].AsTime()) {
		t.Errorf("read back to %v, %v, want %v", resp.GetSearched().AsTime(), err, times[0].AsTime())
	}
}

func TestSummarizeObservations_RowsHaveTheTimesOfTheirCalls(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	before := time.Now()
	s.recordCall(t, journal.KindIntent, wouldDeny)
	middle := time.Now()
	s.recordCall(t, journal.KindIntent, wouldDeny)
	resp, err := s.SummarizeObservations(as(t, "default"), new(gatewayv1.SummarizeObservationsRequest))
	if err != nil || len(resp.GetRows()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	if first, last := resp.GetRows()[0].GetFirst().AsTime(), resp.GetRows()[0].GetLast().AsTime(); first.Before(before) || first.After(middle) || last.Before(middle) {
		t.Errorf("from %v to %v, want both calls around %v", first, last, middle)
	}
}

// Case I4. Callers see only the calls of their own tenant.
func TestSummarizeObservations_IsLimitedToTheTenant(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	s.recordCall(t, journal.KindIntent, wouldDeny)
	s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.Tenant = "acme" })
	s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.Tenant = "acme" })
	for name, tt := range map[string]struct {
		ctx  context.Context
		want int64
	}{
		"default": {as(t, "default"), 1}, "acme": {as(t, "acme"), 2}, "another": {as(t, "evil"), 0}, "an empty tenant": {as(t, ""), 0},
		"a role for itself": {authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_CONSOLE}), 0}, "no verified caller": {t.Context(), 0},
	} {
		if got, calls := s.summarize(tt.ctx, t, nil); calls != tt.want || len(got) != int(min(tt.want, 1)) {
			t.Errorf("%s sees %d calls and %v, want %d", name, calls, got, tt.want)
		}
	}
}

// The calls need more rows than a page may have. The page ends before the next row, and the following pages contain the
// remaining calls.
func TestSummarizeObservations_FullPageEndsBeforeTheNextRow(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	const callers = maxObservedRows + 10
	for i := range callers {
		s.recordCall(t, journal.KindIntent, wouldDeny, func(r *journal.Record) { r.Subject = fmt.Sprintf("ana%d", i) })
	}
	first, err := s.SummarizeObservations(as(t, "default"), new(gatewayv1.SummarizeObservationsRequest))
	if err != nil || len(first.GetRows()) > maxObservedRows || first.GetNextPageToken() == "" {
		t.Fatalf("%d rows, token %q, %v", len(first.GetRows()), first.GetNextPageToken(), err)
	}
	if got, calls := s.summarize(as(t, "default"), t, nil); len(got) != callers || calls != callers {
		t.Errorf("%d rows and %d calls, want %d", len(got), calls, callers)
	}
}

// The total size of the rows on a page is limited, because rows can have long names.
func TestSummarizeObservations_PageSizeIsLimited(t *testing.T) {
	t.Parallel()
	page := observationPage{rows: make(map[observationKey]*gatewayv1.ObservedCalls)}
	r := &journal.Record{Kind: journal.KindIntent, Tool: strings.Repeat("x", maxList/2), Observed: wouldDeny}
	var added []bool
	for _, subject := range []string{"ana", "ben", "ana"} {
		r.Subject = subject
		added = append(added, page.add(r))
	}
	if !slices.Equal(added, []bool{true, false, true}) || page.resp.GetCalls() != 2 || len(page.resp.GetRows()) != 1 {
		t.Errorf("added: %v, %d calls", added, page.resp.GetCalls())
	}
}

func TestSummarizeObservations_RefusesAnInvalidToken(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	if _, err := s.SummarizeObservations(as(t, "default"), &gatewayv1.SummarizeObservationsRequest{PageToken: "x"}); rpc.Reason(err) != "PAGE_TOKEN_INVALID" {
		t.Errorf("got %v", err)
	}
}
