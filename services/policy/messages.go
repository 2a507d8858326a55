package policy

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// unpackCall converts the call in a request. If a person asks about a call to a tool and names no definition,
// unpackCall uses the tool's newest definition.
func (s *Service) unpackCall(ctx context.Context, set *activeSet, c *policyv1.Call, subject engine.Subject) (_ engine.Call, err error) {
	call := engine.Call{Method: c.GetMethod(), Server: c.GetServer(), Tool: c.GetName(), Ref: c.GetRef(), Params: c.GetParamsJson(), Subject: subject, Now: time.Now()}
	if !call.OfTool() {
		call.Facts = set.catalog.servers[c.GetServer()].ServerFacts()
		return call, nil
	}
	digest := c.GetDefinitionDigest()
	if len(digest) == 0 && authn.CallerOf(ctx).Person != nil {
		if server := set.catalog.servers[c.GetServer()]; server != nil {
			if d := server.Tools[c.GetName()].Newest(); d != nil {
				digest = d.Digest[:]
			}
		}
	}
	call.Facts = s.facts(set, c.GetServer(), c.GetName(), digest)
	if set.ChecksArguments(call) {
		call.CheckArguments, err = s.argumentCheck(ctx, set.catalog.servers[c.GetServer()], c.GetName(), digest)
	}
	return call, err
}

// unpackSubject converts a principal and its delegation chain. If a principal in the chain has its own delegation
// chain, unpackSubject returns [errNested], because the decision would ignore the principals in that chain.
func unpackSubject(p *identityv1.Principal) (engine.Subject, error) {
	s := engine.Subject{Caller: unpackPrincipal(p)}
	for _, behind := range p.GetChain() {
		if len(behind.GetChain()) > 0 {
			return engine.Subject{}, errNested
		}
		s.Chain = append(s.Chain, unpackPrincipal(behind))
	}
	return s, nil
}

func unpackPrincipal(p *identityv1.Principal) engine.Principal {
	return engine.Principal{
		Tenant: p.GetTenant(), Name: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), Groups: p.GetGroups(),
		Session: p.GetSession(), Run: p.GetRun(), Issuer: p.GetIssuer(), Client: p.GetClient(), Scopes: p.GetScopes(),
	}
}

func packDecision(set *activeSet, d engine.Decision, f *engine.Facts) *policyv1.Decision {
	out := &policyv1.Decision{
		Effect:         effects[d.Effect],
		Code:           packCode(d.Code),
		Message:        d.Message,
		Rule:           packRule(d.Rule),
		PolicyRevision: set.Revision(),
		Hidden:         d.Hidden,
		ChainIndex:     int32(d.ChainIndex),
		Idempotent:     d.Idempotent,
		ToolClass:      packClass(f),
		Observed:       packObservation(d.Observed),
	}
	if !d.Rule.IsZero() {
		out.RuleDigest = d.RuleDigest[:]
	}
	for _, l := range d.Limits {
		out.Limits = append(out.Limits, packLimit(l))
	}
	if d.Timeout > 0 {
		out.Timeout, out.TimeoutRule = durationpb.New(d.Timeout), packRule(d.TimeoutRule)
	}
	if d.Approval != nil {
		out.Approval = packTerms(d.Approval)
	}
	for _, r := range d.Redactions {
		out.Redactions = append(out.Redactions, packRedaction(r))
	}
	out.RecordArguments, out.NeededScopes, out.MissingScopes = d.Record, d.NeededScopes, d.MissingScopes
	return out
}

func packRedaction(r engine.RuleRedaction) *policyv1.Redaction {
	target := policyv1.RedactionTarget_REDACTION_TARGET_RESULT
	if r.Target == engine.RedactArguments {
		target = policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS
	}
	return &policyv1.Redaction{Rule: packRule(r.Rule), Target: target, Path: r.Path, Detector: r.Detector}
}

// packClass returns the classification of a tool, or nil if the tool is not classified.
func packClass(f *engine.Facts) *policyv1.ToolClass {
	if f.Category == "" {
		return nil
	}
	return &policyv1.ToolClass{
		Category: mcpv1.Category(slices.Index(engine.Categories(), f.Category) + 1), Risk: policyv1.Risk(slices.Index(engine.Risks(), f.Risk) + 1),
		Tags: f.Tags, Believed: f.Believed,
	}
}

