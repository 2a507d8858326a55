package pipeline

import (
	"context"
	"encoding/hex"
	"errors"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// written writes a record, in a span of its own where the call's is sampled: else that
// costs a look.
func (p *Pipeline) written(ctx context.Context, name string, rec *journal.Record, write func(context.Context, *journal.Record) error) error {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return write(ctx, rec)
	}
	ctx, span := p.deps.Tracer.Start(ctx, name)
	defer span.End()
	err := write(ctx, rec)
	if err != nil {
		spans.Failed(span, enum.Given(commonv1.Code_CODE_AUDIT_UNAVAILABLE))
	}
	return err
}

// base is what every record of a call says.
func (r *run) base(ctx context.Context) *journal.Record {
	rec := &journal.Record{
		DecisionID:     r.id,
		Principal:      named(r.Principal),
		Session:        r.Principal.GetSession(),
		Run:            r.Principal.GetRun(),
		Server:         r.Server,
		Method:         r.Message.Method,
		Tool:           Recorded(r.Message),
		PolicyRevision: r.decision.GetPolicyRevision(),
		RequestBytes:   int64(len(r.Message.Raw)),
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		rec.TraceID = span.TraceID().String()
	}
	for _, p := range r.Principal.GetChain() {
		rec.Chain = append(rec.Chain, named(p))
	}
	if a := r.approved; a != nil {
		rec.ApprovalID, rec.Attempt = a.GetId(), a.attempt
	}
	return rec
}

// arguments is the keyed digest of the call's arguments; empty where it has none.
// Of a call's records the first has it.
func (r *run) arguments() string {
	args := r.Message.Arguments
	if !args.Present() {
		return ""
	}
	return r.deps.Journal.HMAC(args.Of(r.Message.Raw))
}

// named is a principal as records name it.
func named(p *identityv1.Principal) journal.Principal {
	return journal.Principal{
		Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), TokenID: p.GetTokenId(),
	}
}

// intent is the record of a call that is about to be sent.
func (r *run) intent(ctx context.Context) *journal.Record {
	rec := r.base(ctx)
	rec.ArgumentsHMAC = r.arguments()
	rec.Effect = effects[r.decision.GetEffect()]
	rec.Rule = rule(r.decision.GetRule())
	if a := r.approved; a != nil {
		rec.ApprovalDigest = hex.EncodeToString(a.GetDigest())
		rec.Grant = a.GetGrantedBy()
		for _, v := range a.votes {
			rec.Votes = append(rec.Votes, journal.FromVote(v))
		}
	}
	for i, l := range r.decision.GetLimits() {
		limit := journal.FromLimit(l)
		if left := r.lease.GetRemaining(); i < len(left) {
			limit.Remaining = left[i].GetRemaining()
		}
		rec.Limits = append(rec.Limits, limit)
		if limit.SessionKey != "" {
			rec.SessionKey = limit.SessionKey
		}
	}
	if r.lease != nil {
		rec.ReservedAt, rec.LimitLeaseID = r.lease.GetGranted().AsTime(), r.lease.GetId()
	}
	return rec
}

// refusal is the record of a call that was refused. It says what really decided,
// also where the caller is told less.
func (r *run) refusal(ctx context.Context, refused *refusal.Refusal) *journal.Record {
	rec := r.base(ctx)
	rec.ArgumentsHMAC = r.arguments()
	rec.Effect = effects[policyv1.Effect_EFFECT_DENY]
	if r.decision.GetEffect() == policyv1.Effect_EFFECT_REQUIRE_APPROVAL {
		rec.Effect = effects[policyv1.Effect_EFFECT_REQUIRE_APPROVAL]
	}
	rec.Rule = rule(refused.Rule)
	rec.Hidden = r.decision.GetHidden()
	if rec.Hidden {
		rec.Rule = rule(r.decision.GetRule())
	}
	rec.Code = enum.Given(refused.Code)
	rec.Message = refused.Text()
	rec.SessionKey = sessionKey(refused.SessionKey)
	if refused.Approval != nil {
		rec.ApprovalID = refused.Approval.ID
	}
	rec.LatencyMS = millisSince(r.Received)
	return rec
}

// outcome is the record of what came of a call that was sent.
func (r *run) outcome(ctx context.Context, a upstream.Answer, err error) *journal.Record {
	rec := r.base(ctx)
	rec.ResultClass = class(a, err)
	rec.UpstreamStatus = a.Status
	rec.LimitLeaseID = r.lease.GetId()
	if err != nil { // its own text may quote what a server wrote
		rec.Code = enum.Given(outcomeCode(err))
		rec.Message = (&refusal.Refusal{Code: outcomeCode(err), Message: unusable(a.Status, err)}).Text()
	} else {
		rec.ResultBytes = int64(len(a.Message.Raw))
	}
	rec.LatencyMS = millisSince(r.Received)
	return rec
}

// unrecorded is the refusal of a call that is not sent because it could not be recorded
// first.
func (r *run) unrecorded(ctx context.Context, err error) *refusal.Refusal {
	if errors.Is(err, journal.ErrShare) {
		r.deps.Log.WarnContext(ctx, "a principal has its share of the journal; its call is not sent", "decision_id", r.id, "error", err)
		return &refusal.Refusal{
			Code:    commonv1.Code_CODE_ABUSE_LIMITED,
			Message: "this caller's calls take more than their share of the journal; an operator can give them more room.",
		}
	}
	r.deps.Log.ErrorContext(ctx, "intent or claim not recorded; the call is not sent", "decision_id", r.id, "error", err)
	return &refusal.Refusal{Code: commonv1.Code_CODE_AUDIT_UNAVAILABLE}
}

var effects = map[policyv1.Effect]string{
	policyv1.Effect_EFFECT_ALLOW:            "allow",
	policyv1.Effect_EFFECT_DENY:             "deny",
	policyv1.Effect_EFFECT_REQUIRE_APPROVAL: "require_approval",
}

func rule(r *policyv1.RuleRef) journal.Rule {
	return journal.Rule{Document: r.GetDocument(), Rule: r.GetRule()}
}

func sessionKey(k policyv1.SessionKey) string { return enum.Given(k) }

// Rejected is a request of an identified caller that ends before policy is asked.
type Rejected struct {
	// Principal is whose request it is.
	Principal *identityv1.Principal
	// Server, Method and Name are what the request named, as far as it could be
	// read.
	Server, Method, Name string
	// Code is why it was refused, and Message says more; Message may be empty.
	Code    commonv1.Code
	Message string
	// Bytes is the size of the request.
	Bytes int
}

// Reject records such a request and returns the identifier of its decision.
func (p *Pipeline) Reject(ctx context.Context, r Rejected) string {
	p.deps.Meters.Refused(ctx, r.Code)
	refused := refusal.Refusal{Code: r.Code, Message: r.Message}
	rec := &journal.Record{
		DecisionID:   newID(),
		Principal:    named(r.Principal),
		Session:      r.Principal.GetSession(),
		Run:          r.Principal.GetRun(),
		Server:       r.Server,
		Method:       r.Method,
		Tool:         r.Name,
		Effect:       effects[policyv1.Effect_EFFECT_DENY],
		Code:         enum.Given(r.Code),
		Message:      refused.Text(),
		RequestBytes: int64(r.Bytes),
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		rec.TraceID = span.TraceID().String()
	}
	return p.recordRefusal(ctx, rec)
}
