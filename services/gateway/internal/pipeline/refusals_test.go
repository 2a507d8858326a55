package pipeline_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const recordedOneByOne = 1000

// denyAllExceptBen makes the fake policy deny all calls except calls to the server named "open".
func denyAllExceptBen(w *testPipeline) {
	w.decide = func(_ context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
		if r.GetCall().GetServer() == "open" {
			return &policyv1.DecideCallResponse{Decision: allow()}, nil
		}
		return &policyv1.DecideCallResponse{Decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE}}, nil
	}
}

func run(t *testing.T, p *pipeline.Pipeline) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// countRefusals returns how many refusals the records count. It also checks that there is a record for each id in ids.
func countRefusals(t *testing.T, records []journal.Record, ids map[string]int) (n int64) {
	t.Helper()
	onRecord := make(map[string]bool)
	for _, r := range records {
		n += max(r.Count, 1)
		onRecord[r.DecisionID] = true
	}
	for id := range ids {
		if !onRecord[id] {
			t.Errorf("a caller got decision %q, which is not on record", id)
		}
	}
	return n
}

// After 1,000 refusals in a minute, a principal's further refusals are only counted. Each answer still contains the
// reason and the id of a recorded decision. Allowed calls still run.
func TestRefusals_AboveTheLimitAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		denyAllExceptBen(w)
		p := w.pipeline(t)
		stop := run(t, p)
		const all = 5000
		ids := make(map[string]int)
		for i := range all {
			got := p.Do(t.Context(), w.call(t)).Refusal
			if got.Code != commonv1.Code_CODE_DENIED_BY_RULE || got.ID == "" {
				t.Fatalf("refusal %d: %+v", i, got)
			}
			ids[got.ID]++
			time.Sleep(time.Millisecond)
		}
		if n := len(w.recordsOf(journal.KindRefusal)); n != recordedOneByOne+1 {
			t.Errorf("%d records, want %d and one that stands for the rest", n, recordedOneByOne)
		}
		allowed := w.call(t)
		allowed.Server = "open"
		if got := p.Do(t.Context(), allowed); got.Refusal != nil {
			t.Errorf("an allowed call was refused: %+v", got.Refusal)
		}
		other := w.call(t)
		other.Principal = caller("ben")
		p.Do(t.Context(), other)
		if n := len(w.recordsOf(journal.KindRefusal)); n != recordedOneByOne+2 {
			t.Error("another principal's refusal was not recorded")
		}
		time.Sleep(2 * time.Minute)
		records := w.recordsOf(journal.KindRefusal)
		if n := countRefusals(t, records, ids); n != all+1 {
			t.Errorf("the records stand for %d refusals, want %d", n, all+1)
		}
		rest := records[len(records)-1]
		if rest.Code != "abuse_limited" || rest.Subject != "ana" || rest.Tenant != "acme" || rest.Count != all-recordedOneByOne-1 || rest.Since.IsZero() || ids[rest.DecisionID] != all-recordedOneByOne {
			t.Errorf("the record of the rest is %+v", rest)
		}
		if got := p.Do(t.Context(), w.call(t)).Refusal; ids[got.ID] != 0 {
			t.Error("a new minute begins with the old one's count")
		}
		stop()
	})
}

// Case N2. A principal causes many large refusals. Their records use less than half of the journal's daily space for
// refusals, and all refusals are counted.
func TestRefusals_OfOnePrincipalLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string]string{"small": "x", "large": strings.Repeat("\x01", 4<<10)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				p := w.pipeline(t)
				stop := run(t, p)
				const hours, aMinute = 1, 1200
				for range hours * 60 {
					for range aMinute {
						p.RecordRefusal(t.Context(), attempt.RefusedRequest{
							Principal: caller("ana"), Server: "files", Method: "resources/read", Name: tool, Code: commonv1.Code_CODE_JSON_INVALID,
						})
					}
					time.Sleep(time.Minute)
				}
				stop()
				records := w.recordsOf(journal.KindRefusal)
				if n := countRefusals(t, records, nil); n != hours*60*aMinute {
					t.Errorf("the records stand for %d refusals, want %d", n, hours*60*aMinute)
				}
				var size int
				for i := range records {
					size += journal.RefusalSize(&records[i])
				}
				const burst = 1 << 20
				if aDay := (size-burst)*24/hours + burst; aDay > int(journal.DefaultConfig("", "").Refusals.Bytes)/2 {
					t.Errorf("%d bytes in %d hours: %d in a day", size, hours, aDay)
				}
			})
		})
	}
}

