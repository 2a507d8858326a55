package approvals

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	tracing "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// recordingService is a fake approval service that records the reports that it receives. If fails is set, it returns
// that error.
type recordingService struct {
	approvalv1.ApprovalServiceClient

	told  []string
	fails error
	lease string
}

func (h *recordingService) ReleaseClaim(_ context.Context, r *approvalv1.ReleaseClaimRequest, _ ...grpc.CallOption) (*approvalv1.ReleaseClaimResponse, error) {
	h.told = append(h.told, "release "+r.GetApprovalId()+" "+r.GetClaimId()+" of "+r.GetHolder())
	return &approvalv1.ReleaseClaimResponse{Approval: &approvalv1.Approval{Claim: &approvalv1.ClaimRecord{LimitLeaseId: h.lease}}}, h.fails
}

func (h *recordingService) CompleteClaim(_ context.Context, r *approvalv1.CompleteClaimRequest, _ ...grpc.CallOption) (*approvalv1.CompleteClaimResponse, error) {
	h.told = append(h.told, r.GetOutcome().String()+" "+r.GetApprovalId()+" "+r.GetClaimId()+" of "+r.GetHolder())
	return &approvalv1.CompleteClaimResponse{}, h.fails
}

type recordingLimiter struct {
	ratelimitv1.RateLimitServiceClient

	hears *recordingService
}

func (h recordingLimiter) SettleLease(_ context.Context, r *ratelimitv1.SettleLeaseRequest, _ ...grpc.CallOption) (*ratelimitv1.SettleLeaseResponse, error) {
	h.hears.told = append(h.hears.told, "settle "+r.GetLeaseId())
	return &ratelimitv1.SettleLeaseResponse{}, nil
}

// journalRecord describes a journal record about the call "d-1". If free is true, the call has no approval. Otherwise
// its approval is "a-1".
type journalRecord struct {
	kind   journal.Kind
	result journal.ResultClass
	free   bool
}

