package identity_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// exported returns a token that the policy service stored in an earlier version.
func exported(name string, revoked bool) *policyv1.ExportedToken {
	hash := authn.HashSecret(rpctest.Secret(name))
	t := &identityv1.Token{
		Name: name, Tenant: "default", Subject: name, Agent: "cursor", Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Created: timestamppb.Now(), Expires: timestamppb.New(time.Now().Add(time.Hour)), CreatedBy: "operator",
	}
	if revoked {
		t.Revoked = timestamppb.Now()
	}
	return &policyv1.ExportedToken{Token: t, Sha256: hash[:], CreatedByTenant: "default"}
}

// The service starts for the first time, and the policy service is unavailable. No token is accepted yet, because a
// stored token would be refused as unknown. When the policy service is available, its tokens are valid, and revoked
// ones are not. After a restart, the policy service is not needed.
func TestRun_ImportsTheTokensOfThePolicyServiceOnce(t *testing.T) {
	t.Parallel()
	opts := options{data: t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		policy := &exporter{err: errors.New("unavailable")}
		opts.policy = policy
		svc, tokens, stop := start(t, opts)
		time.Sleep(time.Minute)
		if tokens.HasSet() || svc.Health(t.Context()) == nil {
			t.Error("there is a set of tokens although the stored tokens are unknown")
		}
		policy.set([]*policyv1.ExportedToken{exported("cursor-1", false), exported("cursor-2", true)}, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		check := func(when string, tokens *authn.Tokens) {
			if err := lookupError(tokens, rpctest.Secret("cursor-1")); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if err := lookupError(tokens, rpctest.Secret("cursor-2")); !errors.Is(err, authn.ErrTokenRevoked) {
				t.Errorf("%s, a revoked token: %v", when, err)
			}
			if err := lookupError(tokens, rpctest.Secret("agent")); err != nil {
				t.Errorf("%s, a token of the configuration: %v", when, err)
			}
		}
		check("after the import", tokens)
		if err := svc.Health(t.Context()); err != nil {
			t.Error(err)
		}
		if synctest.Wait(); !policy.moved {
			t.Error("the policy service still has the tokens")
		}
		stop()
		policy.set(nil, errors.New("unavailable"))
		_, tokens, _ = start(t, opts)
		synctest.Wait()
		check("after a restart", tokens)
	})
}
