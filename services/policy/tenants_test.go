package policy_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// twoTenants is a document with rules for two tenants. One of the rules names a person and has a condition.
const twoTenants = `version: 1
name: two-tenants
default: deny
tools:
  read: {action: allow, reason: all may read}
rules:
  - {name: acme-takeover, match: {tool: export, principal: "mallory-of-umbrella", tenant: umbrella}, action: allow}
  - {name: both, match: {tool: export, tenant: [acme, umbrella], principal: [bob, "mallory-of-umbrella"]}, action: allow}
`

// umbrellaWords lists words in the document twoTenants that only people of the tenant "default" may read.
var umbrellaWords = []string{"umbrella", "acme-takeover"}

func otherTenantTokens() []*identityv1.TokenRecord {
	return []*identityv1.TokenRecord{
		rpctest.Record("acme-operator", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR),
		rpctest.Record("acme-viewer", "acme", authv1.TokenRole_TOKEN_ROLE_VIEWER),
	}
}

func TestDocuments_AreWithheldFromPeopleOfAnotherTenant(t *testing.T) {
	t.Parallel()
	s := serve(t, options{paths: []string{folder(t, twoTenants)}, tokens: append(rpctest.Records(), otherTenantTokens()...)})
	for _, name := range []string{"acme-operator", "acme-viewer"} {
		client := policyv1.NewPolicyServiceClient(s.Person(t, name))
		_, err := client.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
		rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
		_, err = client.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: strings.Repeat("0", 64)})
		rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED") // the same error as for a stored revision
		stream, err := client.WatchRevision(t.Context(), new(policyv1.WatchRevisionRequest))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := stream.Recv(); err != nil || len(resp.GetRevision().GetId()) != 64 {
			t.Errorf("%s watches %v, %v", name, resp, err)
		}
	}
	for _, name := range []string{"operator", "viewer"} {
		got, err := policyv1.NewPolicyServiceClient(s.Person(t, name)).GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
		if err != nil || len(got.GetDocuments()) != 1 || got.GetDocuments()[0].GetText() != twoTenants {
			t.Errorf("%s of the installation reads %v, %v", name, got, err)
		}
	}
}

func TestExplainCall_ReturnsOnlyMatchedRulesToPeopleOfAnotherTenant(t *testing.T) {
	t.Parallel()
	s := serve(t, options{paths: []string{folder(t, twoTenants)}, tokens: append(rpctest.Records(), otherTenantTokens()...)})
	ask := func(name string) *policyv1.ExplainCallResponse {
		resp, err := policyv1.NewPolicyServiceClient(s.Person(t, name)).ExplainCall(t.Context(),
			&policyv1.ExplainCallRequest{Call: call("export"), Subject: rpctest.Principal("acme", "bob")})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	all := ask("viewer")
	for _, name := range []string{"acme-operator", "acme-viewer"} {
		got := ask(name)
		text := prototext.Format(got)
		if slices.ContainsFunc(umbrellaWords, func(word string) bool { return strings.Contains(text, word) }) {
			t.Errorf("%s gets data of another tenant:\n%s", name, text)
		}
		if len(got.GetRules()) != 1 || got.GetRules()[0].GetRule().GetRule() != "both" || len(got.GetRules()[0].GetChecks()) != 3 {
			t.Errorf("%s reads %v, want the rule that matched", name, got.GetRules())
		}
		if got.GetDecision().GetEffect() != all.GetDecision().GetEffect() || got.GetWhy() != all.GetWhy() {
			t.Errorf("%s gets %v, %q, want the decision %v, %q", name, got.GetDecision(), got.GetWhy(), all.GetDecision(), all.GetWhy())
		}
	}
	if text := prototext.Format(all); len(all.GetRules()) != 3 || !strings.Contains(text, "umbrella") {
		t.Errorf("a viewer of the installation reads\n%s", text)
	}
}

func TestFindings_AreWithheldFromPeopleOfAnotherTenant(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		r.wantState(allowed, false, false)
		r.write("policy.yaml", strings.Replace(twoTenants, "action: allow}\n  - {name: both", "action: umbrella}\n  - {name: both", 1))
		r.wantState(allowed, false, true)
		for name, tt := range map[string]struct {
			caller *authn.Caller
			reads  bool
		}{
			"a viewer of the installation":   {&authn.Caller{Person: person("default", authv1.TokenRole_TOKEN_ROLE_VIEWER)}, true},
			"a role":                         {&authn.Caller{Role: authv1.Role_ROLE_GATEWAY}, true},
			"an operator of another tenant":  {&authn.Caller{Person: person("acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR)}, false},
			"a viewer of another tenant":     {&authn.Caller{Person: person("acme", authv1.TokenRole_TOKEN_ROLE_VIEWER)}, false},
			"a caller that is not known yet": {nil, false},
		} {
			ctx := r.Context()
			if tt.caller != nil {
				ctx = authn.WithCaller(ctx, tt.caller)
			}
			heard := newWatchStream[policyv1.WatchRevisionResponse](ctx)
			go func() { _ = r.svc.WatchRevision(new(policyv1.WatchRevisionRequest), heard) }() // ends with the test
			synctest.Wait()
			found := heard.messages()[0].message.GetRevision().GetRejected()
			if len(found) != 1 {
				t.Fatalf("%s reads %v, want one finding", name, found)
			}
			quotes := found[0].GetPath() != "" && found[0].GetLine() > 0 && strings.Contains(found[0].GetMessage(), "umbrella")
			if quotes != tt.reads || !tt.reads && !strings.Contains(found[0].GetMessage(), "do not load") {
				t.Errorf("%s reads %v", name, found)
			}
		}
	})
}
