package attempt_test

import (
	"slices"
	"testing"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
)

const (
	allows  = policyv1.Effect_EFFECT_ALLOW
	denies  = policyv1.Effect_EFFECT_DENY
	asks    = policyv1.Effect_EFFECT_REQUIRE_APPROVAL
	unknown = commonv1.Code_CODE_TOOL_UNKNOWN
	away    = commonv1.Code_CODE_POLICY_UNAVAILABLE
)

// outcome describes the result that a test expects from a decision.
type outcome struct {
	// code is the expected refusal code, or 0 if the call must not be refused.
	code                          commonv1.Code
	denies, allows, needsApproval bool
}

func TestRefusal_FollowsFromTheDecision(t *testing.T) {
	t.Parallel()
	concurrency := limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
	concurrency.Limit.Kind = ratelimitv1.LimitKind_LIMIT_KIND_CONCURRENCY
	settles := limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
	settles.Settle = "/total"
	window := limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
	for name, tt := range map[string]struct {
		decision *policyv1.Decision
		want     outcome
	}{
		"no decision":                     {nil, outcome{code: away}},
		"no effect":                       {&policyv1.Decision{}, outcome{code: away}},
		"a new effect":                    {&policyv1.Decision{Effect: 99}, outcome{code: away}},
		"allowed":                         {&policyv1.Decision{Effect: allows}, outcome{allows: true}},
		"allowed with a limit":            {&policyv1.Decision{Effect: allows, Limits: []*policyv1.RuleLimit{window}}, outcome{allows: true}},
		"needs an approval":               {&policyv1.Decision{Effect: asks}, outcome{needsApproval: true}},
		"denied by a rule":                {&policyv1.Decision{Effect: denies, Code: commonv1.Code_CODE_DENIED_BY_RULE}, outcome{code: commonv1.Code_CODE_DENIED_BY_RULE, denies: true}},
		"denied without a code":           {&policyv1.Decision{Effect: denies}, outcome{code: commonv1.Code_CODE_DENIED_BY_DEFAULT, denies: true}},
		"allowed and hidden":              {&policyv1.Decision{Effect: allows, Hidden: true}, outcome{code: unknown, denies: true}},
		"needs an approval and is hidden": {&policyv1.Decision{Effect: asks, Hidden: true}, outcome{code: unknown, denies: true}},
		"denied and hidden":               {&policyv1.Decision{Effect: denies, Code: commonv1.Code_CODE_DENIED_BY_RULE, Hidden: true}, outcome{code: unknown, denies: true}},
		"redactions":                      {&policyv1.Decision{Effect: allows, Redactions: []*policyv1.Redaction{{}}}, outcome{code: away}},
		"a limit of concurrency":          {&policyv1.Decision{Effect: allows, Limits: []*policyv1.RuleLimit{window, concurrency}}, outcome{code: away}},
		"a limit that is settled":         {&policyv1.Decision{Effect: allows, Limits: []*policyv1.RuleLimit{window, settles}}, outcome{code: away}},
	} {
		a := decided(newAttempt(t, callText), tt.decision)
		got := outcome{denies: a.Denies(), allows: a.Allows(), needsApproval: a.NeedsApproval()}
		if refused := a.Refusal(); refused != nil {
			got.code = refused.Code
		}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestRefusal_ContainsTheScopes(t *testing.T) {
	t.Parallel()
	d := &policyv1.Decision{Effect: denies, Code: commonv1.Code_CODE_SCOPE_MISSING, NeededScopes: []string{"a", "b"}, MissingScopes: []string{"b"}}
	got := decided(newAttempt(t, callText), d).Refusal()
	if got.Scopes == nil || !slices.Equal(got.Scopes.Needed, d.GetNeededScopes()) || !slices.Equal(got.Scopes.Missing, d.GetMissingScopes()) || got.Retryable() {
		t.Errorf("%+v", got)
	}
	d.Code = commonv1.Code_CODE_DENIED_BY_RULE
	if got := decided(newAttempt(t, callText), d).Refusal(); got.Scopes != nil {
		t.Errorf("another refusal has scopes: %+v", got)
	}
}

// Case X9. The refusal of a hidden tool contains the same information as the refusal of a missing tool.
func TestDenied_RevealsNothingOfAHiddenTool(t *testing.T) {
	t.Parallel()
	d := &policyv1.Decision{Effect: denies, Message: "because", Rule: &policyv1.RuleRef{Document: "doc", Rule: "r"}, PolicyRevision: "rev"}
	shown := decided(newAttempt(t, callText), d).Denied(commonv1.Code_CODE_DENIED_BY_RULE)
	if shown.Code != commonv1.Code_CODE_DENIED_BY_RULE || shown.Message != "because" || shown.Rule.GetRule() != "r" || shown.PolicyRevision != "rev" {
		t.Errorf("a denied tool: %+v", shown)
	}
	missing := decided(newAttempt(t, callText), d).Denied(unknown)
	d.Hidden = true
	hidden := decided(newAttempt(t, callText), d).Denied(commonv1.Code_CODE_DENIED_BY_RULE)
	if *hidden != *missing || hidden.Message != "" || hidden.Rule != nil || hidden.PolicyRevision != "rev" {
		t.Errorf("a hidden tool: %+v\na missing tool: %+v", hidden, missing)
	}
}

func TestPolicyChanged_IsARefusalInAnyCase(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, callText)
	if got := a.PolicyChanged(); got.Code != away || got.Message == "" {
		t.Errorf("policy allows the call now: %+v", got)
	}
	if got := decided(a, &policyv1.Decision{Effect: denies, Code: commonv1.Code_CODE_QUARANTINED}).PolicyChanged(); got.Code != commonv1.Code_CODE_QUARANTINED {
		t.Errorf("policy denies the call now: %+v", got)
	}
}

func TestRefusal_SaysWhatTheGatewayCannotDo(t *testing.T) {
	t.Parallel()
	d := &policyv1.Decision{Effect: allows, Redactions: []*policyv1.Redaction{{}}, Message: "of the rule", PolicyRevision: "rev"}
	if got := decided(newAttempt(t, callText), d).Refusal(); got.Message != "the policy asks for something that this gateway can't do yet; upgrade the gateway." || got.PolicyRevision != "rev" {
		t.Errorf("%+v", got)
	}
}
