package approval

import (
	"cmp"
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// These are the keys of attributes. docs/telemetry.md lists all values of the attributes. No value contains a string
// that a caller or a person wrote.
const (
	stateKey   = attribute.Key("sluice.approval.state")
	outcomeKey = attribute.Key("sluice.approval.outcome")
	phaseKey   = attribute.Key("sluice.approval.phase")

	approvalKey = attribute.Key("sluice.approval.id")
	verdictKey  = attribute.Key("sluice.approval.verdict")
	errorKey    = attribute.Key("error.type")
)

const voteSpan = "approval vote"

const (
	pending   = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
	approved  = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
	claimed   = approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED
	unknown   = approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN
	denied    = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
	expired   = approvalv1.ApprovalState_APPROVAL_STATE_EXPIRED
	cancelled = approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED
)

// metrics contains the metrics of the approval service. It is safe for concurrent use.
type metrics struct {
	open      metric.Int64ObservableGauge
	duration  metric.Float64Histogram
	decisions metric.Int64Counter
	expired   metric.Int64Counter
	unknown   metric.Int64Counter
	givenUp   metric.Int64Counter

	// outcomes, states and phases contain the attributes for each state. They are created only once to avoid repeated
	// allocations.
	outcomes, states map[approvalv1.ApprovalState]metric.MeasurementOption
	phases           map[approvalv1.ApprovalState]metric.MeasurementOption
}

func newMetrics(ctx context.Context, meter metric.Meter) (*metrics, error) {
	m := &metrics{
		states:   stateAttributes(stateKey, pending, approved, claimed, unknown),
		outcomes: stateAttributes(outcomeKey, approved, denied, expired, cancelled),
		phases: map[approvalv1.ApprovalState]metric.MeasurementOption{
			pending:  metric.WithAttributeSet(attribute.NewSet(phaseKey.String("decide"))),
			approved: metric.WithAttributeSet(attribute.NewSet(phaseKey.String("execute"))),
		},
	}
	var errs [6]error
	m.open, errs[0] = meter.Int64ObservableGauge("sluice.approval.open",
		metric.WithUnit("{approval}"), metric.WithDescription("Approvals in the store that have not ended"))
	m.duration, errs[1] = meter.Float64Histogram("sluice.approval.decision.duration",
		metric.WithUnit("s"), metric.WithDescription("Time from when people were asked to their decision, or to the end without a decision"),
		// The buckets cover people who decide within seconds and people who return the next day. The default time to decide
		// is 15 min.
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400))
	m.decisions, errs[2] = meter.Int64Counter("sluice.approval.decisions",
		metric.WithUnit("{decision}"), metric.WithDescription("How approval requests to people ended"))
	m.expired, errs[3] = meter.Int64Counter("sluice.approval.expired",
		metric.WithUnit("{approval}"), metric.WithDescription("Approvals that expired"))
	m.unknown, errs[4] = meter.Int64Counter("sluice.approval.unknown_outcomes",
		metric.WithUnit("{approval}"), metric.WithDescription("Approved calls whose outcome became unknown"))
	m.givenUp, errs[5] = meter.Int64Counter("sluice.approval.notices.given_up",
		metric.WithUnit("{notice}"), metric.WithDescription("Notices to people that were given up after a day"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	m.addZeros(ctx)
	return m, nil
}

// stateAttributes returns one attribute for each state. The attribute's value is the name of the state.
func stateAttributes(key attribute.Key, states ...approvalv1.ApprovalState) map[approvalv1.ApprovalState]metric.MeasurementOption {
	out := make(map[approvalv1.ApprovalState]metric.MeasurementOption, len(states))
	for _, s := range states {
		out[s] = metric.WithAttributeSet(attribute.NewSet(key.String(lifecycle.StateName(s))))
	}
	return out
}

// addZeros adds zero to every counter. Otherwise a query for the increase of a counter would miss the first event.
func (m *metrics) addZeros(ctx context.Context) {
	for _, outcome := range m.outcomes {
		m.decisions.Add(ctx, 0, outcome)
	}
	for _, phase := range m.phases {
		m.expired.Add(ctx, 0, phase)
	}
	m.unknown.Add(ctx, 0)
	m.givenUp.Add(ctx, 0)
}

// describeVote sets the attributes of a span for a vote, and links the span to the trace of the approval request. The
// attributes contain no text that a person wrote.
func describeVote(span trace.Span, verdict approvalv1.Verdict, a *approvalv1.Approval) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(verdictKey.String(enum.Name(verdict)), approvalKey.String(a.GetId()), stateKey.String(lifecycle.StateName(a.GetState())))
	telemetry.Link(span, a.GetTraceParent())
}

// describeFailedVote sets the attributes of a span for a failed vote. The attribute error.type is the reason in the
// gRPC status of err.
func describeFailedVote(span trace.Span, verdict approvalv1.Verdict, err error) {
	if !span.IsRecording() {
		return
	}
	reason := cmp.Or(rpc.Reason(toStatus(err)), "_OTHER")
	span.SetAttributes(verdictKey.String(enum.Name(verdict)), errorKey.String(reason))
	span.SetStatus(codes.Error, reason)
}

func (m *metrics) observeOpen(o metric.Observer, counts map[approvalv1.ApprovalState]int64) {
	for state, of := range m.states {
		o.ObserveInt64(m.open, counts[state], of)
	}
}

func (m *metrics) countChanges(ctx context.Context, c store.Changes) {
	for _, s := range c.Transitions {
		if outcome, ok := m.outcomes[s.To]; ok && s.From == pending && !s.Granted {
			m.decisions.Add(ctx, 1, outcome)
			m.duration.Record(ctx, s.Time.Sub(s.LastAsked).Seconds(), outcome)
		}
		if phase, ok := m.phases[s.From]; ok && s.To == expired {
			m.expired.Add(ctx, 1, phase)
		}
		if s.To == unknown && s.From != unknown {
			m.unknown.Add(ctx, 1)
		}
	}
	if c.GivenUp > 0 {
		m.givenUp.Add(ctx, c.GivenUp)
	}
}
