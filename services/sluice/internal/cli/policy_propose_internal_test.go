package cli

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

const okResult = gatewayv1.ResultClass_RESULT_CLASS_OK

// sentCallTests contains recorded calls. Each call has an id, the result class in its outcome record, and a function
// that changes its intent record.
var sentCallTests = []struct {
	id      string
	outcome gatewayv1.ResultClass
	change  func(*gatewayv1.Record)
}{
	{"sent", okResult, func(r *gatewayv1.Record) {
		r.RecordedArguments = &gatewayv1.RecordedArguments{ArgumentsJson: `{"a":1}`}
	}},
	{"redacted", okResult, func(r *gatewayv1.Record) {
		r.RecordedArguments = &gatewayv1.RecordedArguments{ArgumentsJson: `{"a":"[redacted: secrets]"}`, Redacted: true}
	}},
	{"removed", okResult, func(r *gatewayv1.Record) { r.RecordedArguments = &gatewayv1.RecordedArguments{Redacted: true} }},
	{"not-recorded", gatewayv1.ResultClass_RESULT_CLASS_UNKNOWN, nil},
	{"no-arguments", gatewayv1.ResultClass_RESULT_CLASS_TOOL_ERROR, func(r *gatewayv1.Record) { r.ArgumentsHmac = nil }},
	{"never-sent", gatewayv1.ResultClass_RESULT_CLASS_NEVER_SENT, nil},
	{"no-outcome", 0, nil},
	{"approved", okResult, func(r *gatewayv1.Record) { r.ApprovalId = "approval" }},
	{"granted", okResult, func(r *gatewayv1.Record) { r.Grant = "approval" }},
	{"refused", okResult, func(r *gatewayv1.Record) { r.Kind = gatewayv1.RecordKind_RECORD_KIND_REFUSAL }},
	{"denied", okResult, func(r *gatewayv1.Record) { r.Effect = policyv1.Effect_EFFECT_DENY }},
	{"from-server", okResult, func(r *gatewayv1.Record) { r.FromServer = true }},
	{"a-prompt", okResult, func(r *gatewayv1.Record) { r.Method = "prompts/get" }},
}

// A call counts only if it was certainly sent, and only if the policy allowed it without a person's approval.
func TestSentCalls_CountOnlyCallsThatPolicyAllowed(t *testing.T) {
	t.Parallel()
	at := timestamppb.New(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	seen := newSentCalls()
	for _, c := range sentCallTests {
		intent := &gatewayv1.Record{
			Kind: gatewayv1.RecordKind_RECORD_KIND_INTENT, DecisionId: c.id, Time: at, Method: "tools/call", Tool: "read", ArgumentsHmac: []byte("digest"),
			Effect: policyv1.Effect_EFFECT_ALLOW, Principal: &identityv1.Principal{Tenant: "default", Subject: "ana"},
		}
		if c.change != nil {
			c.change(intent)
		}
		outcome := &gatewayv1.Record{Kind: gatewayv1.RecordKind_RECORD_KIND_OUTCOME, DecisionId: c.id, Time: at, Result: c.outcome}
		for _, r := range []*gatewayv1.Record{outcome, intent} { // newest first
			if err := seen.add(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []policy.ObservedCall{
		{ID: "sent", Time: at.AsTime(), Arguments: `{"a":1}`}, {ID: "redacted", Time: at.AsTime(), Arguments: `{"a":"[redacted: secrets]"}`, Redacted: true},
		{ID: "removed", Time: at.AsTime(), NotRecorded: true, Redacted: true}, {ID: "not-recorded", Time: at.AsTime(), NotRecorded: true}, {ID: "no-arguments", Time: at.AsTime()},
	}
	if diff := cmp.Diff(want, seen.byTool["read"]); diff != "" || len(seen.byTool) != 1 || len(seen.sent) != 0 {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if uses := seen.uses.byTool()["read"]; uses.Calls != 5 || uses.Busiest != 5 {
		t.Errorf("the usage is %+v", uses)
	}
}

// A tool that was called but is no longer listed is kept, so that the document can mention this.
func TestSentCalls_KeepUnlistedTools(t *testing.T) {
	t.Parallel()
	seen := newSentCalls()
	seen.byTool["gone"] = []policy.ObservedCall{{ID: "1"}}
	got := seen.tools([]policy.ObservedTool{{ClassifiedTool: policy.ClassifiedTool{Name: "listed"}}})
	if len(got) != 2 || got[0].Name != "gone" || !got[0].Unlisted || got[1].Unlisted {
		t.Errorf("the tools are %+v", got)
	}
}

func TestNotAccepted(t *testing.T) {
	t.Parallel()
	for pin := range policyv1.PinState_name {
		page := &policyv1.CatalogTool{Pin: policyv1.PinState(pin)}
		accepted := page.GetPin() == policyv1.PinState_PIN_STATE_ACCEPTED || page.GetPin() == policyv1.PinState_PIN_STATE_OFF
		if got := notAccepted(page); (got == "") != accepted {
			t.Errorf("%s: %q", page.GetPin(), got)
		}
	}
	for _, page := range []*policyv1.CatalogTool{{ServerQuarantined: true}, {Quarantined: true}, {Stopped: true}} {
		if page.Pin = policyv1.PinState_PIN_STATE_ACCEPTED; notAccepted(page) == "" {
			t.Errorf("%v is accepted", page)
		}
	}
}
