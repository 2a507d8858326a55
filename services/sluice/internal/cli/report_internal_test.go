package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// summaryPages is a gateway that returns the given pages. Before it returns a page, it calls the function before. If
// that function returns an error, the gateway returns the error instead of the page.
type summaryPages struct {
	gatewayv1.GatewayServiceClient

	pages  []*gatewayv1.SummarizeObservationsResponse
	before func(page int) error
}

func (p *summaryPages) SummarizeObservations(_ context.Context, req *gatewayv1.SummarizeObservationsRequest, _ ...grpc.CallOption) (*gatewayv1.SummarizeObservationsResponse, error) {
	page, _ := strconv.Atoi(req.GetPageToken())
	if p.before != nil {
		if err := p.before(page); err != nil {
			return nil, err
		}
	}
	resp := p.pages[page]
	if page+1 < len(p.pages) {
		resp.NextPageToken = strconv.Itoa(page + 1)
	}
	return resp, nil
}

// reportNow is the end of the period of the reports. The first page of calls goes back one hour from reportNow, the
// second page two hours, and so on.
var reportNow = time.Date(2026, 12, 1, 12, 0, 0, 0, time.Local)

// pageOfSummary returns a page of a summary. The parameter calls is the number of calls, and rows contains the calls
// that would have had a different result.
func pageOfSummary(hour int, calls int64, rows ...*gatewayv1.ObservedCalls) *gatewayv1.SummarizeObservationsResponse {
	at := timestamppb.New(reportNow.Add(-time.Duration(hour) * time.Hour))
	for _, r := range rows {
		r.First, r.Last = at, at
	}
	return &gatewayv1.SummarizeObservationsResponse{Calls: calls, Rows: rows, Searched: at}
}

func observedCalls(n int64, tool, subject string, effect gatewayv1.ObservedEffect, code commonv1.Code, rule string) *gatewayv1.ObservedCalls {
	return &gatewayv1.ObservedCalls{
		Server: "files", Method: "tools/call", Tool: tool, Subject: subject, Allowed: effect != gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_ALLOW, Count: n,
		Observed: &gatewayv1.ObservedDecision{Effect: effect, Code: code, Rule: &policyv1.RuleRef{Document: "draft", Rule: rule}},
	}
}

const (
	denies = gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_DENY
	byRule = commonv1.Code_CODE_DENIED_BY_RULE
)

// runTestReport runs `report` with a fake gateway, and returns what it prints.
func runTestReport(ctx context.Context, p *summaryPages, output string) (out, errOut string, err error) {
	var o, e bytes.Buffer
	t := &tool{self: "sluice", output: output, out: &o, errOut: &e}
	filter := &gatewayv1.DecisionFilter{Since: timestamppb.New(reportNow.Add(-24 * time.Hour))}
	r := newObservationReport(filter, reportNow)
	r.progress = &e
	err = t.runReport(ctx, p, r)
	return o.String(), e.String(), err
}

func TestReport_ShowsTheMostFrequentCallsFirst(t *testing.T) {
	t.Parallel()
	limited := observedCalls(3, "read", "bot", gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_LIMIT, commonv1.Code_CODE_RATE_LIMITED, "slow")
	limited.Agent = "dev"
	asked := observedCalls(1, "", "bot", gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_REQUIRE_APPROVAL, commonv1.Code_CODE_APPROVAL_REQUIRED, "ask")
	asked.Method = "resources/list"
	allowed := observedCalls(1, "write", "bot", gatewayv1.ObservedEffect_OBSERVED_EFFECT_WOULD_ALLOW, 0, "")
	allowed.Observed.Rule = nil
	out, errOut, err := runTestReport(t.Context(), &summaryPages{pages: []*gatewayv1.SummarizeObservationsResponse{
		pageOfSummary(1, 100, observedCalls(2, "write", "ana", denies, byRule, "no"), limited, allowed),
		pageOfSummary(2, 20, asked, observedCalls(2, "write", "ana", denies, byRule, "no")),
	}}, "table")
	want := `From 2026-11-30 12:00:00 to 2026-12-01 12:00:00: 120 calls, 9 would have had another result: 4 refused, 1 held for approval, 3 limited, 1 allowed.

CALLS  WHAT                  WHO        WAS      WOULD BE                              RULE
4      files/write           ana        allowed  refused: denied_by_rule               draft/no
3      files/read            bot (dev)  allowed  limited: rate_limited                 draft/slow
1      files resources/list  bot        allowed  held for approval: approval_required  draft/ask
1      files/write           bot        refused  allowed                               -
`
	if diff := cmp.Diff(want, out); diff != "" || errOut != "" || err != nil {
		t.Errorf("%v, %q; printed (-want +got):\n%s", err, errOut, diff)
	}
}

