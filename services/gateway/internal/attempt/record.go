package attempt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// writeRecord writes a record with the given function. If the call's span is sampled, writeRecord measures the write
// with a child span. name is the name of that span.
func (d *Client) writeRecord(ctx context.Context, name string, rec *journal.Record, write func(context.Context, *journal.Record) error) error {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return write(ctx, rec)
	}
	ctx, span := d.deps.Tracer.Start(ctx, name)
	defer span.End()
	err := write(ctx, rec)
	if err != nil {
		spans.Failed(span, enum.NameOrEmpty(commonv1.Code_CODE_AUDIT_UNAVAILABLE))
	}
	return err
}

func (d *Client) newRecord() *journal.Record {
	if rec, ok := d.blanks.Get().(*journal.Record); ok {
		return rec
	}
	return new(journal.Record)
}

// reuseRecord clears a record and puts it back into the pool. This is safe because the journal has already copied the
// fields that it needs.
func (d *Client) reuseRecord(rec *journal.Record) {
	*rec = journal.Record{}
	d.blanks.Put(rec)
}

func (a Attempt) baseRecord(ctx context.Context, rec *journal.Record) *journal.Record {
	*rec = journal.Record{
		DecisionID:     a.ID,
		Principal:      PrincipalRecord(a.Principal),
		Session:        a.Principal.GetSession(),
		Run:            a.Principal.GetRun(),
		Server:         a.Server,
		Method:         a.Sent.Method,
		Tool:           jsonrpc.RecordName(a.Sent),
		PolicyRevision: a.Decision.GetPolicyRevision(),
		RequestBytes:   int64(len(a.Sent.Raw)),
		FromServer:     a.FromServer,
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		rec.TraceID = span.TraceID().String()
	}
	for _, behind := range a.Principal.GetChain() {
		rec.Chain = append(rec.Chain, PrincipalRecord(behind))
	}
	if claim := a.Claim; claim != nil {
		rec.ApprovalID, rec.Attempt = claim.GetId(), claim.Attempt
	}
	return rec
}

// addDefinition adds the digest of the tool's definition and the tool's class to the record. Only the first record of a
// call contains them.
func (a Attempt) addDefinition(rec *journal.Record) {
	rec.DefinitionDigest = hex.EncodeToString(a.Definition)
	if class := a.Decision.GetToolClass(); class != nil {
		rec.Category, rec.Risk = enum.NameOrEmpty(class.GetCategory()), enum.NameOrEmpty(class.GetRisk())
	}
}

// arguments returns the keyed digest of a tool call's arguments. For all methods other than tools/call, it returns the
// keyed digest of the params. It returns "" if there are no arguments or params. Only the first record of a call
// contains the digest.
func (d *Client) arguments(a Attempt) string {
	args := a.Sent.Arguments
	if a.Sent.Method != mcp.MethodToolsCall {
		args = a.Sent.Params
	}
	if !args.Present() {
		return ""
	}
	return d.deps.Journal.HMAC(args.Of(a.Sent.Raw))
}

// PrincipalRecord converts a principal to the form that records contain.
func PrincipalRecord(p *identityv1.Principal) journal.Principal {
	return journal.Principal{
		Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), Person: p.GetPerson(), TokenID: p.GetTokenId(),
		Issuer: p.GetIssuer(), Client: p.GetClient(),
	}
}

func (d *Client) intentRecord(ctx context.Context, a Attempt, rec *journal.Record) *journal.Record {
	a.baseRecord(ctx, rec)
	a.addDefinition(rec)
	rec.ArgumentsHMAC = d.arguments(a)
	rec.Effect = effects[a.Decision.GetEffect()]
	rec.Rule, rec.Observed = rule(a.Decision.GetRule()), a.Observed()
	if a.Recorded != nil {
		rec.Recorded = *a.Recorded
	}
	if claim := a.Claim; claim != nil {
		rec.ApprovalDigest = hex.EncodeToString(claim.GetDigest())
		rec.Grant = claim.GetGrantedBy()
		for _, v := range claim.Votes {
			rec.Votes = append(rec.Votes, journal.FromVote(v))
		}
	}
	for i, l := range a.Decision.GetLimits() {
		limit := journal.FromLimit(l)
		if left := a.Lease.GetRemaining(); i < len(left) {
			limit.Remaining = left[i].GetRemaining()
		}
		rec.Limits = append(rec.Limits, limit)
		if limit.SessionKey != "" {
			rec.SessionKey = limit.SessionKey
		}
	}
	if a.Lease != nil {
		rec.ReservedAt, rec.LimitLeaseID = a.Lease.GetGranted().AsTime(), a.Lease.GetId()
	}
	return rec
}

