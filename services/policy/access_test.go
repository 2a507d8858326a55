package policy_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func TestCallers_AreEnforcedForEveryMethod(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	s.CheckCallers(t, "sluice.policy.v1",
		"sluice.policy.v1.CatalogService.AcceptPin",
		"sluice.policy.v1.CatalogService.GetDefinition",
		"sluice.policy.v1.CatalogService.GetServer",
		"sluice.policy.v1.CatalogService.GetTool",
		"sluice.policy.v1.CatalogService.ListServers",
		"sluice.policy.v1.CatalogService.ListTools",
		"sluice.policy.v1.CatalogService.OverrideTool",
		"sluice.policy.v1.CatalogService.RefusePin",
		"sluice.policy.v1.CatalogService.ReportTools",
		"sluice.policy.v1.CatalogService.SetQuarantine",
		"sluice.policy.v1.PolicyService.ApplyDocuments",
		"sluice.policy.v1.PolicyService.CheckServer",
		"sluice.policy.v1.PolicyService.DecideCall",
		"sluice.policy.v1.PolicyService.DiffCatalog",
		"sluice.policy.v1.PolicyService.DiffRevisions",
		"sluice.policy.v1.PolicyService.ExplainCall",
		"sluice.policy.v1.PolicyService.ExportTokens",
		"sluice.policy.v1.PolicyService.FilterTools",
		"sluice.policy.v1.PolicyService.FilterNames",
		"sluice.policy.v1.PolicyService.GetRevision",
		"sluice.policy.v1.PolicyService.ImportDocument",
		"sluice.policy.v1.PolicyService.LeaseRevision",
		"sluice.policy.v1.PolicyService.LintDocuments",
		"sluice.policy.v1.PolicyService.ListRevisions",
		"sluice.policy.v1.PolicyService.ListStops",
		"sluice.policy.v1.PolicyService.ReplayDecisions",
		"sluice.policy.v1.PolicyService.ResumeCalls",
		"sluice.policy.v1.PolicyService.SimulateCall",
		"sluice.policy.v1.PolicyService.StopCalls",
		"sluice.policy.v1.PolicyService.TestDocuments",
		"sluice.policy.v1.PolicyService.ListAccess",
		"sluice.policy.v1.PolicyService.WatchRevision",
	)
}

func TestCallers_AgentIsRefusedBeforeUnimplementedIsReported(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	req := new(policyv1.SuggestDocumentRequest)
	_, err := policyv1.NewPolicyServiceClient(s.Person(t, "agent")).SuggestDocument(t.Context(), req)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
	_, err = policyv1.NewPolicyServiceClient(s.Person(t, "operator")).SuggestDocument(t.Context(), req)
	rpctest.WantStatus(t, err, codes.Unimplemented, "NOT_SERVED")
	_, err = policyv1.NewPolicyServiceClient(s.Person(t, "agent")).ExplainCall(t.Context(), new(policyv1.ExplainCallRequest))
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
}

func TestPolicyRole_Serves(t *testing.T) {
	t.Parallel()
	serve(t, options{}).CheckHealth(t, "policy")
}

// If a client calls a method that this version does not support, the error names an alternative.
func TestNotServed_ErrorNamesAnAlternative(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	client := policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	for method, tt := range map[string]struct {
		call    func() error
		instead string
	}{
		"SuggestDocument": {func() error {
			_, err := client.SuggestDocument(t.Context(), new(policyv1.SuggestDocumentRequest))
			return err
		}, "policy suggest"},
	} {
		err := tt.call()
		rpctest.WantStatus(t, err, codes.Unimplemented, "NOT_SERVED")
		if text := err.Error(); !strings.Contains(text, method+" is not served in this version") || !strings.Contains(text, tt.instead) {
			t.Errorf("%s: %s", method, text)
		}
	}
}