func (w journalRecord) to(t *testing.T, j *journal.Journal) {
	t.Helper()
	rec := &journal.Record{DecisionID: "d-1", Method: "tools/call", Server: "pay", Tool: "refund", ApprovalID: "a-1", Attempt: 1, ResultClass: w.result}
	if w.free {
		rec.ApprovalID, rec.Attempt = "", 0
	}
	write := map[journal.Kind]func(context.Context, *journal.Record) error{
		journal.KindClaim: j.Claim, journal.KindIntent: j.Intent, journal.KindOutcome: j.Outcome, journal.KindSettled: j.Settled,
	}[w.kind]
	if err := write(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
}

// After a restart, the gateway reports each unreported call once. What it reports depends on the newest record about
// the call.
func TestReplay_ReportsEachOpenCallOnce(t *testing.T) {
	t.Parallel()
	var (
		claim, intent, settled = journalRecord{kind: journal.KindClaim}, journalRecord{kind: journal.KindIntent}, journalRecord{kind: journal.KindSettled}
		outcome                = func(r journal.ResultClass) journalRecord { return journalRecord{kind: journal.KindOutcome, result: r} }
		lapsed                 = &rpc.Error{Code: codes.FailedPrecondition, Reason: "LEASE_ENDED"}
		notFound               = status.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	)
	const call = " a-1 d-1 of gw"
	for name, tt := range map[string]struct {
		left  []journalRecord
		fails error
		lease string
		told  []string
		open  int
	}{
		"claimed":                        {[]journalRecord{claim}, nil, "", []string{"release" + call}, 0},
		"claimed, with limits":           {[]journalRecord{claim}, nil, "l-1", []string{"release" + call, "settle l-1"}, 0},
		"about to be sent":               {[]journalRecord{claim, intent}, nil, "l-1", []string{"CALL_OUTCOME_UNKNOWN" + call}, 0},
		"it ran":                         {[]journalRecord{claim, intent, outcome(journal.ResultOK)}, nil, "", []string{"CALL_OUTCOME_DONE" + call}, 0},
		"the tool failed":                {[]journalRecord{claim, intent, outcome(journal.ResultToolError)}, nil, "", []string{"CALL_OUTCOME_FAILED" + call}, 0},
		"the protocol failed":            {[]journalRecord{claim, intent, outcome(journal.ResultProtocolError)}, nil, "", []string{"CALL_OUTCOME_FAILED" + call}, 0},
		"nobody knows":                   {[]journalRecord{claim, intent, outcome(journal.ResultUnknown)}, nil, "", []string{"CALL_OUTCOME_UNKNOWN" + call}, 0},
		"it never left":                  {[]journalRecord{claim, intent, outcome(journal.ResultNeverSent)}, nil, "l-1", []string{"release" + call, "settle l-1"}, 0},
		"settled":                        {[]journalRecord{claim, intent, outcome(journal.ResultOK), settled}, nil, "", nil, 0},
		"settled before it was sent":     {[]journalRecord{claim, settled}, nil, "", nil, 0},
		"without an approval":            {[]journalRecord{{kind: journal.KindIntent, free: true}}, nil, "", nil, 0},
		"there is no such approval":      {[]journalRecord{claim}, notFound, "l-1", []string{"release" + call}, 0},
		"the claim is another's":         {[]journalRecord{claim, intent}, status.Error(codes.FailedPrecondition, "NOT_HOLDER"), "", []string{"CALL_OUTCOME_UNKNOWN" + call}, 0},
		"the lease has run out":          {[]journalRecord{claim}, lapsed, "l-1", []string{"release" + call, "CALL_OUTCOME_NEVER_SENT" + call}, 0},
		"the approval service is broken": {[]journalRecord{claim, intent, outcome(journal.ResultOK)}, status.Error(codes.Internal, ""), "", []string{"CALL_OUTCOME_DONE" + call}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := openJournal(t)
			for _, w := range tt.left {
				w.to(t, j)
			}
			h := &recordingService{fails: tt.fails, lease: tt.lease}
			runReplay(t, j, h)
			if diff := cmp.Diff(tt.told, h.told); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
			open, err := OpenCalls(t.Context(), j)
			if err != nil || len(open) != tt.open {
				t.Errorf("afterwards %d are open, want %d (%v)", len(open), tt.open, err)
			}
			if n := outcomesOf(t, j); len(tt.left) > 1 && tt.left[1] == intent && n != 1 {
				t.Errorf("%d outcomes are on record", n)
			}
		})
	}
}

func openJournal(t *testing.T) *journal.Journal {
	t.Helper()
	cfg := journal.DefaultConfig(t.TempDir(), t.TempDir())
	cfg.Build, cfg.Log = "test", slog.New(slog.DiscardHandler)
	j, err := journal.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// runReplay replays a journal, as a restarted gateway does, and waits until the replay has finished.
func runReplay(t *testing.T, j *journal.Journal, h *recordingService) {
	t.Helper()
	m, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	client, err := NewClient(Config{MaxPending: 5, Execute: time.Minute, Holder: "gw"}, h, m, log)
	if err != nil {
		t.Fatal(err)
	}
	policy := struct{ policyv1.PolicyServiceClient }{}
	decisions, err := decisioncache.New(decisioncache.Deps{Policy: policy, Meters: m, Log: log}, false)
	if err != nil {
		t.Fatal(err)
	}
	attempts, err := attempt.NewClient(attempt.Deps{
		Policy: policy, Decisions: decisions, Limiter: recordingLimiter{hears: h}, Journal: j, Tracer: tracing.NewTracerProvider().Tracer("test"), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(client, attempts, log)
	if err != nil {
		t.Fatal(err)
	}
	open, err := OpenCalls(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Replay(t.Context(), open); err != nil {
		t.Fatal(err)
	}
}

func outcomesOf(t *testing.T, j *journal.Journal) (n int) {
	t.Helper()
	for rec, err := range j.Calls(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Kind == journal.KindOutcome {
			n++
		}
	}
	return n
}