// An agent calls a tool that does not exist, and that no rule would have allowed. The headline counts these calls
// separately from the calls that the policy would have refused.
func TestReport_HeadlineCountsCallsThatWereRefusedAnywaySeparately(t *testing.T) {
	t.Parallel()
	unknown := observedCalls(3, "nosuch", "bot", denies, commonv1.Code_CODE_DENIED_BY_DEFAULT, "no")
	unknown.Allowed = false
	out, _, err := runTestReport(t.Context(), &summaryPages{pages: []*gatewayv1.SummarizeObservationsResponse{
		pageOfSummary(1, 10, observedCalls(2, "write", "bot", denies, byRule, "no"), unknown),
	}}, "table")
	if want := ": 10 calls, 5 would have had another result: 2 refused, 3 refused for another reason.\n"; err != nil || !strings.Contains(out, want) {
		t.Errorf("%v, the report does not contain %q:\n%s", err, want, out)
	}
}

func TestReport_SaysHowToObserveWhenNothingDiffers(t *testing.T) {
	t.Parallel()
	out, _, err := runTestReport(t.Context(), &summaryPages{pages: []*gatewayv1.SummarizeObservationsResponse{pageOfSummary(1, 1)}}, "table")
	if err != nil || !strings.Contains(out, ": 1 call, none would have had another result.\n") || !strings.Contains(out, "mode: observe") {
		t.Errorf("%v, printed:\n%s", err, out)
	}
}

func TestReport_PrintsAllRowsAsJSON(t *testing.T) {
	t.Parallel()
	var rows []*gatewayv1.ObservedCalls
	for i := range 2 * maxReportLines {
		rows = append(rows, observedCalls(1, "write", fmt.Sprint("ana", i), denies, byRule, "no"))
	}
	p := &summaryPages{pages: []*gatewayv1.SummarizeObservationsResponse{pageOfSummary(1, 50, rows...)}}
	out, _, err := runTestReport(t.Context(), p, "json")
	var got struct {
		Calls, Different, Others int64
		Complete                 bool
		Rows                     []struct {
			Server, Tool, Subject string
			Allowed               bool
			Count                 int64
			Observed              struct {
				Effect, Code string
				Rule         struct{ Document, Rule string }
			}
		}
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if got.Calls != 50 || got.Different != 40 || got.Others != 0 || !got.Complete || len(got.Rows) != len(rows) {
		t.Errorf("%+v", got)
	}
	if r := got.Rows[0]; r.Server != "files" || r.Tool != "write" || r.Subject != "ana0" || !r.Allowed || r.Count != 1 || r.Observed.Effect != "would_deny" ||
		r.Observed.Code != "denied_by_rule" || r.Observed.Rule.Document != "draft" || r.Observed.Rule.Rule != "no" {
		t.Errorf("%+v", r)
	}
	out, _, err = runTestReport(t.Context(), p, "table")
	if lines := strings.Count(out, "\n"); err != nil || lines != maxReportLines+4 || !strings.Contains(out, "not shown: 20 calls; -o json prints all rows\n") {
		t.Errorf("%v, %d lines:\n%s", err, lines, out)
	}
}

// The report keeps a limited number of rows in memory. It nevertheless counts all calls.
func TestReport_CountsCallsOfFurtherRowsTogether(t *testing.T) {
	t.Parallel()
	r := newObservationReport(nil, reportNow)
	for i := range maxReportRows + 5 {
		r.add(pageOfSummary(1, 2, observedCalls(2, "write", fmt.Sprint("ana", i), denies, byRule, "no")))
	}
	r.add(pageOfSummary(1, 2, observedCalls(2, "write", "ana0", denies, byRule, "no")))
	if len(r.Rows) != maxReportRows || r.Others != 10 || r.Different != 2*(maxReportRows+6) || r.Calls != r.Different || r.Rows[0].Count != 4 {
		t.Errorf("%d rows, %d others, %d different", len(r.Rows), r.Others, r.Different)
	}
}

// The person presses Ctrl-C while the second page is being read. The report shows the calls on the first page, and how
// far back these calls go.
func TestReport_InterruptedReportShowsWhatWasRead(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]int{"before the first page": 0, "before the second page": 1} {
		ctx, cancel := context.WithCancel(t.Context())
		p := &summaryPages{pages: []*gatewayv1.SummarizeObservationsResponse{
			pageOfSummary(1, 100, observedCalls(2, "write", "ana", denies, byRule, "no")), pageOfSummary(2, 100),
		}, before: func(n int) error {
			if n == page {
				cancel()
			}
			return ctx.Err()
		}}
		out, errOut, err := runTestReport(ctx, p, "table")
		if page == 0 {
			if err == nil || errors.Is(err, errSilent) || out != "" {
				t.Errorf("%s: %v, printed:\n%s", name, err, out)
			}
			continue
		}
		if !errors.Is(err, errSilent) || !strings.HasPrefix(out, "From 2026-12-01 11:00:00 to 2026-12-01 12:00:00: 100 calls, 2 would") ||
			errOut != "sluice: interrupted: calls before 2026-12-01 11:00:00 are missing\n" {
			t.Errorf("%s: %v, %s, printed:\n%s", name, err, errOut, out)
		}
	}
}

