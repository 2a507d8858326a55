package pipeline

import (
	"context"
	"errors"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// Listing is whether a caller's list of a server has a tool.
type Listing struct {
	// Listed says that it has.
	Listed bool
	// Revision is the one that judged.
	Revision string
}

// ErrUnlisted means that it is not known what the server lists.
var ErrUnlisted = errors.New("the server's list could not be read")

// exists refuses a call of a tool that the caller's list does not have, where
// something is hidden from the caller: what is hidden and what is not there go
// through the same steps, and policy is asked about neither. Their records are of one
// length too, which a caller could time: that a tool is there and which rule hides it
// stands in neither.
func (r *run) exists(ctx context.Context) *refusal.Refusal {
	if r.Listing == nil {
		return nil
	}
	said, err := r.Listing(ctx)
	switch {
	case errors.Is(err, ErrUnlisted):
		return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	case err != nil:
		return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	case said.Listed:
		return nil
	}
	r.decision = &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_UNKNOWN,
		Hidden: true, PolicyRevision: said.Revision,
	}
	return r.denied(commonv1.Code_CODE_TOOL_UNKNOWN)
}
