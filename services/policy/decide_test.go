package policy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func ana() *identityv1.Principal { return rpctest.Principal("default", "ana") }

func rule(name string) *policyv1.RuleRef {
	return &policyv1.RuleRef{Document: "starter", Rule: name}
}

// wantDecisions contains calls and the decisions that the policy [document] must make on them. The decisions do not
// contain fields that differ between runs.
var wantDecisions = []struct {
	name   string
	call   *policyv1.Call
	groups []string
	want   *policyv1.Decision
}{
	{name: "a tool that is allowed", call: call("read"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_ALLOW, Rule: rule("tools.read"),
	}},
	{name: "a tool that is denied to a group", call: call("read"), groups: []string{"contractors"}, want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE,
		Rule: rule("contractors-read-nothing"), Message: "not for contractors",
	}},
	{name: "a tool that is denied with a reason", call: call("remove"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE, Rule: rule("tools.remove"), Message: "ask the owner",
	}},
	{name: "a hidden tool, without the reason", call: call("secret"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_UNKNOWN, Rule: rule("tools.secret"), Hidden: true,
	}},
	{name: "a tool that needs approval", call: call("pay"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Code: commonv1.Code_CODE_APPROVAL_REQUIRED, Rule: rule("tools.pay"), Message: "money",
		Approval: &policyv1.ApprovalTerms{Approvers: []string{"finance"}, Quorum: 2},
	}},
	{name: "a tool that no rule names", call: call("other"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_DEFAULT,
	}},
	{name: "a server that no document is about", call: &policyv1.Call{Server: "elsewhere", Name: "read"}, want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_DEFAULT,
	}},
	{name: "a name that is no tool's", call: call("read\n"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_NAME_INVALID,
	}},
	{name: "a tool's name in other case", call: call("Read"), want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_DEFAULT,
	}},
	{name: "a method that a rule allows", call: &policyv1.Call{Method: "prompts/get", Server: "demo", Name: "read me"}, want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_ALLOW, Rule: rule("prompts"),
	}},
	{name: "a method that no rule names", call: &policyv1.Call{Method: "resources/read", Server: "demo", Name: "read"}, want: &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_METHOD_DENIED,
	}},
}

func TestDecideCall_DecidesEquallyForPrincipalAndSubject(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	gateway, operator := policyv1.NewPolicyServiceClient(s.Gateway()), policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	for _, c := range wantDecisions {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			principal := ana()
			principal.Groups = c.groups
			asRole, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), principal), &policyv1.DecideCallRequest{Call: c.call})
			if err != nil {
				t.Fatal(err)
			}
			asPerson, err := operator.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: c.call, Subject: principal})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(asRole, asPerson, protocmp.Transform()); diff != "" {
				t.Errorf("the gateway and an operator get different decisions (-gateway +operator):\n%s", diff)
			}
			got := asRole.GetDecision()
			if len(got.GetPolicyRevision()) != 64 {
				t.Errorf("the revision is %q", got.GetPolicyRevision())
			}
			if want := 32; c.want.GetRule() != nil && len(got.GetRuleDigest()) != want || c.want.GetRule() == nil && got.GetRuleDigest() != nil {
				t.Errorf("the rule %v has a digest of %d bytes", got.GetRule(), len(got.GetRuleDigest()))
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform(), protocmp.IgnoreFields(got, "policy_revision", "rule_digest")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecideCall_ReturnsTheLimitsToReserve(t *testing.T) {
	t.Parallel()
	gateway := policyv1.NewPolicyServiceClient(serve(t, options{}).Gateway())
	principal := ana()
	principal.Session, principal.Run = "s1", "r1"
	resp, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), principal), &policyv1.DecideCallRequest{Call: call("export")})
	if err != nil {
		t.Fatal(err)
	}
	limit := func(most string, per []string, isCap bool, key policyv1.SessionKey) *policyv1.RuleLimit {
		return &policyv1.RuleLimit{
			Rule:  rule("tools.export"),
			Limit: &ratelimitv1.Limit{Kind: ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW, Max: most, Window: durationpb.New(60e9), Cost: "1"},
			Per:   per, Cap: isCap, OnError: policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY, SessionKey: key,
		}
	}
	want := []*policyv1.RuleLimit{
		limit("10", []string{"session", "server", "tool"}, false, policyv1.SessionKey_SESSION_KEY_RUN),
		limit("100", []string{"principal", "server", "tool"}, true, policyv1.SessionKey_SESSION_KEY_UNSPECIFIED),
	}
	got := resp.GetDecision().GetLimits()
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(new(ratelimitv1.Limit), "bucket")); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if a, b := got[0].GetLimit().GetBucket(), got[1].GetLimit().GetBucket(); a == b || a == "" {
		t.Errorf("the limits have the buckets %q and %q", a, b)
	}
}

