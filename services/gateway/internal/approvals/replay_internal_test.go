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

// hearing is an approval service that records the reports that it receives. A test can make it fail.
type hearing struct {
	approvalv1.ApprovalServiceClient

	told  []string
	fails error
	lease string
}

func (h *hearing) ReleaseClaim(_ context.Context, r *approvalv1.ReleaseClaimRequest, _ ...grpc.CallOption) (*approvalv1.ReleaseClaimResponse, error) {
	h.told = append(h.told, "release "+r.GetApprovalId()+" "+r.GetClaimId()+" of "+r.GetHolder())
	return &approvalv1.ReleaseClaimResponse{Approval: &approvalv1.Approval{Claim: &approvalv1.ClaimRecord{LimitLeaseId: h.lease}}}, h.fails
}

func (h *hearing) CompleteClaim(_ context.Context, r *approvalv1.CompleteClaimRequest, _ ...grpc.CallOption) (*approvalv1.CompleteClaimResponse, error) {
	h.told = append(h.told, r.GetOutcome().String()+" "+r.GetApprovalId()+" "+r.GetClaimId()+" of "+r.GetHolder())
	return &approvalv1.CompleteClaimResponse{}, h.fails
}

// settling is a limiter that records settlements in the same list as the reports.
type settling struct {
	ratelimitv1.RateLimitServiceClient

	hears *hearing
}

func (h settling) SettleLease(_ context.Context, r *ratelimitv1.SettleLeaseRequest, _ ...grpc.CallOption) (*ratelimitv1.SettleLeaseResponse, error) {
	h.hears.told = append(h.hears.told, "settle "+r.GetLeaseId())
	return &ratelimitv1.SettleLeaseResponse{}, nil
}

// written is a record of the call "d-1". It belongs to the approval "a-1", unless free is set.
type written struct {
	kind   journal.Kind
	result journal.ResultClass
	free   bool
}

func (w written) to(t *testing.T, j *journal.Journal) {
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

// Checks that a gateway reports the unreported calls once at its next start, each by the newest record of the call.
func TestReplay(t *testing.T) {
	t.Parallel()
	var (
		claim, intent, settled = written{kind: journal.KindClaim}, written{kind: journal.KindIntent}, written{kind: journal.KindSettled}
		came                   = func(r journal.ResultClass) written { return written{kind: journal.KindOutcome, result: r} }
		lapsed                 = &rpc.Error{Code: codes.FailedPrecondition, Reason: "LEASE_ENDED"}
		gone                   = status.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	)
	const call = " a-1 d-1 of gw"
	for name, tt := range map[string]struct {
		left  []written
		fails error
		lease string
		told  []string
		open  int
	}{
		"claimed":                        {[]written{claim}, nil, "", []string{"release" + call}, 0},
		"claimed, with limits":           {[]written{claim}, nil, "l-1", []string{"release" + call, "settle l-1"}, 0},
		"about to be sent":               {[]written{claim, intent}, nil, "l-1", []string{"CALL_OUTCOME_UNKNOWN" + call}, 0},
		"it ran":                         {[]written{claim, intent, came(journal.ResultOK)}, nil, "", []string{"CALL_OUTCOME_DONE" + call}, 0},
		"the tool failed":                {[]written{claim, intent, came(journal.ResultToolError)}, nil, "", []string{"CALL_OUTCOME_FAILED" + call}, 0},
		"the protocol failed":            {[]written{claim, intent, came(journal.ResultProtocolError)}, nil, "", []string{"CALL_OUTCOME_FAILED" + call}, 0},
		"nobody knows":                   {[]written{claim, intent, came(journal.ResultUnknown)}, nil, "", []string{"CALL_OUTCOME_UNKNOWN" + call}, 0},
		"it never left":                  {[]written{claim, intent, came(journal.ResultNeverSent)}, nil, "l-1", []string{"release" + call, "settle l-1"}, 0},
		"settled":                        {[]written{claim, intent, came(journal.ResultOK), settled}, nil, "", nil, 0},
		"settled before it was sent":     {[]written{claim, settled}, nil, "", nil, 0},
		"without an approval":            {[]written{{kind: journal.KindIntent, free: true}}, nil, "", nil, 0},
		"there is no such approval":      {[]written{claim}, gone, "l-1", []string{"release" + call}, 0},
		"the claim is another's":         {[]written{claim, intent}, status.Error(codes.FailedPrecondition, "NOT_HOLDER"), "", []string{"CALL_OUTCOME_UNKNOWN" + call}, 0},
		"the lease has run out":          {[]written{claim}, lapsed, "l-1", []string{"release" + call, "CALL_OUTCOME_NEVER_SENT" + call}, 0},
		"the approval service is broken": {[]written{claim, intent, came(journal.ResultOK)}, status.Error(codes.Internal, ""), "", []string{"CALL_OUTCOME_DONE" + call}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := openJournal(t)
			for _, w := range tt.left {
				w.to(t, j)
			}
			h := &hearing{fails: tt.fails, lease: tt.lease}
			replayed(t, j, h)
			if diff := cmp.Diff(tt.told, h.told); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
			left, err := Open(t.Context(), j)
			if err != nil || len(left) != tt.open {
				t.Errorf("afterwards %d are open, want %d (%v)", len(left), tt.open, err)
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

// replayed starts a gateway's replay of its journal, and waits until the replay ends.
func replayed(t *testing.T, j *journal.Journal, h *hearing) {
	t.Helper()
	m, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	waiter, err := NewWaiter(Config{MaxPending: 5, Execute: time.Minute, Holder: "gw"}, h, m, log)
	if err != nil {
		t.Fatal(err)
	}
	policy := struct{ policyv1.PolicyServiceClient }{}
	decisions, err := decisioncache.New(decisioncache.Deps{Policy: policy, Meters: m, Log: log}, false)
	if err != nil {
		t.Fatal(err)
	}
	desk, err := attempt.NewDesk(attempt.Deps{
		Policy: policy, Kept: decisions, Limiter: settling{hears: h}, Journal: j, Tracer: tracing.NewTracerProvider().Tracer("test"), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(waiter, desk, log)
	if err != nil {
		t.Fatal(err)
	}
	left, err := Open(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Replay(t.Context(), left); err != nil {
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
