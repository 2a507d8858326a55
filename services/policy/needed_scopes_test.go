package policy_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

const scopedDocument = `version: 1
name: scoped
default: deny
tools:
  read: {action: allow}
  write: {action: allow, needs_scope: [repo.write, repo.read]}
rules:
  - {name: admin, match: {tool: purge, server: "github*"}, action: allow, needs_scope: repo.admin}
`

// scopesText describes the scopes of servers in a response.
func scopesText(resp *policyv1.LeaseRevisionResponse) string {
	var out []string
	for _, one := range resp.GetNeededScopes() {
		out = append(out, one.GetServer()+": "+strings.Join(one.GetScopes(), " "))
	}
	return strings.Join(out, "; ")
}

// A gateway receives the scopes that rules need with each lease. After a change of the policy, it receives the new
// scopes with the notification of the change.
func TestLeaseRevision_ContainsTheScopesOfConfiguredServers(t *testing.T) {
	t.Parallel()
	dir := folder(t, scopedDocument)
	synctest.Test(t, func(t *testing.T) {
		svc, _ := build(t, options{paths: []string{dir}, servers: map[string]catalog.Settings{"github": {}, "files": {}}})
		ctx, cancel := context.WithCancel(authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY}))
		defer cancel()
		stream := leaseStream{newWatchStream[policyv1.LeaseRevisionResponse](ctx), make(chan *policyv1.LeaseRevisionRequest)}
		ended := make(chan error, 2)
		go func() { ended <- svc.Run(ctx) }()
		go func() { ended <- svc.LeaseRevision(stream) }()
		last := func() *policyv1.LeaseRevisionResponse {
			synctest.Wait()
			sent := stream.messages()
			return sent[len(sent)-1].message
		}
		stream.requests <- &policyv1.LeaseRevisionRequest{Number: 1}
		const want = "files: repo.read repo.write; github: repo.admin repo.read repo.write"
		first := last()
		if diff := cmp.Diff(want, scopesText(first)); diff != "" {
			t.Errorf("the first lease (-want +got):\n%s", diff)
		}
		stream.requests <- &policyv1.LeaseRevisionRequest{Number: 2, Taken: first.GetNumber()}
		if renewed := last(); scopesText(renewed) != want || renewed.GetEpoch() != first.GetEpoch() {
			t.Errorf("renewed: %v", renewed)
		}
		write(t, dir, "policy.yaml", strings.ReplaceAll(scopedDocument, ", needs_scope: [repo.write, repo.read]", ""))
		time.Sleep(maxReloadDelay)
		if change := last(); change.GetEpoch() == first.GetEpoch() || scopesText(change) != "github: repo.admin" {
			t.Errorf("after a change: %v", change)
		}
		cancel()
		close(stream.requests)
		for range 2 {
			<-ended
		}
	})
}

func TestDecideCall_NamesTheMissingScopes(t *testing.T) {
	t.Parallel()
	client := policyv1.NewPolicyServiceClient(serve(t, options{paths: []string{folder(t, scopedDocument)}}).Gateway())
	caller := ana()
	caller.Issuer, caller.Scopes = "corp", []string{"repo.read"}
	decide := func() *policyv1.Decision {
		t.Helper()
		resp, err := client.DecideCall(authn.OnBehalfOf(t.Context(), caller), &policyv1.DecideCallRequest{Call: call("write")})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetDecision()
	}
	d := decide()
	if d.GetEffect() != deny || d.GetCode() != commonv1.Code_CODE_SCOPE_MISSING || d.GetRule().GetRule() != "tools.write" ||
		!cmp.Equal(d.GetNeededScopes(), []string{"repo.read", "repo.write"}) || !cmp.Equal(d.GetMissingScopes(), []string{"repo.write"}) {
		t.Errorf("%v", d)
	}
	caller.Scopes = []string{"repo.read", "repo.write"}
	if d := decide(); d.GetEffect() != allow || d.GetNeededScopes() != nil {
		t.Errorf("with the scopes: %v", d)
	}
}
