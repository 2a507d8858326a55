package attempt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

var errBroken = errors.New("broken")

// base returns the fields that are the same in all records about the attempt a, whose message is callText.
func base(a attempt.Attempt) journal.Record {
	return journal.Record{
		DecisionID: a.ID, Principal: journal.Principal{Tenant: "acme", Subject: "bot", Agent: "dev", Owner: "ana", TokenID: "laptop"},
		Chain:   []journal.Principal{{Tenant: "acme", Subject: "ana", TokenID: "desk"}},
		Session: "digest", Run: "run-1", Server: "files", Method: "tools/call", Tool: "pay", PolicyRevision: "rev", RequestBytes: int64(len(callText)),
	}
}

// only returns the only record of this kind in the fixture's journal. It fails the test if there is not exactly one.
func (f *fixture) only(t *testing.T, kind journal.Kind) journal.Record {
	t.Helper()
	all := f.journal.Records(kind)
	if len(all) != 1 {
		t.Fatalf("%d records of kind %s", len(all), kind)
	}
	return all[0]
}

// ignoreTime makes comparisons ignore how long a call took.
var ignoreTime = cmpopts.IgnoreFields(journal.Record{}, "LatencyMS")

func TestRecordIntent_SaysWhatIsSentAndWhy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := newAttempt(t, callText)
	a.Decision.ToolClass = &policyv1.ToolClass{Category: 5, Risk: 1}
	a.Decision.Limits = []*policyv1.RuleLimit{limitOf(policyv1.SessionKey_SESSION_KEY_RUN), limitOf(policyv1.SessionKey_SESSION_KEY_PRINCIPAL)}
	granted := time.Unix(1_800_000_000, 0).UTC()
	a.Lease = &ratelimitv1.Lease{Id: "lease", Granted: timestamppb.New(granted), Remaining: []*ratelimitv1.Remaining{{Remaining: "9"}}}
	a.Claim = &attempt.Claim{
		Approval: &approvalv1.Approval{Id: "a-1", Digest: []byte{0xcd}, GrantedBy: "a-0"}, Attempt: 2, Votes: []*approvalv1.Vote{{Subject: "olga"}},
	}
	if err := f.client(t).RecordIntent(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	first, second := journal.FromLimit(a.Decision.GetLimits()[0]), journal.FromLimit(a.Decision.GetLimits()[1])
	first.Remaining = "9"
	want := base(a)
	want.Kind, want.Effect, want.Rule, want.DefinitionDigest = journal.KindIntent, "allow", journal.Rule{Document: "doc", Rule: "allows"}, "ab01"
	want.ArgumentsHMAC, want.Category, want.Risk = `hmac of {"to":"eve"}`, "financial", "low"
	want.ApprovalID, want.Attempt, want.ApprovalDigest, want.Grant, want.Votes = "a-1", 2, "cd", "a-0", []journal.Vote{journal.FromVote(a.Claim.Votes[0])}
	want.Limits, want.SessionKey, want.ReservedAt, want.LimitLeaseID = []journal.Limit{first, second}, "principal", granted, "lease"
	if diff := cmp.Diff(want, f.only(t, journal.KindIntent)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The memory of records is reused. A new record must not contain values from an earlier call.
func TestRecordIntent_HasNothingOfAnEarlierCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.client(t)
	a := newAttempt(t, callText)
	a.Claim = &attempt.Claim{Approval: &approvalv1.Approval{Id: "a-1", Digest: []byte{0xcd}, GrantedBy: "a-0"}, Attempt: 2, Votes: []*approvalv1.Vote{{}}}
	a.Lease = &ratelimitv1.Lease{Id: "lease"}
	a.Decision.Limits = []*policyv1.RuleLimit{limitOf(policyv1.SessionKey_SESSION_KEY_RUN)}
	for range 10 {
		if err := client.RecordIntent(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if _, err := client.RecordOutcome(t.Context(), a, upstream.Answer{Status: 500}, upstream.ErrNoAnswer); err != nil {
			t.Fatal(err)
		}
	}
	f.journal = new(gatewaytest.Journal)
	f.deps.Journal = f.journal
	plain := newAttempt(t, `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`)
	plain.Principal.Chain, plain.Definition = nil, nil
	for range 10 {
		if err := f.client(t).RecordIntent(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
	}
	want := base(plain)
	want.Chain, want.Kind, want.Effect, want.Rule = nil, journal.KindIntent, "allow", journal.Rule{Document: "doc", Rule: "allows"}
	want.Method, want.Tool, want.RequestBytes = "prompts/list", "", int64(len(plain.Sent.Raw))
	for _, got := range f.journal.Records(journal.KindIntent) {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

func TestRecordIntent_RecordsADigestOfTheParamsOfOtherMethods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := newAttempt(t, `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"https://u:p@a.example/x?secret"}}`)
	a.FromServer = true
	if err := f.client(t).RecordIntent(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	got := f.only(t, journal.KindIntent)
	if got.ArgumentsHMAC != `hmac of {"uri":"https://u:p@a.example/x?secret"}` || got.Tool != "https://a.example/x" || !got.FromServer {
		t.Errorf("%+v", got)
	}
}

func TestRecordClaim_HasTheKeyOfTheReservation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := newAttempt(t, callText).WithClaim(&approvalv1.Approval{Id: "a-1", Attempt: 4})
	if err := f.client(t).RecordClaim(t.Context(), a, "key"); err != nil {
		t.Fatal(err)
	}
	if got := f.only(t, journal.KindClaim); got.IdempotencyKey != "key" || got.ApprovalID != "a-1" || got.Attempt != 4 || got.DecisionID != a.ID || got.ArgumentsHMAC == "" {
		t.Errorf("%+v", got)
	}
}

func TestRecordOutcome_ClassifiesTheAnswer(t *testing.T) {
	t.Parallel()
	request := upstream.Answer{Status: 202}
	for name, tt := range map[string]struct {
		answer upstream.Answer
		err    error
		class  journal.ResultClass
		code   string
	}{
		"a result":              {gatewaytest.Raw(`{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`), nil, journal.ResultOK, ""},
		"an error of the tool":  {gatewaytest.Raw(`{"jsonrpc":"2.0","id":7,"result":{"content":[],"isError":true}}`), nil, journal.ResultToolError, ""},
		"a protocol error":      {gatewaytest.Raw(`{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"m"}}`), nil, journal.ResultProtocolError, ""},
		"never sent":            {request, fmt.Errorf("%w: x", upstream.ErrNeverSent), journal.ResultNeverSent, "upstream_unavailable"},
		"no answer in time":     {request, fmt.Errorf("%w: x", upstream.ErrTimeout), journal.ResultUnknown, "upstream_timeout"},
		"no usable answer":      {request, fmt.Errorf("%w: the server wrote SECRET", upstream.ErrNoAnswer), journal.ResultUnknown, "outcome_unknown"},
		"an error of any kind":  {request, errBroken, journal.ResultUnknown, "outcome_unknown"},
		"a status of the error": {upstream.Answer{Status: 503}, upstream.ErrNoAnswer, journal.ResultUnknown, "outcome_unknown"},
	} {
		f := newFixture(t)
		a := newAttempt(t, callText)
		a.Lease = &ratelimitv1.Lease{Id: "lease"}
		class, err := f.client(t).RecordOutcome(t.Context(), a, tt.answer, tt.err)
		got := f.only(t, journal.KindOutcome)
		want := base(a)
		want.Kind, want.ResultClass, want.UpstreamStatus, want.LimitLeaseID, want.Code = journal.KindOutcome, tt.class, tt.answer.Status, "lease", tt.code
		if tt.err == nil {
			want.ResultBytes = int64(len(tt.answer.Message.Raw))
		}
		want.Message = got.Message
		if diff := cmp.Diff(want, got, ignoreTime); diff != "" || class != tt.class || err != nil {
			t.Errorf("%s: %v, %v (-want +got):\n%s", name, class, err, diff)
		}
		if strings.Contains(got.Message, "SECRET") || (got.Message != "") != (tt.err != nil) || got.LatencyMS <= 0 {
			t.Errorf("%s: the message is %q, after %v ms", name, got.Message, got.LatencyMS)
		}
	}
}

func TestRecords_ReturnTheErrorOfTheJournal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.journal.Errors = map[journal.Kind]error{
		journal.KindIntent: errBroken, journal.KindClaim: errBroken, journal.KindOutcome: errBroken, journal.KindPassed: errBroken, journal.KindRefusal: errBroken, journal.KindSettled: errBroken,
	}
	client, a := f.client(t), newAttempt(t, callText)
	_, outcome := client.RecordOutcome(t.Context(), a, gatewaytest.Raw(`{"jsonrpc":"2.0","id":7,"result":{}}`), nil)
	for name, err := range map[string]error{
		"intent": client.RecordIntent(t.Context(), a), "claim": client.RecordClaim(t.Context(), a, ""), "outcome": outcome,
		"outcome of a record": client.WriteOutcome(t.Context(), new(journal.Record)), "passed": client.WritePassed(t.Context(), new(journal.Record)),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	client.WriteRefusal(t.Context(), &journal.Record{DecisionID: "refused"})
	client.RecordSettled(t.Context(), a)
	if !f.logged("decision_id=refused") || !f.logged("settled call not recorded") {
		t.Errorf("logged is %s", f.log.String())
	}
}

func TestRecordSettled_IsSilentWhenTheJournalIsClosed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.journal.Errors = map[journal.Kind]error{journal.KindSettled: journal.ErrClosed}
	a := newAttempt(t, callText).WithClaim(&approvalv1.Approval{Id: "a-1"})
	f.client(t).RecordSettled(t.Context(), a)
	if got := f.only(t, journal.KindSettled); got.DecisionID != a.ID || got.ApprovalID != "a-1" || f.log.Len() != 0 {
		t.Errorf("%+v\nlogged is %s", got, f.log.String())
	}
}

// A refusal is recorded even if its caller has disconnected.
func TestWriteRefusal_OutlivesItsCaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alive := new(aliveJournal)
	f.deps.Journal = alive
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.client(t).WriteRefusal(ctx, new(journal.Record))
	if alive.err != nil || !alive.called {
		t.Errorf("the context of the record: %v", alive.err)
	}
}

// aliveJournal is a journal that stores whether the context was cancelled when a refusal was recorded.
type aliveJournal struct {
	gatewaytest.Journal

	called bool
	err    error
}

func (j *aliveJournal) Refusal(ctx context.Context, _ *journal.Record) error {
	j.called, j.err = true, ctx.Err()
	return nil
}

func TestRefusalRecord_HasTheActualReason(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := newAttempt(t, callText)
	a.Decision.Effect, a.Decision.ToolClass = policyv1.Effect_EFFECT_DENY, &policyv1.ToolClass{Category: 5, Risk: 1}
	refused := &refusal.Refusal{
		Code: commonv1.Code_CODE_RATE_LIMITED, Message: "why.", Rule: &policyv1.RuleRef{Document: "d", Rule: "r"}, SessionKey: policyv1.SessionKey_SESSION_KEY_RUN, Approval: &refusal.Approval{ID: "a-1"},
	}
	got := f.client(t).RefusalRecord(t.Context(), a, refused)
	want := base(a)
	want.Effect, want.Rule, want.Code, want.Message, want.SessionKey, want.ApprovalID = "deny", journal.Rule{Document: "d", Rule: "r"}, "rate_limited", refused.Text(), "run", "a-1"
	want.ArgumentsHMAC, want.DefinitionDigest, want.Category, want.Risk = `hmac of {"to":"eve"}`, "ab01", "financial", "low"
	if diff := cmp.Diff(want, *got, ignoreTime); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	a.Decision.Effect = policyv1.Effect_EFFECT_REQUIRE_APPROVAL
	if got := f.client(t).RefusalRecord(t.Context(), a, refused); got.Effect != "require_approval" {
		t.Errorf("a call that needs an approval is recorded as %s", got.Effect)
	}
}

// Case X9. The records for hidden and missing tools are equal, except for the rule that hides the tool.
func TestRefusalRecord_OfAHiddenToolLooksLikeThatOfAMissingOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := newAttempt(t, callText)
	a.Decision.Hidden, a.Decision.ToolClass = true, &policyv1.ToolClass{Category: 5, Risk: 1}
	got := f.client(t).RefusalRecord(t.Context(), a, a.Denied(commonv1.Code_CODE_DENIED_BY_RULE))
	if got.DefinitionDigest != "" || got.Category != "" || got.Risk != "" || got.Code != "tool_unknown" || !got.Hidden || got.Rule.Rule != "allows" || got.Effect != "deny" {
		t.Errorf("%+v", got)
	}
}

func TestRefusedRequest_IsRecordedWithAnIDOfItsOwn(t *testing.T) {
	t.Parallel()
	r := attempt.RefusedRequest{Principal: caller(), Server: "files", Method: "ping", Name: "n", Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: "why.", Bytes: 7, FromServer: true}
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	got, again := r.Record(ctx), r.Record(t.Context())
	want := journal.Record{
		DecisionID: got.DecisionID, Principal: attempt.PrincipalRecord(caller()), Session: "digest", Run: "run-1", Server: "files", Method: "ping", Tool: "n", Effect: "deny",
		Code: "abuse_limited", Message: (&refusal.Refusal{Code: r.Code, Message: r.Message}).Text(), RequestBytes: 7, FromServer: true, TraceID: "01000000000000000000000000000000",
	}
	if diff := cmp.Diff(want, *got); diff != "" || got.DecisionID == "" || got.DecisionID == again.DecisionID || again.TraceID != "" {
		t.Errorf("the ids are %q and %q (-want +got):\n%s", got.DecisionID, again.DecisionID, diff)
	}
}

func TestRecords_HaveSpansInSampledTraces(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.journal.Errors = map[journal.Kind]error{journal.KindClaim: errBroken}
	client, a := f.client(t), newAttempt(t, callText)
	if err := client.RecordIntent(t.Context(), a); err != nil || len(f.spans.Ended()) != 0 {
		t.Errorf("outside of a trace: %v, %d spans", err, len(f.spans.Ended()))
	}
	ctx, parent := f.deps.Tracer.Start(t.Context(), "call")
	if err := client.RecordIntent(ctx, a); err != nil {
		t.Fatal(err)
	}
	if err := client.RecordClaim(ctx, a, ""); err == nil {
		t.Fatal("the claim was recorded")
	}
	parent.End()
	got := f.spans.Ended()
	if len(got) != 3 || got[0].Name() != spans.JournalIntent || got[0].Parent().SpanID() != parent.SpanContext().SpanID() || got[0].Status().Code != codes.Unset {
		t.Fatalf("%d spans, the first is %v", len(got), got)
	}
	if got[1].Name() != spans.JournalClaim || got[1].Status().Code != codes.Error || got[1].Status().Description != "audit_unavailable" {
		t.Errorf("the span of the claim is %s with the status %v", got[1].Name(), got[1].Status())
	}
	if r := f.journal.Records(journal.KindIntent)[1]; r.TraceID != parent.SpanContext().TraceID().String() {
		t.Errorf("the trace on record is %q", r.TraceID)
	}
}

func TestNotSent_NamesAFullQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client, a := f.client(t), newAttempt(t, callText)
	full := &quota.FullError{What: "bytes of the journal"}
	for name, tt := range map[string]struct {
		err  error
		code commonv1.Code
		says string
	}{
		"the journal fails":    {errBroken, commonv1.Code_CODE_AUDIT_UNAVAILABLE, ""},
		"a quota":              {fmt.Errorf("%w: x", journal.ErrQuota), commonv1.Code_CODE_ABUSE_LIMITED, "an operator can raise it (journal.share, journal.calls_mib)."},
		"a quota with a name":  {errors.Join(journal.ErrQuota, full), commonv1.Code_CODE_ABUSE_LIMITED, full.Error() + "; an operator can raise the limit (journal.share, journal.calls_mib)."},
		"a quota of something": {full, commonv1.Code_CODE_AUDIT_UNAVAILABLE, ""},
	} {
		if got := client.NotSent(t.Context(), a, tt.err); got.Code != tt.code || !strings.HasSuffix(got.Message, tt.says) || (got.Message == "") != (tt.says == "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if !f.logged("decision_id=" + a.ID) {
		t.Errorf("logged is %s", f.log.String())
	}
}

func TestCode_SaysWhatIsKnownOfTheCall(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]commonv1.Code{
		upstream.ErrNeverSent: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, upstream.ErrTimeout: commonv1.Code_CODE_UPSTREAM_TIMEOUT, upstream.ErrNoAnswer: commonv1.Code_CODE_OUTCOME_UNKNOWN,
		errBroken: commonv1.Code_CODE_OUTCOME_UNKNOWN, errors.Join(upstream.ErrTimeout, upstream.ErrNeverSent): commonv1.Code_CODE_UPSTREAM_UNAVAILABLE,
	} {
		if got := attempt.Code(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// The answer must tell the client whether its call may have run. It must not contain anything that the server has sent.
func TestAnswerProblem_SaysWhyAnAnswerCannotBeUsed(t *testing.T) {
	t.Parallel()
	limit := &upstream.LimitError{Key: "servers.files.stdio.limits.tasks", What: "it reached its limit"}
	cause := &upstream.CauseError{Text: "the certificate has expired", Err: errBroken}
	full := &quota.FullError{What: "sessions"}
	late := attempt.TimeoutError{After: time.Minute, Key: "servers.files.timeout"}
	const unknown = "whether the call ran is not known."
	for name, tt := range map[string]struct {
		status int
		err    error
		want   string
	}{
		"nothing is known":           {200, upstream.ErrNoAnswer, ""},
		"a status":                   {503, upstream.ErrNoAnswer, "the server answered with HTTP status 503; " + unknown},
		"a redirect":                 {300, upstream.ErrNoAnswer, "the server answered with HTTP status 300; " + unknown},
		"no memory":                  {200, limits.ErrMemory, "the server answered, but no memory is left for the answer: read other answers first, or make fewer such calls at once. Whether the call ran is not known."},
		"a quota":                    {0, full, full.Error() + "; end some of them, or wait until they are idle and end by themselves."},
		"a paused server":            {0, upstream.ErrCircuitOpen, upstream.ErrCircuitOpen.Error() + "."},
		"a busy server":              {0, upstream.ErrBusy, upstream.ErrBusy.Error() + "."},
		"a limit":                    {0, limit, limit.Error() + ". Whether the call ran is not known."},
		"a limit before the call":    {0, errors.Join(upstream.ErrNeverSent, limit), limit.Error() + "."},
		"the client gave no answer":  {0, attempt.ErrClient, attempt.ErrClient.Error() + "."},
		"a slow answer":              {200, bodyreader.ErrSlow, bodyreader.ErrSlow.Error() + ". Whether the call ran is not known."},
		"a timeout":                  {0, late, "the server did not answer within 1m0s (servers.files.timeout); " + unknown},
		"a timeout without progress": {0, attempt.TimeoutError{After: time.Second, Key: "k", Progress: true}, "the server did not answer within 1s (k) and has reported no progress since; " + unknown},
		"a timeout without a key":    {0, attempt.TimeoutError{After: time.Second}, ""},
		"a lost session":             {400, upstream.ErrSessionLost, upstream.ErrSessionLost.Error() + ", most likely because it was restarted. It answered with HTTP status 400; whether the call ran is not known. This session ends: initialize again."},
		"a session lost before":      {400, errors.Join(upstream.ErrNeverSent, upstream.ErrSessionLost), upstream.ErrSessionLost.Error() + ", most likely because it was restarted. The call was not sent. This session ends: initialize again."},
		"a cause":                    {0, cause, "the certificate has expired. Whether the call ran is not known."},
		"a cause before the call":    {0, errors.Join(upstream.ErrNeverSent, cause), "the certificate has expired."},
		"a fault of the answer":      {200, upstream.ErrOtherID, "the server's answer can't be used: " + upstream.ErrOtherID.Error() + ". Whether the call ran is not known."},
		"a fault with a status":      {500, upstream.ErrOtherID, "the server answered with HTTP status 500; " + unknown},
	} {
		if diff := cmp.Diff(tt.want, attempt.AnswerProblem(tt.status, tt.err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
