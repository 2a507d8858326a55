package policy_test

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

// If a request asks for a signature, the signed statement describes the call and the decision. Otherwise the decision
// is not signed.
func TestDecideCall_SignsTheDecisionWhenRequested(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	caller := rpctest.Principal("default", "bot")
	ctx := authn.OnBehalfOf(t.Context(), caller)
	gateway := policyv1.NewPolicyServiceClient(s.Gateway())
	for _, tool := range []string{"pay", "read", "remove"} {
		c := call(tool)
		c.ParamsJson, c.DefinitionDigest = `{"name":"`+tool+`"}`, bytes.Repeat([]byte{1}, 32)
		plain, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: c})
		if err != nil || plain.GetSignedDecision() != nil {
			t.Fatalf("%s, unsigned: %v, %v", tool, plain, err)
		}
		resp, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: c, Attest: &policyv1.Attest{ServerIdentity: "http x", ApprovalId: "a-1", Attempt: 3}})
		if err != nil {
			t.Fatal(err)
		}
		st := new(policyv1.DecisionStatement)
		if err := proto.Unmarshal(resp.GetSignedDecision().GetStatement(), st); err != nil {
			t.Fatal(err)
		}
		digest, err := binding.DigestIgnoringDefinition(caller, c)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(st.GetDecision(), plain.GetDecision()) || !proto.Equal(resp.GetDecision(), plain.GetDecision()) ||
			!bytes.Equal(st.GetCallDigest(), digest[:]) || !bytes.Equal(st.GetPrincipalDigest(), signeddecision.PrincipalDigest(caller)) ||
			!bytes.Equal(st.GetDefinitionDigest(), c.GetDefinitionDigest()) || st.GetServerIdentity() != "http x" ||
			st.GetApprovalId() != "a-1" || st.GetAttempt() != 3 || st.GetActivation() == "" || st.GetTime() == nil {
			t.Errorf("%s: signed %v", tool, st)
		}
	}
	_, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{
		Call: &policyv1.Call{Server: "demo", Name: "pay", ParamsJson: `{"a":1,"a":2}`}, Attest: &policyv1.Attest{ServerIdentity: "x"},
	})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "JSON_INVALID")
	_, err = policyv1.NewPolicyServiceClient(s.Person(t, "operator")).DecideCall(t.Context(), &policyv1.DecideCallRequest{
		Call: call("pay"), Subject: caller, Attest: &policyv1.Attest{ServerIdentity: "x"},
	})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "ATTEST_REFUSED")
	_, err = gateway.DecideCall(ctx, &policyv1.DecideCallRequest{ // only the policy service itself asks about policy changes
		Call: &policyv1.Call{Server: "sluice-policy", Method: "policy/apply", Name: "x"}, Attest: &policyv1.Attest{ServerIdentity: "x"},
	})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "ATTEST_REFUSED")
}
