package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// maxReportRows limits the number of rows in a report. Calls without a row are only counted.
	maxReportRows = 10_000
	// maxReportLines is the maximum number of rows in a printed table, so that the table fits on a screen.
	maxReportLines = 20
	// progressInterval is the interval between messages about the progress of a report.
	progressInterval = 2 * time.Second
)

func (t *tool) report() *cobra.Command {
	var since, until string
	filter := new(gatewayv1.DecisionFilter)
	c := &cobra.Command{
		Use: "report", Short: "Show what policies with `mode: observe` would have refused, held or limited", Args: args(cobra.NoArgs),
		Long: `Show the calls that would have been refused, held for approval, limited or allowed without
'mode: observe', and by which rule. Ctrl-C prints the calls that were read so far. With -o json,
all rows are printed.`,
		RunE: func(c *cobra.Command, _ []string) error {
			now := time.Now()
			if err := setTimes(filter, since, until, now); err != nil {
				return usageError{err}
			}
			client, done, err := t.gatewayClient()
			if err != nil {
				return err
			}
			defer done()
			r := newObservationReport(filter, now)
			if term.IsTerminal(int(os.Stderr.Fd())) {
				r.progress = t.errOut
			}
			return t.runReport(c.Context(), client, r)
		},
	}
	c.Flags().StringVar(&since, "since", "24h", "only calls since this time: 15m, 2h or 7d ago, or RFC 3339")
	c.Flags().StringVar(&until, "until", "", "only calls before this time, in the same form")
	c.Flags().StringVar(&filter.Server, "server", "", "only this server")
	c.Flags().StringVar(&filter.Subject, "subject", "", "only this subject")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	for _, flag := range []string{"since", "until", "subject"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	return c
}

// runReport reads the calls for a report and prints the report. If ctx is canceled before all calls are read, it prints
// the calls that it has read and returns errSilent.
func (t *tool) runReport(ctx context.Context, client gatewayv1.GatewayServiceClient, r *observationReport) error {
	err := r.read(ctx, client)
	if err != nil && ctx.Err() == nil {
		return t.explainError(err)
	}
	if r.Complete = err == nil; !r.Complete && r.Searched == nil {
		return errors.New("interrupted before any call was read")
	}
	if err := t.printReport(r); err != nil || r.Complete {
		return err
	}
	fmt.Fprintf(t.errOut, "sluice: interrupted: calls before %s are missing\n", localTime(*r.Searched))
	return errSilent
}

// observationReport contains the calls whose result would have been different without observe mode. Its exported fields
// are the JSON output.
type observationReport struct {
	// Since and Until are the beginning and the end of the period. Since is nil if the period has no beginning.
	Since *time.Time `json:"since,omitzero"`
	Until time.Time  `json:"until"`
	// Complete is true if all calls in the period were read. Otherwise, only the calls since Searched were read.
	Complete bool       `json:"complete"`
	Searched *time.Time `json:"searched,omitzero"`
	// Calls is the number of calls in the period. Different is the number of calls whose result would have been different.
	Calls     int64 `json:"calls"`
	Different int64 `json:"different"`
	// Rows contains the calls whose result would have been different, most frequent first. Others is the number of calls
	// without a row, because there are too many rows.
	Rows   []*reportRow `json:"rows"`
	Others int64        `json:"others"`

	request  *gatewayv1.SummarizeObservationsRequest
	rows     map[reportKey]*reportRow
	byEffect map[string]int64 // number of calls by what would have happened to them, for the headline
	progress io.Writer        // nil if no progress is reported
}

// reportKey contains the fields that all calls in a row share.
type reportKey struct {
	Server  string `json:"server"`
	Method  string `json:"method"`
	Tool    string `json:"tool,omitzero"`
	Subject string `json:"subject"`
	Agent   string `json:"agent,omitzero"`
	// Allowed is true if the calls were allowed, and false if they were refused.
	Allowed bool             `json:"allowed"`
	Would   journal.Observed `json:"observed"`
}

// headlineEffect returns what would have happened to the calls, as an effect in wouldBe.
func (k *reportKey) headlineEffect() string {
	if !k.Allowed && k.Would.Effect == wouldDeny {
		return refusedAnyway
	}
	return k.Would.Effect
}

type reportRow struct {
	reportKey `json:",inline"`

	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

func newObservationReport(filter *gatewayv1.DecisionFilter, now time.Time) *observationReport {
	r := &observationReport{
		Since: timeOrNil(filter.GetSince()), Until: now, Rows: []*reportRow{}, byEffect: make(map[string]int64),
		request: &gatewayv1.SummarizeObservationsRequest{Filter: filter}, rows: make(map[reportKey]*reportRow),
	}
	if until := timeOrNil(filter.GetUntil()); until != nil {
		r.Until = *until
	}
	return r
}

func timeOrNil(at *timestamppb.Timestamp) *time.Time {
	if at == nil {
		return nil
	}
	out := at.AsTime()
	return &out
}

// read reads all pages of calls, newest first. After an error, the report contains the calls that were read so far.
func (r *observationReport) read(ctx context.Context, client gatewayv1.GatewayServiceClient) error {
	defer r.sort()
	lastReport := time.Now()
	for {
		resp, err := summaryPage(ctx, client, r.request)
		if err != nil {
			return err
		}
		r.add(resp)
		if r.request.PageToken = resp.GetNextPageToken(); r.request.GetPageToken() == "" {
			return nil
		}
		if r.progress != nil && r.Searched != nil && time.Since(lastReport) > progressInterval {
			lastReport = time.Now()
			fmt.Fprintf(r.progress, "sluice: read %s so far, back to %s\n", countOfCalls(r.Calls), localTime(*r.Searched))
		}
	}
}

func summaryPage(ctx context.Context, client gatewayv1.GatewayServiceClient, req *gatewayv1.SummarizeObservationsRequest) (*gatewayv1.SummarizeObservationsResponse, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	return client.SummarizeObservations(ctx, req)
}

func (r *observationReport) add(page *gatewayv1.SummarizeObservationsResponse) {
	r.Calls += page.GetCalls()
	if at := timeOrNil(page.GetSearched()); at != nil {
		r.Searched = at
	}
	for _, c := range page.GetRows() {
		key := reportKey{
			Server: c.GetServer(), Method: c.GetMethod(), Tool: c.GetTool(), Subject: c.GetSubject(), Agent: c.GetAgent(), Allowed: c.GetAllowed(),
			Would: journal.FromProto(&gatewayv1.Record{Observed: c.GetObserved()}).Observed,
		}
		r.Different += c.GetCount()
		r.byEffect[key.headlineEffect()] += c.GetCount()
		row := r.rows[key]
		if row == nil && len(r.rows) == maxReportRows {
			r.Others += c.GetCount()
			continue
		}
		if row == nil {
			row = &reportRow{reportKey: key, Last: c.GetLast().AsTime()}
			r.rows[key], r.Rows = row, append(r.Rows, row)
		}
		row.Count += c.GetCount()
		row.First = c.GetFirst().AsTime()
	}
}

// sort sorts the rows by descending number of calls. Rows with equal numbers are sorted by the other cells.
func (r *observationReport) sort() {
	slices.SortFunc(r.Rows, func(a, b *reportRow) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), slices.Compare(a.cells(), b.cells()))
	})
}

