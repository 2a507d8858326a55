package policy_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
)

// All approvers that a rule names are removed from the configuration. The policy stays in force, and the log contains a
// warning that calls to which this rule applies can never be approved. When they are added again, the policy loads
// again.
func TestReload_PolicyStaysAlthoughARuleNeedsTheRemovedApprovers(t *testing.T) {
	t.Parallel()
	dir := folder(t, document)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		now := holdersOf(records())
		read := func() (policy.People, error) {
			mu.Lock()
			defer mu.Unlock()
			return now, nil
		}
		svc, _ := build(t, options{paths: []string{dir}, log: &log, reload: read})
		go func() { _ = svc.Run(t.Context()) }()
		for _, step := range []struct {
			records []*identityv1.TokenRecord
			logged  string
		}{{rpctest.Records(), "can never be approved"}, {records(), "policies load again"}} {
			mu.Lock()
			now = holdersOf(step.records)
			mu.Unlock()
			time.Sleep(maxReloadDelay)
			synctest.Wait()
			if !strings.Contains(log.String(), step.logged) {
				t.Errorf("the log does not contain %q: %s", step.logged, log.String())
			}
		}
	})
}

// A token was revoked, but a gateway does not know this yet. The gateway asks the policy service to evaluate a call by
// the token's holder. The policy service denies the call, and the gateway may not reuse this decision.
func TestDecideCall_DeniesCallersWithRevokedTokens(t *testing.T) {
	t.Parallel()
	svc, tokens := build(t, options{})
	s := rpctest.Serve(t, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	gateway, caller := policyv1.NewPolicyServiceClient(s.Gateway()), rpctest.Principal("default", "cursor-1")
	caller.TokenId = "cursor-1"
	decide := func() *policyv1.DecideCallResponse {
		t.Helper()
		resp, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), caller), &policyv1.DecideCallRequest{Call: call("read")})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if before := decide(); before.GetDecision().GetEffect() != policyv1.Effect_EFFECT_ALLOW {
		t.Fatalf("%v", before)
	}
	hash := authn.HashSecret("revoked")
	if err := tokens.Update(&identityv1.TokenSet{Tokens: records(), Ended: []*identityv1.EndedToken{{Name: "cursor-1", Sha256: hash[:], Revoked: true}}}); err != nil {
		t.Fatal(err)
	}
	after := decide()
	if d := after.GetDecision(); d.GetEffect() != policyv1.Effect_EFFECT_DENY || d.GetCode() != commonv1.Code_CODE_UNAUTHENTICATED || after.GetKeeping() != nil {
		t.Errorf("%v", after)
	}
	caller.TokenId = "agent"
	if other := decide(); other.GetDecision().GetEffect() != policyv1.Effect_EFFECT_ALLOW {
		t.Errorf("another token: %v", other)
	}
}