// RefusalRecord returns the record of a refused call. The record contains the actual reason, even if the caller must
// not learn it. The record of a call to a hidden tool does not contain the tool's definition.
func (d *Client) RefusalRecord(ctx context.Context, a Attempt, refused *refusal.Refusal) *journal.Record {
	rec := a.baseRecord(ctx, new(journal.Record))
	if !a.Decision.GetHidden() { // the records of hidden tools must look like the records of missing tools
		a.addDefinition(rec)
	}
	rec.ArgumentsHMAC = d.arguments(a)
	rec.Effect = Denied
	if a.Decision.GetEffect() == policyv1.Effect_EFFECT_REQUIRE_APPROVAL {
		rec.Effect = effects[policyv1.Effect_EFFECT_REQUIRE_APPROVAL]
	}
	rec.Rule = rule(refused.Rule)
	rec.Hidden = a.Decision.GetHidden()
	if rec.Hidden {
		rec.Rule = rule(a.Decision.GetRule())
	}
	rec.Code = enum.NameOrEmpty(refused.Code)
	rec.Message, rec.Observed = refused.Text(), a.Observed()
	rec.SessionKey = sessionKey(refused.SessionKey)
	if refused.Approval != nil {
		rec.ApprovalID = refused.Approval.ID
	}
	rec.LatencyMS = millisSince(a.Received)
	return rec
}

func (a Attempt) outcomeRecord(ctx context.Context, answer upstream.Answer, err error, rec *journal.Record) *journal.Record {
	a.baseRecord(ctx, rec)
	rec.ResultClass = class(answer, err)
	if a.Transport == upstream.KindHost && rec.ResultClass == journal.ResultOK {
		rec.ResultClass = journal.ResultHostExecuted
	}
	rec.UpstreamStatus = answer.Status
	rec.LimitLeaseID = a.Lease.GetId()
	for _, c := range a.Redactor.Counts() {
		rec.Redacted = append(rec.Redacted, journal.Redacted{Name: c.Name, Count: c.N})
	}
	if err != nil { // the message of err is not recorded, because it can quote the server
		rec.Code = enum.NameOrEmpty(Code(err))
		rec.Message = (&refusal.Refusal{Code: Code(err), Message: AnswerProblem(answer.Status, err)}).Text()
		if withheld, ok := errors.AsType[*WithheldError](err); ok {
			rec.Message = withheld.Text()
		}
	} else {
		rec.ResultBytes = int64(len(answer.Message.Raw))
	}
	rec.LatencyMS = millisSince(a.Received)
	return rec
}

func class(a upstream.Answer, err error) journal.ResultClass {
	switch {
	case errors.Is(err, upstream.ErrNeverSent):
		return journal.ResultNeverSent
	case err != nil:
		return journal.ResultUnknown
	case a.Message.Error.Present():
		return journal.ResultProtocolError
	case a.Message.IsError:
		return journal.ResultToolError
	default:
		return journal.ResultOK
	}
}

// RecordIntent records that a call is about to be sent. If RecordIntent returns an error, the caller must not send the
// call.
func (d *Client) RecordIntent(ctx context.Context, a Attempt) error {
	rec := d.newRecord()
	defer d.reuseRecord(rec)
	return d.writeRecord(ctx, spans.JournalIntent, d.intentRecord(ctx, a, rec), d.deps.Journal.Intent)
}

// RecordClaim records that an approval is about to be claimed. key is the idempotency key of the limit reservation, or
// "" if no limits are reserved. If RecordClaim returns an error, the caller must not claim the approval.
func (d *Client) RecordClaim(ctx context.Context, a Attempt, key string) error {
	rec := d.intentRecord(ctx, a, new(journal.Record))
	rec.IdempotencyKey = key
	return d.writeRecord(ctx, spans.JournalClaim, rec, d.deps.Journal.Claim)
}

// RecordOutcome records the outcome of a sent call and returns the class of the outcome. An error means that the
// journal does not contain the outcome yet.
func (d *Client) RecordOutcome(ctx context.Context, a Attempt, answer upstream.Answer, err error) (journal.ResultClass, error) {
	rec := d.newRecord()
	defer d.reuseRecord(rec)
	a.outcomeRecord(ctx, answer, err, rec)
	return rec.ResultClass, d.writeRecord(ctx, spans.JournalOutcome, rec, d.deps.Journal.Outcome)
}

// RecordSettled records that all reports about an approved call have reached the approval service.
func (d *Client) RecordSettled(ctx context.Context, a Attempt) {
	d.WriteSettled(ctx, a.baseRecord(ctx, new(journal.Record)))
}