func TestReport_FailsIfTheGatewayFails(t *testing.T) {
	t.Parallel()
	p := &summaryPages{before: func(int) error { return status.Error(codes.FailedPrecondition, "no") }}
	if out, _, err := runTestReport(t.Context(), p, "table"); err == nil || err.Error() != "no" || out != "" {
		t.Errorf("%v, printed %q", err, out)
	}
}

// Reading takes 5.5 s. The report prints its progress every 2 s.
func TestReport_PrintsItsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &summaryPages{before: func(int) error {
			time.Sleep(500 * time.Millisecond)
			return nil
		}}
		for hour := range 11 {
			p.pages = append(p.pages, pageOfSummary(hour, 10))
		}
		_, errOut, err := runTestReport(t.Context(), p, "table")
		if lines := strings.Split(strings.TrimSpace(errOut), "\n"); err != nil || len(lines) != 2 || lines[0] != "sluice: read 50 calls so far, back to 2026-12-01 08:00:00" {
			t.Errorf("%v, printed %q", err, lines)
		}
	})
}

// The line of a call in `decisions tail` says what would have happened to the call. The summary of the decision says so
// too.
func TestDecisions_ShowWhatWouldHaveHappened(t *testing.T) {
	t.Parallel()
	r := &gatewayv1.Record{
		Kind: gatewayv1.RecordKind_RECORD_KIND_INTENT, Server: "files", Method: "tools/call", Tool: "write", Effect: policyv1.Effect_EFFECT_ALLOW,
		Observed: &gatewayv1.ObservedDecision{Effect: denies, Code: byRule, Rule: &policyv1.RuleRef{Document: "draft", Rule: "no"}},
	}
	const want = "would_deny denied_by_rule draft/no"
	if line := strings.Join(recordRow(r), "|"); !strings.Contains(line, "|allow ("+want+")|") {
		t.Errorf("the line is %s", line)
	}
	found := false
	for _, row := range summaryOfDecision([]*gatewayv1.Record{r, {Kind: gatewayv1.RecordKind_RECORD_KIND_OUTCOME}}) {
		found = found || row[0] == "observed" && row[1] == want
	}
	if !found {
		t.Error("the summary does not state what would have happened")
	}
	r.Observed = nil
	if line := strings.Join(recordRow(r), "|"); strings.Contains(line, "(") {
		t.Errorf("without an observation, the line is %s", line)
	}
}
