package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// redacting returns a decision that allows a call and redacts email addresses in arguments and results.
func redacting() *policyv1.Decision {
	d := allow()
	rule := &policyv1.RuleRef{Document: "files", Rule: "clean"}
	d.Redactions = []*policyv1.Redaction{
		{Rule: rule, Target: policyv1.RedactionTarget_REDACTION_TARGET_RESULT, Detector: "email"},
		{Rule: rule, Target: policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS, Detector: "email"},
	}
	return d
}

const callWithAddress = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe","arguments":{"to":"a@example.com"}}}`

func TestDo_RedactsArgumentsResultAndEvents(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(redacting())
	w.answer = func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
		return result(r, `{"content":[{"type":"text","text":"b@example.com and c@example.com"}]}`), nil
	}
	p, c := w.pipeline(t), w.call(t)
	c.Message = parse(t, callWithAddress)
	got := p.Do(t.Context(), c)
	p.Wait(t.Context())
	if got.Refusal != nil {
		t.Fatalf("%+v", got.Refusal)
	}
	if sent := string(w.sent[0].Body()); sent != strings.ReplaceAll(callWithAddress, "a@example.com", "[redacted: email]") {
		t.Errorf("sent %s", sent)
	}
	if text := string(got.Answer.Raw); !strings.Contains(text, `"[redacted: email] and [redacted: email]"`) {
		t.Errorf("answered %s", text)
	}
	if diff := cmp.Diff([]journal.Redacted{{Name: "email", Count: 3}}, w.recordsOf(journal.KindOutcome)[0].Redacted); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

// If a call's redactions can't be applied, the call is not sent. The refusal contains the rule's name and what to do.
func TestDo_CallIsRefusedIfItsRedactionsCannotBeMade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*attempt.Call)
		want   string
	}{
		"the client runs the tool":      {func(c *attempt.Call) { c.Transport = upstream.KindHost }, "the client runs this tool itself"},
		"an argument is in a header":    {func(c *attempt.Call) { c.ParamHeaders = []upstream.Header{{}} }, "repeats arguments in HTTP headers"},
		"the answer is in a later call": {func(c *attempt.Call) { c.FromServer, c.AnsweredLater = true, true }, "the client answers this request in its next request"},
		"the arguments are not watched": {func(c *attempt.Call) { c.Message = parse(t, manyAddresses()) }, "the arguments can't be searched"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestPipeline()
			w.decide = decides(redacting())
			p, c := w.pipeline(t), w.call(t)
			c.Message = parse(t, callWithAddress)
			tt.change(c)
			got := p.Do(t.Context(), c)
			p.Wait(t.Context())
			if codeOf(got.Refusal) != commonv1.Code_CODE_DENIED_BY_RULE || w.count("send") != 0 || !strings.Contains(got.Refusal.Message, tt.want) ||
				!strings.Contains(got.Refusal.Message, "rule files/clean") {
				t.Errorf("%+v, %v", got.Refusal, w.steps)
			}
		})
	}
}

// manyAddresses returns a call with one argument that contains more email addresses than can be replaced in one
// message.
func manyAddresses() string {
	return strings.ReplaceAll(callWithAddress, "a@example.com", strings.Repeat("a@example.com ", 10_001))
}

// While a call waits for its server, the policy changes and requires an additional redaction. The call does not start.
func TestDo_CallDoesNotBeginWithoutANewRedaction(t *testing.T) {
	t.Parallel()
	for name, later := range map[string]func(*policyv1.Decision){
		"the same": func(*policyv1.Decision) {}, "another": func(d *policyv1.Decision) { d.Redactions[0].Detector = "card" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				w.decide = decides(redacting())
				w.beginAfter(time.Second, func() {
					d := redacting()
					later(d)
					w.decide = decides(d)
				})
				p := w.pipeline(t)
				got := p.Do(t.Context(), w.call(t))
				p.Wait(t.Context())
				if want := name == "the same"; (got.Refusal == nil) != want || (w.count("begin") == 1) != want {
					t.Errorf("%+v, %v", got.Refusal, w.steps)
				}
			})
		})
	}
}

// While a call waits for an approval, a rule changes and now redacts arguments. The call does not run with its original
// arguments, and the approval is not used. If the rule only adds a redaction of results, the call runs and that
// redaction is applied.
func TestApproval_CallDoesNotRunWithoutANewRedactionOfArguments(t *testing.T) {
	t.Parallel()
	rule := &policyv1.RuleRef{Document: "files", Rule: "clean"}
	for target, code := range map[policyv1.RedactionTarget]commonv1.Code{
		policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS: commonv1.Code_CODE_POLICY_UNAVAILABLE,
		policyv1.RedactionTarget_REDACTION_TARGET_RESULT:    commonv1.Code_CODE_UNSPECIFIED,
	} {
		t.Run(target.String(), func(t *testing.T) {
			t.Parallel()
			w := newApprovalPipeline()
			w.approvals.answerRequest = answerStates(approvalIn(approved))
			first := w.decide
			w.decide = func(ctx context.Context, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
				resp, err := first(ctx, req)
				if req.GetAttest().GetApprovalId() != "" {
					resp = proto.CloneOf(resp)
					resp.Decision.Redactions = []*policyv1.Redaction{{Rule: rule, Target: target, Detector: "email"}}
				}
				return resp, err
			}
			w.answer = func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
				return result(r, `{"content":[{"type":"text","text":"b@example.com"}]}`), nil
			}
			got := w.do(t)
			if codeOf(got.Refusal) != code || w.count("claim") > 0 != (code == 0) || w.count("send") > 0 != (code == 0) {
				t.Fatalf("%+v, %v", got.Refusal, w.steps)
			}
			if code == 0 && strings.Contains(string(got.Answer.Raw), "b@example.com") {
				t.Errorf("answered %s", got.Answer.Raw)
			}
		})
	}
}
