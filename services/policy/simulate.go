package policy

import (
	"context"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// SimulateCall implements policyv1.PolicyServiceServer. Only people of the tenant "default" may use it, because other
// people could send their own documents to find out what the catalog contains.
func (s *Service) SimulateCall(ctx context.Context, req *policyv1.SimulateCallRequest) (*policyv1.SimulateCallResponse, error) {
	if !mayReadDocuments(authn.CallerOf(ctx)) {
		return nil, toStatus(errOtherTenant)
	}
	active, subject, err := s.resolve(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	cfg := s.configForDrafts()
	compiled, _, err := cfg.compile(ctx, req.GetDocuments(), s.peopleFor(ctx))
	if ctx.Err() != nil { // the request was cancelled, which is not a finding
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return &policyv1.SimulateCallResponse{Findings: findings(err)}, nil
	}
	draft := &activeSet{Set: compiled.WithStops(active.Stops()), catalog: active.catalog}
	draft.revision = revisionOf(draft.Set, draft.catalog)
	call, err := s.unpackCall(ctx, draft, req.GetCall(), subject)
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.SimulateCallResponse{Explanation: packExplanation(draft, draft.Explain(call), &call.Facts)}, nil
}
