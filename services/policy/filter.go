package policy

import (
	"context"
	"fmt"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// owner identifies the principal or person whose number of concurrent expensive requests is limited.
type owner struct{ tenant, name string }

func ownerOf(subject engine.Subject) owner { return owner{subject.Caller.Tenant, subject.Caller.Name} }

// FilterTools implements policyv1.PolicyServiceServer. Filtering a list takes as long as evaluating thousands of calls.
// Therefore the service filters only a few lists at the same time, and even fewer for one principal.
func (s *Service) FilterTools(ctx context.Context, req *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
	set, subject, err := s.resolve(ctx, req.GetMinRevision(), req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	done, err := s.listSlots.Acquire(ctx, ownerOf(subject))
	if err != nil {
		return nil, err
	}
	defer done()
	return s.filter(ctx, set, subject, req)
}

// filter reports for each tool in a list whether the tool is visible. It stops when ctx is cancelled.
func (s *Service) filter(ctx context.Context, set *activeSet, subject engine.Subject, req *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
	resp := &policyv1.FilterToolsResponse{
		PolicyRevision: set.Revision(),
		Tools:          make([]*policyv1.ToolVisibility, len(req.GetTools())),
	}
	for i, tool := range req.GetTools() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		resp.Tools[i] = packVisibility(tool.GetName(), set.Visible(subject, req.GetServer(), tool.GetName(), s.facts(set, req.GetServer(), tool.GetName(), tool.GetDefinitionDigest())))
	}
	return resp, nil
}

// listedKinds contains the list methods whose results can be filtered, and the notification about changed resources.
// For each method, it contains the kind of the entries.
var listedKinds = map[string]engine.EntryKind{
	"prompts/list":                    engine.EntryPrompt,
	"resources/list":                  engine.EntryResource,
	"resources/templates/list":        engine.EntryTemplate,
	"notifications/resources/updated": engine.EntryUpdate,
}

// FilterNames implements policyv1.PolicyServiceServer. It uses the same slots as [Service.FilterTools].
func (s *Service) FilterNames(ctx context.Context, req *policyv1.FilterNamesRequest) (*policyv1.FilterNamesResponse, error) {
	set, subject, err := s.resolve(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	kind, known := listedKinds[req.GetMethod()]
	if !known { // the validation of requests accepts no other method
		return nil, fmt.Errorf("method %q has no names to filter", req.GetMethod())
	}
	if len(req.GetNames()) > 1 { // to filter one name takes no longer than to evaluate a call
		done, err := s.listSlots.Acquire(ctx, ownerOf(subject))
		if err != nil {
			return nil, err
		}
		defer done()
	}
	resp := &policyv1.FilterNamesResponse{PolicyRevision: set.Revision(), Visible: make([]bool, len(req.GetNames()))}
	facts := set.catalog.servers[req.GetServer()].ServerFacts()
	for i, name := range req.GetNames() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		resp.Visible[i] = set.ShowsEntry(subject, req.GetServer(), kind, name, facts)
	}
	return resp, nil
}