func packTerms(t *engine.ApprovalTerms) *policyv1.ApprovalTerms {
	out := &policyv1.ApprovalTerms{Approvers: t.Approvers, Quorum: int32(t.Quorum), SelfConfirm: t.SelfConfirm}
	if t.DecideWithin > 0 {
		out.DecideWithin = durationpb.New(t.DecideWithin)
	}
	if t.ExecuteWithin > 0 {
		out.ExecuteWithin = durationpb.New(t.ExecuteWithin)
	}
	if t.Grant != (engine.Grant{}) {
		out.Grant = &policyv1.Grant{Calls: t.Grant.Calls, Within: durationpb.New(t.Grant.Within), Scope: t.Scope(), Where: t.Where}
	}
	if s := &t.ApproveWith; s.MaxAge > 0 || len(s.ACR) > 0 {
		out.ApproveWith = &policyv1.StepUp{AcrValues: s.ACR}
		if s.MaxAge > 0 {
			out.ApproveWith.MaxAge = durationpb.New(s.MaxAge)
		}
	}
	return out
}

func packLimit(l engine.Limit) *policyv1.RuleLimit {
	out := &policyv1.RuleLimit{
		Rule: packRule(l.Rule),
		Limit: &ratelimitv1.Limit{
			Bucket: l.Bucket,
			Kind:   ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW,
			Max:    strconv.FormatInt(l.Max, 10),
			Window: durationpb.New(l.Window),
			Cost:   "1",
		},
		Cap:        l.Cap,
		OnError:    policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY,
		SessionKey: sessionKeys[l.SessionKey],
	}
	for _, dimension := range l.Per {
		out.Per = append(out.Per, dimension.String())
	}
	return out
}

func packRule(r engine.RuleRef) *policyv1.RuleRef {
	if r.IsZero() {
		return nil
	}
	return &policyv1.RuleRef{Document: r.Document, Rule: r.Rule}
}

func packVisibility(name string, v engine.Visibility) *policyv1.ToolVisibility {
	return &policyv1.ToolVisibility{Name: name, Visible: v.Visible, Code: packCode(v.Code), Rule: packRule(v.Rule)}
}

func packExplanation(set *activeSet, e engine.Explanation, f *engine.Facts) *policyv1.ExplainCallResponse {
	out := &policyv1.ExplainCallResponse{Decision: packDecision(set, e.Decision, f), Why: e.Why}
	for _, c := range e.Rules {
		rule := &policyv1.ConsideredRule{
			Rule: packRule(c.Rule), Matched: c.Matched, Effect: actions[c.Action], ChainIndex: int32(c.ChainIndex), Observe: c.Observed,
		}
		for _, check := range c.Checks {
			rule.Checks = append(rule.Checks, &policyv1.Check{Name: check.Name, Want: check.Want, Got: check.Got, Held: check.Held})
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// withholdRules removes the rules that did not match from an explanation. It also removes the patterns and conditions
// of the rules that matched. Otherwise people of other tenants could find out the content of the installation's
// documents by asking about many calls.
func withholdRules(e *policyv1.ExplainCallResponse) {
	e.Rules = slices.DeleteFunc(e.GetRules(), func(r *policyv1.ConsideredRule) bool { return !r.GetMatched() })
	for _, r := range e.GetRules() {
		for _, c := range r.GetChecks() {
			c.Want = ""
			if slices.Contains([]string{"when", "otherwise", "grant.where"}, c.GetName()) {
				c.Got = "" // Got quotes the condition
			}
		}
	}
}

// packCode converts a code of package engine to a protobuf code. For an unknown code, it returns
// CODE_DENIED_BY_DEFAULT.
func packCode(c engine.Code) commonv1.Code {
	if c == "" {
		return commonv1.Code_CODE_UNSPECIFIED
	}
	if code, ok := commonv1.Code_value["CODE_"+strings.ToUpper(string(c))]; ok {
		return commonv1.Code(code)
	}
	return commonv1.Code_CODE_DENIED_BY_DEFAULT
}

// effects contains the protobuf effect for each effect of package engine. An unknown effect becomes EFFECT_UNSPECIFIED,
// and a call with this effect is refused.
var effects = map[engine.Effect]policyv1.Effect{
	engine.Deny:            policyv1.Effect_EFFECT_DENY,
	engine.Allow:           policyv1.Effect_EFFECT_ALLOW,
	engine.RequireApproval: policyv1.Effect_EFFECT_REQUIRE_APPROVAL,
}

var actions = map[engine.Action]policyv1.Effect{
	engine.ActionAllow:           policyv1.Effect_EFFECT_ALLOW,
	engine.ActionRequireApproval: policyv1.Effect_EFFECT_REQUIRE_APPROVAL,
	engine.ActionDeny:            policyv1.Effect_EFFECT_DENY,
	engine.ActionHide:            policyv1.Effect_EFFECT_DENY,
}

var sessionKeys = map[engine.SessionKey]policyv1.SessionKey{
	engine.SessionKeyRun:       policyv1.SessionKey_SESSION_KEY_RUN,
	engine.SessionKeySession:   policyv1.SessionKey_SESSION_KEY_SESSION,
	engine.SessionKeyPrincipal: policyv1.SessionKey_SESSION_KEY_PRINCIPAL,
}