// WriteSettled does the same as [Client.RecordSettled] for a call that is known only from an earlier record.
func (d *Client) WriteSettled(ctx context.Context, rec *journal.Record) {
	if err := d.deps.Journal.Settled(ctx, rec); err != nil && !errors.Is(err, journal.ErrClosed) {
		d.deps.Log.WarnContext(ctx, "settled call not recorded", "decision_id", rec.DecisionID, "error", err)
	}
}

// WriteRefusal records a refusal. If it cannot be recorded, WriteRefusal logs the error.
func (d *Client) WriteRefusal(ctx context.Context, rec *journal.Record) {
	if err := d.writeRecord(context.WithoutCancel(ctx), spans.JournalRefusal, rec, d.deps.Journal.Refusal); err != nil {
		d.deps.Log.ErrorContext(ctx, "refusal not recorded", "decision_id", rec.DecisionID, "error", err)
	}
}

// WriteOutcome records the outcome of a call that is known only from an earlier record.
func (d *Client) WriteOutcome(ctx context.Context, rec *journal.Record) error {
	return d.deps.Journal.Outcome(ctx, rec)
}

// WritePassed writes the record that counts how many messages were allowed without a policy rule.
func (d *Client) WritePassed(ctx context.Context, rec *journal.Record) error {
	return d.deps.Journal.Passed(ctx, rec)
}

// NotSent returns the refusal for a call that is not sent because its intent or claim could not be recorded.
func (d *Client) NotSent(ctx context.Context, a Attempt, err error) *refusal.Refusal {
	if errors.Is(err, journal.ErrQuota) {
		d.deps.Log.WarnContext(ctx, "a principal has used up its quota of the journal; its call is not sent", "decision_id", a.ID, "error", err)
		refused := &refusal.Refusal{
			Code:    commonv1.Code_CODE_ABUSE_LIMITED,
			Message: "the records of this caller's calls exceed their quota of the journal; an operator can raise it (journal.share, journal.calls_mib).",
		}
		if full := quota.Reason(err); full != "" {
			refused.Message = full + "; an operator can raise the limit (journal.share, journal.calls_mib)."
		}
		return refused
	}
	if errors.Is(err, arguments.ErrNotStored) {
		d.deps.Log.ErrorContext(ctx, "arguments not recorded; the call is not sent", "decision_id", a.ID, "error", err)
		return &refusal.Refusal{
			Code:    commonv1.Code_CODE_AUDIT_UNAVAILABLE,
			Message: "the arguments of this call can't be recorded, and its rule or server demands it; `sluice status` says why.",
		}
	}
	d.deps.Log.ErrorContext(ctx, "intent or claim not recorded; the call is not sent", "decision_id", a.ID, "error", err)
	return &refusal.Refusal{Code: commonv1.Code_CODE_AUDIT_UNAVAILABLE}
}

// Denied is the effect that the journal records for denied and refused calls.
const Denied = "deny"

var effects = map[policyv1.Effect]string{
	policyv1.Effect_EFFECT_ALLOW:            "allow",
	policyv1.Effect_EFFECT_DENY:             Denied,
	policyv1.Effect_EFFECT_REQUIRE_APPROVAL: "require_approval",
}

func rule(r *policyv1.RuleRef) journal.Rule {
	return journal.Rule{Document: r.GetDocument(), Rule: r.GetRule()}
}

func sessionKey(k policyv1.SessionKey) string { return enum.NameOrEmpty(k) }

// RefusedRequest is a request from an authenticated caller that was refused before the policy service evaluated it.
type RefusedRequest struct {
	// Principal is the caller.
	Principal *identityv1.Principal
	// Server, Method and Name come from the request. A field is empty if it could not be read from the request.
	Server, Method, Name string
	// Code is the reason for the refusal. Message adds details and may be empty.
	Code    commonv1.Code
	Message string
	// Bytes is the size of the request, in bytes.
	Bytes int
	// FromServer is true if a server sent the request.
	FromServer bool
}

// Record returns the record of the refused request. The record has a new decision id.
func (r RefusedRequest) Record(ctx context.Context) *journal.Record {
	refused := refusal.Refusal{Code: r.Code, Message: r.Message}
	rec := &journal.Record{
		DecisionID:   NewID(),
		Principal:    PrincipalRecord(r.Principal),
		Session:      r.Principal.GetSession(),
		Run:          r.Principal.GetRun(),
		Server:       r.Server,
		Method:       r.Method,
		Tool:         r.Name,
		Effect:       Denied,
		Code:         enum.NameOrEmpty(r.Code),
		Message:      refused.Text(),
		RequestBytes: int64(r.Bytes),
		FromServer:   r.FromServer,
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		rec.TraceID = span.TraceID().String()
	}
	return rec
}