// The pipeline writes the counts of refusals when it stops. It also writes them if a minute ends before the next flush.
func TestRefusals_CountsAreWrittenAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		denyAllExceptBen(w)
		p := w.pipeline(t)
		stop := run(t, p)
		ids := make(map[string]int)
		total := 0
		for _, n := range []int{recordedOneByOne, recordedOneByOne + 1, recordedOneByOne + 2, 3000} {
			for range n {
				ids[p.Do(t.Context(), w.call(t)).Refusal.ID]++
			}
			total += n
			time.Sleep(61 * time.Second)
		}
		for range 2 * recordedOneByOne {
			ids[p.Do(t.Context(), w.call(t)).Refusal.ID]++
		}
		total += 2 * recordedOneByOne
		stop()
		if n := countRefusals(t, w.recordsOf(journal.KindRefusal), ids); n != int64(total) {
			t.Errorf("the records stand for %d refusals, want %d", n, total)
		}
	})
}

// Refusals that happen concurrently are counted exactly, including requests that are refused before the policy service
// evaluates them.
func TestRefusals_AreCountedByPrincipal(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	denyAllExceptBen(w)
	p := w.pipeline(t)
	stop := run(t, p)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 500 {
				switch {
				case i%2 == 0 && n < 60: // beyond the limit these calls wait for their slots
					p.Do(t.Context(), w.call(t))
				case i%2 == 1:
					p.RecordRefusal(t.Context(), attempt.RefusedRequest{Principal: caller("ana"), Server: "files", Code: commonv1.Code_CODE_JSON_INVALID})
				}
			}
		})
	}
	wg.Wait()
	stop()
	records := w.recordsOf(journal.KindRefusal)
	if n := countRefusals(t, records, nil); n != 2240 || len(records) != recordedOneByOne+2 {
		t.Errorf("%d records stand for %d refusals, want 2240", len(records), n)
	}
}

// Case X1. If requests that a server sends are refused, the refusals are counted for that server. Refusals of the
// caller's own requests and of other servers' requests are still recorded individually.
func TestRefusals_OfServerRequestsAreCountedApart(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	p := w.pipeline(t)
	refuse := func(server string, fromServer bool) string {
		return p.RecordRefusal(t.Context(), attempt.RefusedRequest{Principal: caller("ana"), Server: server, Method: "roots/list", Code: commonv1.Code_CODE_METHOD_DENIED, FromServer: fromServer})
	}
	for range 2 * recordedOneByOne {
		refuse("evil", true)
	}
	want := []string{refuse("evil", false), refuse("files", true)}
	records := w.recordsOf(journal.KindRefusal)
	rest := records[recordedOneByOne]
	if len(records) != recordedOneByOne+3 || rest.Code != "abuse_limited" || rest.Server != "evil" || !rest.FromServer {
		t.Fatalf("%d records, of the rest %+v", len(records), rest)
	}
	for i, r := range records[recordedOneByOne+1:] {
		if r.DecisionID != want[i] || r.Code != "method_denied" {
			t.Errorf("the next record is %+v", r)
		}
	}
}

// A request that is refused before the policy service evaluates it is recorded with the values that could be read.
func TestRecordRefusal_RecordsRejectedRequests(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	ctx, span := startSpan(t)
	id := w.pipeline(t).RecordRefusal(ctx, attempt.RefusedRequest{
		Principal: caller("ana"), Server: "files", Method: "tools/call", Name: "safe", Code: commonv1.Code_CODE_HEADER_MISMATCH, Bytes: 7,
	})
	records := w.recordsOf(journal.KindRefusal)
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	if r := records[0]; r.DecisionID != id || r.TraceID != span.TraceID().String() || r.Subject != "ana" || r.Tenant != "acme" || r.Session != "5e5510" ||
		r.Method != "tools/call" || r.Tool != "safe" || r.Code != "header_mismatch" || r.Effect != "deny" || r.RequestBytes != 7 {
		t.Errorf("%+v", r)
	}
}
