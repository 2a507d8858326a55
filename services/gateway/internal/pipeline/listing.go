package pipeline

import (
	"context"
	"errors"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
)

// judge asks the policy service to evaluate a call. The service may deny the call because of the tool's definition. If
// the gateway has never listed the server's tools, judge then lists them and asks the service again. If the tools
// cannot be listed, judge refuses the call, because the gateway does not know whether the definition is accepted.
func (p *Pipeline) judge(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	a, refused := p.judgeDefinition(ctx, a)
	if refused != nil || a.Tools == nil || a.Decision.GetHidden() || a.Decision.GetCode() != commonv1.Code_CODE_TOOL_CHANGED {
		return a, refused
	}
	listed, refused := a.Tools.EnsureListed(ctx)
	if refused != nil || !listed {
		return a, refused
	}
	return p.attempts.Judge(ctx, a)
}

// judgeDefinition asks the policy service to evaluate a call with the definition of the called tool, if the definition
// is known. If the service denies the call only because the definition is not known, judgeDefinition requests the
// server's list in the session and asks again. If a rule denies the call, judgeDefinition sends no request to the
// server.
func (p *Pipeline) judgeDefinition(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	calls := a.Tools != nil && a.Sent.Method == mcp.MethodToolsCall
	if calls {
		a.Definition = a.Tools.Known(ctx)
	}
	a, refused := p.attempts.Judge(ctx, a)
	d := a.Decision
	if refused != nil || !calls || a.Definition != nil || d.GetHidden() || d.GetCode() != commonv1.Code_CODE_TOOL_UNKNOWN {
		return a, refused
	}
	definition, err := a.Tools.Definition(ctx, false)
	if err != nil {
		p.deps.Log.WarnContext(ctx, "the tool's definition was not read", "decision_id", a.ID, "server", a.Server)
		return a, definitionUnknown(err)
	}
	if definition == nil {
		return a, nil
	}
	a.Definition = definition
	return p.attempts.Judge(ctx, a)
}

func definitionUnknown(err error) *refusal.Refusal {
	if errors.Is(err, toolreport.ErrNotReported) {
		return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	if refused := attempt.SignInRefusal(err); refused != nil {
		return refused
	}
	return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server does not list its tools, so it is not known what would be called."}
}

// mustBeListed refuses a call to a tool that is missing from the caller's list, if the policy hides some of the
// server's tools from the caller. Hidden tools and missing tools must look alike, so mustBeListed takes the same steps
// for both and does not ask the policy service to evaluate the call. The journal's records for both have the same
// length, because a caller could measure how long it takes to write a record. The records do not show whether the tool
// exists or which rule hides it.
func (*Pipeline) mustBeListed(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	listing, err := a.Tools.Listed(ctx)
	switch {
	case errors.Is(err, attempt.ErrUnlisted):
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	case err != nil:
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	case listing.Listed:
		return a, nil
	}
	a.Decision = &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_UNKNOWN,
		Hidden: true, PolicyRevision: listing.Revision,
	}
	return a, a.Denied(commonv1.Code_CODE_TOOL_UNKNOWN)
}
