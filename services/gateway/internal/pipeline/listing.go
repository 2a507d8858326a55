package pipeline

import (
	"context"
	"errors"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// mustBeListed refuses a call of a tool that the caller's list does not have, where
// something is hidden from the caller: what is hidden and what is not there go
// through the same steps, and policy is asked about neither. Their records are of one
// length too, which a caller could time: that a tool is there and which rule hides it
// stands in neither.
func (*Pipeline) mustBeListed(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	said, err := a.Tools.Listed(ctx)
	switch {
	case errors.Is(err, attempt.ErrUnlisted):
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	case err != nil:
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	case said.Listed:
		return a, nil
	}
	a.Decision = &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_UNKNOWN,
		Hidden: true, PolicyRevision: said.Revision,
	}
	return a, a.Denied(commonv1.Code_CODE_TOOL_UNKNOWN)
}
