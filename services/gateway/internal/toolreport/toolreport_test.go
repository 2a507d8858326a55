package toolreport_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

var page = toolreport.List{Server: "files", Version: "2025-11-25", Recipient: &identityv1.Principal{Tenant: "default", Subject: "ana"}}

func newReporter(tb testing.TB) (*toolreport.Reporter, *toolreporttest.Catalog) {
	tb.Helper()
	catalog := new(toolreporttest.Catalog)
	r, err := toolreport.New(catalog, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return r, catalog
}

func listOf(tb testing.TB, tools string) *jsonrpc.Answer {
	tb.Helper()
	a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":`+tools+`}}`), jsonrpc.AnswerLimits())
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// An unchanged list is reported once an hour. A different list, server or revision is reported immediately.
func TestReport_UnchangedListIsReportedOnceAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, catalog := newReporter(t)
		ask := func(l toolreport.List, tools string, age time.Duration) *toolreport.Response {
			known, err := r.Report(t.Context(), l, listOf(t, tools), age)
			if err != nil {
				t.Fatal(err)
			}
			return known
		}
		one := `[{"name":"a"}]`
		if got := ask(page, one, time.Hour).Digests["a"]; !bytes.Equal(got, toolreporttest.Digest(`{"name":"a"}`)) {
			t.Errorf("the digest is %x", got)
		}
		other, older := page, page
		other.Server, older.Version = "notes", "2024-11-05"
		for want, retry := range []func(){
			func() { ask(page, one, time.Hour) },
			func() { ask(page, `[{"name":"a","title":"x"}]`, time.Hour) },
			func() { ask(other, one, time.Hour) },
			func() { ask(older, one, time.Hour) },
			func() { time.Sleep(time.Minute); ask(page, one, time.Second) },
			func() { time.Sleep(2 * time.Hour); ask(page, one, 1<<62) },
		} {
			retry()
			if got := len(catalog.Reports()); got != 1+want {
				t.Fatalf("after step %d %d lists were reported", want, got)
			}
		}
		complete := page
		complete.Complete = true
		before := len(catalog.Reports())
		ask(complete, one, time.Hour)
		ask(complete, one, time.Hour)
		if got := catalog.Reports(); len(got) != before+2 || !got[before].Head.GetWhole() || got[before].To.GetSubject() != "ana" {
			t.Errorf("a whole list: %v", got)
		}
	})
}

// A definition that exceeds the limits is left out of the report, and its tool's name is reported separately.
func TestReport_LeavesOutDefinitionsThatAreTooLong(t *testing.T) {
	t.Parallel()
	r, catalog := newReporter(t)
	long, large := strings.Repeat("é", 600), strings.Repeat("x", 1<<20)
	known, err := r.Report(t.Context(), page, listOf(t, fmt.Sprintf(`[{"name":"a"},{"name":%q},{"name":"b","description":%q},{"title":"none"}]`, long, large)), time.Hour)
	if err != nil || len(known.Digests) != 1 {
		t.Fatalf("%d digests: %v", len(known.Digests), err)
	}
	got := catalog.Reports()[0]
	if entries := got.Head.GetLeftOut(); len(got.Tools) != 1 || len(entries) != 3 || entries[1] != "b" || entries[2] != "" || !strings.HasPrefix(long, entries[0]) || len(entries[0]) > 128 || len(entries[0]) < 120 {
		t.Errorf("reported %v, left out %q", got.Tools, entries)
	}
}

// Case T1. A tool whose name occurs twice in a list cannot be called. This is true even if only one of its definitions
// is reported because the other one is too long or cannot be read.
func TestReport_ToolListedTwiceHasNoDigest(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]string{
		"another":  `{"name":"a","title":"x"}`,
		"the same": `{"name":"a"}`,
		"too long": fmt.Sprintf(`{"name":"a","description":%q}`, strings.Repeat("x", 1<<20)),
	} {
		for _, tools := range []string{`{"name":"a"},` + second, second + `,{"name":"a"}`} {
			r, _ := newReporter(t)
			known, err := r.Report(t.Context(), page, listOf(t, `[{"name":"b"},`+tools+`]`), time.Hour)
			if err != nil || len(known.Digests) != 1 || known.Digests["b"] == nil {
				t.Errorf("%s: digests of %d tools: %v", name, len(known.Digests), err)
			}
		}
	}
}

// Report returns no response for a list that cannot be reported. For a refused list it returns a response without
// digests.
func TestReport_RefusedListHasNoDigests(t *testing.T) {
	t.Parallel()
	r, catalog := newReporter(t)
	catalog.Fail(status.Error(codes.Unavailable, "away"))
	if _, err := r.Report(t.Context(), page, listOf(t, `[{"name":"a"}]`), time.Hour); !errors.Is(err, toolreport.ErrNotReported) {
		t.Errorf("unavailable: %v", err)
	}
	catalog.Fail(&rpc.Error{Code: codes.ResourceExhausted, Reason: "BUSY", Err: errors.New("busy")})
	if _, err := r.Report(t.Context(), page, listOf(t, `[{"name":"a"}]`), time.Hour); !errors.Is(err, toolreport.ErrNotReported) {
		t.Errorf("busy: %v", err)
	}
	catalog.Fail((&rpc.Error{Code: codes.InvalidArgument, Reason: "TOOL_DUPLICATE", Err: errors.New("twice")}).GRPCStatus().Err())
	known, err := r.Report(t.Context(), page, listOf(t, `[{"name":"a"}]`), time.Hour)
	if err != nil || len(known.Digests) != 0 {
		t.Errorf("refused: %v, %v", known, err)
	}
	catalog.Fail(nil)
	if known, err := r.Report(t.Context(), page, listOf(t, `[{"name":"b"}]`), time.Hour); err != nil || len(known.Digests) != 1 {
		t.Errorf("available again: %v, %v", known, err)
	}
}

// Case X1. A server that lists new tools each time does not fill the cache.
func TestReport_EndlessNewListsDoNotFillTheCache(t *testing.T) {
	t.Parallel()
	r, _ := newReporter(t)
	for i := range 10_000 {
		if _, err := r.Report(t.Context(), page, listOf(t, fmt.Sprintf(`[{"name":"a","title":"%d"}]`, i)), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if lists, digests := r.CacheSize(); lists > 4096 || digests > 200_000 {
		t.Errorf("%d lists and %d digests are kept", lists, digests)
	}
}

// BenchmarkKnownList measures Report for a list of 353 tools that has already been reported. Report finds the digests
// in the cache by a hash of the list.
func BenchmarkKnownList(b *testing.B) {
	raw, err := os.ReadFile("../../../policy/internal/classify/testdata/lists/claude-flow.json")
	if err != nil {
		b.Fatal(err)
	}
	r, _ := newReporter(b)
	answer, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":`+string(raw)+`}`), jsonrpc.AnswerLimits())
	if err != nil {
		b.Fatal(err)
	}
	if len(answer.Tools) != 353 {
		b.Fatalf("%d tools", len(answer.Tools))
	}
	b.ReportAllocs()
	for b.Loop() {
		if known, err := r.Report(b.Context(), page, answer, time.Hour); err != nil || len(known.Digests) != 353 {
			b.Fatal(err)
		}
	}
}