const (
	wouldDeny = "would_deny"
	// refusedAnyway is the headline's effect for calls that were refused, and that the policy would have refused with a
	// different code. For example, the tool does not exist, and no rule would have allowed calls to it.
	refusedAnyway = "refused_anyway"
)

// wouldBe contains the effects of decisions in observe mode and their names in the output, in the order of the output.
var wouldBe = []struct{ effect, text string }{
	{wouldDeny, "refused"}, {"would_require_approval", "held for approval"}, {"would_limit", "limited"}, {"would_allow", "allowed"},
	{refusedAnyway, "refused for another reason"},
}

// cells returns the cells of a row in the table, without the count.
func (r *reportRow) cells() []string {
	would := r.Would.Effect
	for _, w := range wouldBe {
		if w.effect == would {
			would = w.text
		}
	}
	was := "refused"
	if r.Allowed {
		was = "allowed"
	}
	who := orDash(r.Subject)
	if r.Agent != "" {
		who += " (" + r.Agent + ")"
	}
	rule := strings.Trim(r.Would.Rule.Document+"/"+r.Would.Rule.Rule, "/")
	return []string{
		orDash(callTarget(r.Server, r.Method, r.Tool)), who, was, would + withPrefix(": ", r.Would.Code), orDash(rule),
	}
}

func (t *tool) printReport(r *observationReport) error {
	if t.json() {
		return t.printJSON(r)
	}
	t.printf("%s", r.headline())
	if r.Different == 0 {
		t.printf("To watch a rule, a policy document or a server before you enforce it, set `mode: observe`")
		t.printf("and `until: DATE` there. %s shows what is observed.", t.command("status"))
		return nil
	}
	fmt.Fprintln(t.out)
	var rows [][]string
	for _, row := range r.Rows[:min(len(r.Rows), maxReportLines)] {
		rows = append(rows, append([]string{fmt.Sprint(row.Count)}, row.cells()...))
	}
	if err := t.table([]string{"CALLS", "WHAT", "WHO", "WAS", "WOULD BE", "RULE"}, rows); err != nil {
		return err
	}
	shown := int64(0)
	for _, row := range r.Rows[:len(rows)] {
		shown += row.Count
	}
	if rest := r.Different - shown; rest > 0 {
		t.printf("not shown: %s; -o json prints all rows", countOfCalls(rest))
	}
	return nil
}

// headline describes the period, the number of calls, and the number of calls whose result would have been different.
func (r *observationReport) headline() string {
	period := "Until " + localTime(r.Until)
	since := r.Since
	if !r.Complete {
		since = r.Searched
	}
	if since != nil {
		period = "From " + localTime(*since) + " to " + localTime(r.Until)
	}
	if r.Different == 0 {
		return fmt.Sprintf("%s: %s, none would have had another result.", period, countOfCalls(r.Calls))
	}
	var parts []string
	for _, w := range wouldBe {
		if n := r.byEffect[w.effect]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, w.text))
		}
	}
	return fmt.Sprintf("%s: %s, %d would have had another result: %s.", period, countOfCalls(r.Calls), r.Different, strings.Join(parts, ", "))
}

func countOfCalls(n int64) string {
	if n == 1 {
		return "1 call"
	}
	return fmt.Sprintf("%d calls", n)
}

func localTime(at time.Time) string { return at.Local().Format(time.DateTime) }
