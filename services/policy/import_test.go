package policy_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
)

const foreignPolicy = `version: "1"
tools:
  refund:
    rules:
      - {name: small, conditions: [{path: args.amount, op: lte, value: 100}]}
      - {name: reviewed, action: require_approval}
`

// The translated policy can be loaded. Its findings have the path and line numbers of the original policy. Operators of
// all tenants may translate policies, because the translation reads nothing except the request.
func TestImportDocument_TranslatesAPolicy(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	req := &policyv1.ImportDocumentRequest{Dialect: policyv1.Dialect_DIALECT_OPERATOR_YAML, Text: foreignPolicy, Server: "pay", Path: "old/pay.yaml"}
	for _, name := range []string{"operator", "acme-operator"} {
		client := policyv1.NewPolicyServiceClient(l.Person(t, name))
		resp, err := client.ImportDocument(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if f := resp.GetFindings(); len(f) != 1 || f[0].GetPath() != "old/pay.yaml" || f[0].GetLine() != 6 || f[0].GetSeverity() != policyv1.Severity_SEVERITY_ERROR || f[0].GetCheck() != "import" {
			t.Errorf("%s: the findings are %v", name, f)
		}
		text := resp.GetDocument().GetText()
		if !strings.Contains(text, "when: '!(has(args.amount) && args.amount <= 100)'") || !strings.Contains(text, "name: refund.reviewed") {
			t.Errorf("%s: the translation is\n%s", name, text)
		}
		if found := policy.Lint([]*policyv1.Document{resp.GetDocument()}); len(found) > 1 {
			t.Errorf("%s: lint reports %v", name, found)
		}
	}
	empty, err := policyv1.NewPolicyServiceClient(l.Person(t, "operator")).ImportDocument(t.Context(), &policyv1.ImportDocumentRequest{
		Dialect: policyv1.Dialect_DIALECT_HOSTED_JSON, Text: "{}", Server: "pay",
	})
	if err != nil || empty.GetDocument() != nil || len(empty.GetFindings()) == 0 || empty.GetFindings()[0].GetPath() != "policy" {
		t.Errorf("a policy without content: %v, %v", empty, err)
	}
}

func TestImportDocument_RefusesRequestsWithoutDialectOrServer(t *testing.T) {
	t.Parallel()
	client := policyv1.NewPolicyServiceClient(serve(t, options{}).Person(t, "operator"))
	for _, req := range []*policyv1.ImportDocumentRequest{
		{Text: foreignPolicy, Server: "pay"},
		{Text: foreignPolicy, Dialect: policyv1.Dialect_DIALECT_OPERATOR_YAML},
		{Text: foreignPolicy, Dialect: policyv1.Dialect_DIALECT_OPERATOR_YAML, Server: "a\ndefault: allow"},
		{Text: foreignPolicy, Dialect: 7, Server: "pay"},
	} {
		_, err := client.ImportDocument(t.Context(), req)
		rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	}
}