// AnswerProblem returns a text that explains why a server's answer cannot be used. It returns "" if neither the HTTP
// status nor err explains it.
func AnswerProblem(status int, err error) string {
	if errors.Is(err, limits.ErrMemory) {
		return "the server answered, but no memory is left for the answer: read other answers first, or make fewer such calls at once. Whether the call ran is not known."
	}
	if errors.Is(err, quota.ErrFull) {
		return quota.Reason(err) + "; end some of them, or wait until they are idle and end by themselves."
	}
	for _, own := range []error{upstream.ErrCircuitOpen, upstream.ErrBusy} {
		if errors.Is(err, own) {
			return own.Error() + "."
		}
	}
	if limit, ok := errors.AsType[*upstream.LimitError](err); ok {
		return unusableByLimit(limit, err)
	}
	if errors.Is(err, ErrClient) {
		return ErrClient.Error() + "."
	}
	if errors.Is(err, bodyreader.ErrSlow) {
		return bodyreader.ErrSlow.Error() + ". Whether the call ran is not known."
	}
	if late, ok := errors.AsType[TimeoutError](err); ok && (late.Key != "" || late.ByServer) {
		return late.Error() + "; whether the call ran is not known."
	}
	if errors.Is(err, upstream.ErrSessionLost) && !errors.Is(err, upstream.ErrSignedOut) {
		return lostSession(status, err)
	}
	if cause := upstream.CauseOf(err); cause != nil {
		return unusableByCause(cause, err)
	}
	if wrong := upstream.AnswerFault(err); wrong != "" && status < http.StatusMultipleChoices {
		return "the server's answer can't be used: " + wrong + ". Whether the call ran is not known."
	}
	if status < http.StatusMultipleChoices {
		return ""
	}
	return fmt.Sprintf("the server answered with HTTP status %d; whether the call ran is not known.", status)
}

// A TimeoutError means that a call has exceeded a timeout.
type TimeoutError struct {
	// After is the exceeded timeout. Key is the configuration key or the name of the rule that sets the timeout. Key
	// may be empty.
	After time.Duration
	Key   string
	// Progress is true if progress notifications from the server could have extended the timeout.
	Progress bool
	// ByServer is true if a timeout of the server itself expired long before the call's timeout. In this case, After is
	// how long the call took.
	ByServer bool
}

// Error implements error.
func (e TimeoutError) Error() string {
	if e.ByServer {
		return fmt.Sprintf("the server reached a timeout of its own after %s", e.After)
	}
	text := fmt.Sprintf("the server did not answer within %s (%s)", e.After, e.Key)
	if e.Progress {
		text += " and has reported no progress since"
	}
	return text
}

// lostSession returns the message for a client whose session the server no longer knows.
func lostSession(status int, err error) string {
	ran := fmt.Sprintf("It answered with HTTP status %d; whether the call ran is not known", status)
	if errors.Is(err, upstream.ErrNeverSent) {
		ran = "The call was not sent"
	}
	return upstream.ErrSessionLost.Error() + ", most likely because it was restarted. " + ran + ". This session ends: initialize again."
}

func unusableByCause(cause *upstream.CauseError, err error) string {
	if errors.Is(err, upstream.ErrNeverSent) {
		return refusal.Sentence(cause.Text)
	}
	return refusal.Sentence(cause.Text) + " Whether the call ran is not known."
}

func unusableByLimit(limit *upstream.LimitError, err error) string {
	if errors.Is(err, upstream.ErrNeverSent) {
		return limit.Error() + "."
	}
	return limit.Error() + ". Whether the call ran is not known."
}

// SignInRefusal returns the refusal for a call that was not sent because a person has to sign in at the server. It
// returns nil if err has another cause.
func SignInRefusal(err error) *refusal.Refusal {
	if !upstream.IsSignIn(err) {
		return nil
	}
	return &refusal.Refusal{Code: commonv1.Code_CODE_LOGIN_REQUIRED, Message: refusal.Sentence(upstream.CauseOf(err).Text)}
}

// Code returns the refusal code for a call that has no usable answer because of err.
func Code(err error) commonv1.Code {
	if withheld, ok := errors.AsType[*WithheldError](err); ok {
		return withheld.Code
	}
	switch {
	case errors.Is(err, upstream.ErrNeverSent) && upstream.IsSignIn(err):
		return commonv1.Code_CODE_LOGIN_REQUIRED
	case errors.Is(err, upstream.ErrNeverSent):
		return commonv1.Code_CODE_UPSTREAM_UNAVAILABLE
	case errors.Is(err, upstream.ErrTimeout):
		return commonv1.Code_CODE_UPSTREAM_TIMEOUT
	default:
		return commonv1.Code_CODE_OUTCOME_UNKNOWN
	}
}

func millisSince(t time.Time) float64 {
	return float64(time.Since(t)) / float64(time.Millisecond)
}