func TestDecideCall_Subject(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	gateway, operator := policyv1.NewPolicyServiceClient(s.Gateway()), policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	nested := ana()
	nested.Chain = []*identityv1.Principal{rpctest.Principal("default", "agent")}
	nested.Chain[0].Chain = []*identityv1.Principal{rpctest.Principal("default", "creator")}
	ctx := authn.OnBehalfOf(t.Context(), ana())

	t.Run("a role that names a subject is refused", func(t *testing.T) {
		t.Parallel()
		_, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: call("read"), Subject: ana()})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "SUBJECT_REFUSED")
		_, err = gateway.FilterTools(ctx, &policyv1.FilterToolsRequest{Server: "demo", Subject: ana()})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "SUBJECT_REFUSED")
	})
	t.Run("a role without a principal is refused", func(t *testing.T) {
		t.Parallel()
		_, err := gateway.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: call("read")})
		rpctest.WantStatus(t, err, codes.Unauthenticated, "PRINCIPAL_REQUIRED")
	})
	t.Run("an operator who names no subject is refused", func(t *testing.T) {
		t.Parallel()
		_, err := operator.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: call("read")})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "SUBJECT_MISSING")
		_, err = operator.FilterTools(t.Context(), &policyv1.FilterToolsRequest{Server: "demo"})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "SUBJECT_MISSING")
	})
	t.Run("an empty subject is refused", func(t *testing.T) {
		t.Parallel()
		_, err := operator.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: call("read"), Subject: new(identityv1.Principal)})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	})
	t.Run("the principals of a chain are decided too", func(t *testing.T) {
		t.Parallel()
		principal := ana()
		principal.Chain = []*identityv1.Principal{rpctest.Principal("default", "creator")}
		principal.Chain[0].Groups = []string{"contractors"}
		resp, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), principal), &policyv1.DecideCallRequest{Call: call("read")})
		if err != nil {
			t.Fatal(err)
		}
		if d := resp.GetDecision(); d.GetEffect() != policyv1.Effect_EFFECT_DENY || d.GetChainIndex() != 1 {
			t.Errorf("got %v, want the creator's denial", d)
		}
	})
	t.Run("a chain inside a chain is refused", func(t *testing.T) {
		t.Parallel()
		if resp, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), nested), &policyv1.DecideCallRequest{Call: call("read")}); err == nil {
			t.Errorf("the gateway got %v", resp)
		}
		if resp, err := operator.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: call("read"), Subject: nested}); err == nil {
			t.Errorf("DecideCall answered %v", resp)
		}
		if resp, err := operator.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: call("read"), Subject: nested}); err == nil {
			t.Errorf("ExplainCall answered %v", resp)
		}
	})
}

func TestFilterTools(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	gateway := policyv1.NewPolicyServiceClient(s.Gateway())
	seen := func(name string, visible bool, code commonv1.Code, by *policyv1.RuleRef) *policyv1.ToolVisibility {
		return &policyv1.ToolVisibility{Name: name, Visible: visible, Code: code, Rule: by}
	}
	want := []*policyv1.ToolVisibility{
		seen("secret", false, commonv1.Code_CODE_TOOL_UNKNOWN, rule("tools.secret")),
		seen("read", true, 0, rule("tools.read")),
		seen("remove", true, commonv1.Code_CODE_DENIED_BY_RULE, rule("tools.remove")),
		seen("drop", false, commonv1.Code_CODE_DENIED_BY_RULE, rule("tools.drop")),
		seen("pay", true, commonv1.Code_CODE_APPROVAL_REQUIRED, rule("tools.pay")),
		seen("export", true, 0, rule("tools.export")),
		seen("other", false, commonv1.Code_CODE_DENIED_BY_DEFAULT, nil),
		seen("not a name", false, commonv1.Code_CODE_TOOL_NAME_INVALID, nil),
		seen("read", true, 0, rule("tools.read")),
	}
	req := &policyv1.FilterToolsRequest{Server: "demo"}
	for _, v := range want {
		req.Tools = append(req.Tools, &policyv1.ToolRef{Name: v.GetName()})
	}
	ask := func(t *testing.T, c policyv1.PolicyServiceClient, ctx context.Context, req *policyv1.FilterToolsRequest) {
		t.Helper()
		resp, err := c.FilterTools(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, resp.GetTools(), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if len(resp.GetPolicyRevision()) != 64 {
			t.Errorf("the revision is %q", resp.GetPolicyRevision())
		}
	}
	ask(t, gateway, authn.OnBehalfOf(t.Context(), ana()), req)
	ask(t, policyv1.NewPolicyServiceClient(s.Person(t, "operator")), t.Context(),
		&policyv1.FilterToolsRequest{Server: req.GetServer(), Tools: req.GetTools(), Subject: ana()})
}

func TestFilterTools_DecidesEveryToolOfALongList(t *testing.T) {
	t.Parallel()
	gateway := policyv1.NewPolicyServiceClient(serve(t, options{}).Gateway())
	req := &policyv1.FilterToolsRequest{Server: "demo"}
	for i := range 10_000 {
		req.Tools = append(req.Tools, &policyv1.ToolRef{Name: fmt.Sprintf("tool-%d", i)})
	}
	req.Tools[7777].Name = "read"
	ctx := authn.OnBehalfOf(t.Context(), ana())
	resp, err := gateway.FilterTools(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetTools()) != len(req.GetTools()) {
		t.Fatalf("the response has %d tools, want %d", len(resp.GetTools()), len(req.GetTools()))
	}
	for i, got := range resp.GetTools() {
		if got.GetName() != req.GetTools()[i].GetName() || got.GetVisible() != (i == 7777) {
			t.Fatalf("tool %d is %v", i, got)
		}
	}
	_, err = gateway.FilterTools(ctx, &policyv1.FilterToolsRequest{
		Server: req.GetServer(), Tools: append(req.GetTools(), &policyv1.ToolRef{Name: "one-too-many"}),
	})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

func TestExplainCall_ReturnsTheDecisionOfDecideCall(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	viewer, operator := policyv1.NewPolicyServiceClient(s.Person(t, "viewer")), policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	for _, c := range wantDecisions {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			principal := ana()
			principal.Groups = c.groups
			decided, err := operator.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: c.call, Subject: principal})
			if err != nil {
				t.Fatal(err)
			}
			explained, err := viewer.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: c.call, Subject: principal})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decided.GetDecision(), explained.GetDecision(), protocmp.Transform()); diff != "" {
				t.Errorf("(-DecideCall +ExplainCall):\n%s", diff)
			}
			if explained.GetWhy() == "" {
				t.Error("the explanation has no reason")
			}
			for _, r := range explained.GetRules() {
				if won := cmp.Equal(r.GetRule(), decided.GetDecision().GetRule(), protocmp.Transform()); won && !r.GetMatched() {
					t.Errorf("%v decided but did not match", r.GetRule())
				}
			}
		})
	}
	_, err := viewer.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: call("read")})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

