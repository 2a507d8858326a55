package approval_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// counts returns the values of all metrics that are not zero, by name and attributes. For a histogram, the value is the
// number of its observations.
func (s *fixture) counts(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.meters.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int64)
	note := func(name string, of attribute.Set, n int64) {
		if n != 0 {
			out[name+"{"+of.Encoded(attribute.DefaultEncoder())+"}"] = n
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, int64(p.Count))
				}
			default:
				t.Errorf("%s is of kind %T", m.Name, data)
			}
		}
	}
	return out
}

// addDecisions adds the expected metrics of n decisions with an outcome.
func addDecisions(into map[string]int64, outcome string, n int64) {
	for _, name := range []string{"decisions", "decision.duration"} {
		into["sluice.approval."+name+"{sluice.approval.outcome="+outcome+"}"] = n
	}
}

func openMetric(state string) string {
	return "sluice.approval.open{sluice.approval.state=" + state + "}"
}

// claim claims the approved call with the given params.
func (s *fixture) claim(t *testing.T, text, name string, change ...func(*approvalv1.ClaimApprovalRequest)) *approvalv1.ClaimApprovalResponse {
	t.Helper()
	resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(s.ask(t, text).GetApproval(), name, change...))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Each approval counts as one decision, regardless of its number of votes. Later changes by the policy service or by a
// claim do not count as decisions.
func TestMetrics_CountEachApprovalOnce(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		two := func(d *policyv1.Decision) { d.Approval.Quorum = 2 }
		id := s.ask(t, `{"arguments":{"n":1}}`, two).GetApproval().GetId()
		s.approve(t, "ana", id)
		s.approve(t, "ben", id)
		s.approve(t, "ben", id) // a repeated vote has no effect
		if _, err := s.vote(t, "ana", s.ask(t, `{"arguments":{"n":2}}`).GetApproval().GetId(), no); err != nil {
			t.Fatal(err)
		}
		for n, end := range []func(a *approvalv1.Approval){
			func(a *approvalv1.Approval) {
				if _, err := s.gateway().CancelApproval(onBehalfOf(t, bot()), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "x"}); err != nil {
					t.Fatal(err)
				}
			},
			func(a *approvalv1.Approval) { // approved, and later denied by policy
				s.approve(t, "ana", a.GetId())
				s.claim(t, `{"arguments":{"m":1}}`, "denied", func(r *approvalv1.ClaimApprovalRequest) {
					r.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE}
				})
			},
			func(a *approvalv1.Approval) { // approved, with an unknown outcome
				s.approve(t, "ana", a.GetId())
				s.claim(t, `{"arguments":{"m":2}}`, "unknown")
				req := &approvalv1.CompleteClaimRequest{ApprovalId: a.GetId(), ClaimId: "unknown", Holder: "gw-1", Outcome: approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN}
				for range 2 {
					if _, err := s.gateway().CompleteClaim(onBehalfOf(t, bot()), req); err != nil {
						t.Fatal(err)
					}
				}
			},
			func(a *approvalv1.Approval) { // approved, and running
				s.approve(t, "ana", a.GetId())
				s.claim(t, `{"arguments":{"m":3}}`, "running")
			},
			func(*approvalv1.Approval) {}, // still pending
		} {
			end(s.ask(t, fmt.Sprintf(`{"arguments":{"m":%d}}`, n)).GetApproval())
		}
		want := map[string]int64{openMetric("pending"): 1, openMetric("approved"): 1, openMetric("claimed"): 1, openMetric("outcome_unknown"): 1, "sluice.approval.unknown_outcomes{}": 1}
		addDecisions(want, "approved", 4)
		addDecisions(want, "denied", 1)
		addDecisions(want, "cancelled", 1)
		if diff := cmp.Diff(want, s.counts(t)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestMetrics_CountNoDecisionForACoveredCall(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		granting := func(d *policyv1.Decision) {
			d.Approval.Grant = &policyv1.Grant{Calls: 2, Within: durationpb.New(time.Hour)}
		}
		s.approve(t, "ana", s.ask(t, `{"n":1}`, granting).GetApproval().GetId())
		if a := s.ask(t, `{"n":2}`, granting).GetApproval(); a.GetState() != approved || a.GetGrantedBy() == "" {
			t.Fatalf("not covered: %v", a)
		}
		want := map[string]int64{openMetric("approved"): 2}
		addDecisions(want, "approved", 1)
		if diff := cmp.Diff(want, s.counts(t)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// Two approvals expire while no request arrives: one before people have voted, and one after people have approved the
// call but before a claim. The metrics count the two expiries separately.
func TestMetrics_CountExpiriesByPhase(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.Execute = 10 * time.Millisecond }, func(t *testing.T, s *fixture) {
		s.approve(t, "ana", s.ask(t, `{"n":1}`).GetApproval().GetId())
		s.ask(t, `{"n":2}`, func(d *policyv1.Decision) { d.Approval.DecideWithin = durationpb.New(10 * time.Millisecond) })
		s.run(t)
		want := map[string]int64{"sluice.approval.expired{sluice.approval.phase=decide}": 1, "sluice.approval.expired{sluice.approval.phase=execute}": 1}
		addDecisions(want, "approved", 1)
		addDecisions(want, "expired", 1)
		var got map[string]int64
		eventually.Holds(t, "both expire", func() bool { got = s.counts(t); return len(got) >= len(want) && got[openMetric("pending")] == 0 })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func editDatabase(t *testing.T, cfg approval.Config, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(cfg.Data, "approval", "approvals.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestMetrics_CountNoticesThatAreGivenUp(t *testing.T) {
	t.Parallel()
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	t.Cleanup(endpoint.Close)
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	cfg.Notices.Webhooks = []notice.Webhook{{Target: notice.Target{Name: "hook"}, URL: endpoint.URL, Secret: config.Secret(secret)}}
	s := serve(t, cfg)
	s.ask(t, params)
	editDatabase(t, cfg, "UPDATE notices SET due = due - 25 * 3600 * 1000000")
	s.run(t)
	eventually.Holds(t, "the notice is given up", func() bool { return s.counts(t)["sluice.approval.notices.given_up{}"] == 1 })
}

// If the store can't be read, or if the service has closed, the other metrics are still exported.
func TestMetrics_AreExportedWithoutTheStore(t *testing.T) {
	t.Parallel()
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	s := serve(t, cfg)
	s.approve(t, "ana", s.ask(t, params).GetApproval().GetId())
	editDatabase(t, cfg, "ALTER TABLE approvals RENAME TO gone")
	want := make(map[string]int64)
	addDecisions(want, "approved", 1)
	if diff := cmp.Diff(want, s.counts(t)); diff != "" {
		t.Errorf("without the store (-want +got):\n%s", diff)
	}
	editDatabase(t, cfg, "ALTER TABLE gone RENAME TO approvals")
	if got := s.counts(t)[openMetric("approved")]; got != 1 {
		t.Errorf("with the store there are %d open approvals", got)
	}
	if err := s.svc.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.counts(t)); diff != "" {
		t.Errorf("after the end (-want +got):\n%s", diff)
	}
}
