package policy

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// withheldFinding returns the finding that callers outside the tenant "default" see instead of the findings about
// policy documents.
func withheldFinding() *policyv1.Finding {
	return &policyv1.Finding{
		Severity: policyv1.Severity_SEVERITY_ERROR, Check: "load",
		Message: "newer policy documents do not load; callers of the tenant \"default\" see the reasons with `sluice status`",
	}
}

// mayReadDocuments reports whether a caller may read the policy documents and the findings about them. Callers of the
// tenant "default" may read them, because the documents belong to the installation. Services that call on their own
// behalf may also read them.
func mayReadDocuments(caller *authn.Caller) bool {
	return caller != nil && (caller.Tenant() == homeTenant || caller.Person == nil && caller.Principal == nil)
}

// describe returns a message about the active policy for a caller. Only operators of the installation and services see
// the suggestions in findings, because suggestions contain names of people of all tenants.
func (a *activeSet) describe(caller *authn.Caller) *policyv1.Revision {
	out := &policyv1.Revision{
		Id: a.Revision(), Activated: timestamppb.New(a.activated), Activation: a.activation(), Active: true, Rejected: a.rejected,
	}
	if mayReadDocuments(caller) {
		observed, count := packObserved(a.Set)
		out.Observed, out.ObservedCount = observed, int32(count)
		a.describeStored(out)
	}
	switch {
	case !mayReadDocuments(caller):
		if len(a.rejected) > 0 {
			out.Rejected = []*policyv1.Finding{withheldFinding()}
		}
		return out
	case caller.Person == nil || caller.OperatesInstallation():
		return out
	}
	out.Rejected = make([]*policyv1.Finding, len(a.rejected))
	for i, f := range a.rejected {
		out.Rejected[i] = proto.CloneOf(f)
		out.Rejected[i].Suggestion = ""
	}
	return out
}

// WatchRevision implements policyv1.PolicyServiceServer. Services get a new revision immediately. People get it only
// after no decisions are made with older revisions.
func (s *Service) WatchRevision(_ *policyv1.WatchRevisionRequest, stream grpc.ServerStreamingServer[policyv1.WatchRevisionResponse]) error {
	caller := authn.CallerOf(stream.Context())
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		changed := s.changes.Wait()
		resp := new(policyv1.WatchRevisionResponse)
		if set := s.active.Load(); set != nil {
			if caller != nil && caller.Person != nil {
				if err := s.waitForOlderLeases(stream.Context(), set); err != nil {
					return err
				}
			}
			resp.Revision = set.describe(caller)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		case <-tick.C:
		}
	}
}