func TestExplainCall_ListsEveryRuleWithItsChecks(t *testing.T) {
	t.Parallel()
	viewer := policyv1.NewPolicyServiceClient(serve(t, options{}).Person(t, "viewer"))
	resp, err := viewer.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: call("read"), Subject: ana()})
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*policyv1.ConsideredRule)
	for _, r := range resp.GetRules() {
		found[r.GetRule().GetRule()] = r
	}
	for _, name := range []string{"tools.read", "tools.export", "tools.remove", "tools.drop", "tools.pay", "tools.secret", "contractors-read-nothing"} {
		if found[name] == nil {
			t.Errorf("%s is not among %v", name, resp.GetRules())
		}
	}
	about := found["contractors-read-nothing"]
	if about.GetMatched() || about.GetEffect() != policyv1.Effect_EFFECT_DENY {
		t.Errorf("the rule for contractors is %v", about)
	}
	for _, check := range about.GetChecks() {
		if held := check.GetName() != "groups"; check.GetHeld() != held {
			t.Errorf("%s: held is %v, want %v", check.GetName(), check.GetHeld(), held)
		}
	}
	if len(about.GetChecks()) < 2 {
		t.Errorf("the checks are %v, want checks of tool and groups", about.GetChecks())
	}
}

// Case X4. CheckServer reports whether a caller could call or list anything on a server, and whether a tool is hidden
// from the caller.
func TestCheckServer_ReportsWhatACallerCouldDo(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	gateway := policyv1.NewPolicyServiceClient(s.Gateway())
	operator := policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	ctx := authn.OnBehalfOf(t.Context(), ana())
	for server, want := range map[string]*policyv1.CheckServerResponse{
		"demo":  {CouldAllow: true, CouldList: true, PromptsAlike: true, ResourcesAlike: true},
		"other": {HidesNone: true, PromptsAlike: true, ResourcesAlike: true},
	} {
		got, err := gateway.CheckServer(ctx, &policyv1.CheckServerRequest{Server: server})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := operator.CheckServer(t.Context(), &policyv1.CheckServerRequest{Server: server, Subject: ana()})
		if err != nil {
			t.Fatal(err)
		}
		want.PolicyRevision = got.GetPolicyRevision()
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || len(got.GetPolicyRevision()) != 64 || !proto.Equal(got, asked) {
			t.Errorf("%s (-want +got):\n%s\nan operator gets %v", server, diff, asked)
		}
	}
	_, err := gateway.CheckServer(t.Context(), &policyv1.CheckServerRequest{Server: "demo"})
	rpctest.WantStatus(t, err, codes.Unauthenticated, "PRINCIPAL_REQUIRED")
	_, err = gateway.CheckServer(ctx, &policyv1.CheckServerRequest{Server: "demo", Subject: ana()})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "SUBJECT_REFUSED")
	_, err = gateway.CheckServer(ctx, &policyv1.CheckServerRequest{Server: "No server"})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}
