package identity_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// A token is imported, and then removed from the configuration. The secret of the token stays valid.
func TestImportTokens_KeepsSecretsValid(t *testing.T) {
	t.Parallel()
	all := tokensOfTwoTenants()
	reload := make(chan []*identityv1.TokenRecord, 1)
	current := identity.Identities{Tokens: all}
	svc, tokens, _ := start(t, options{tokens: all, reload: func() (identity.Identities, error) {
		select {
		case current.Tokens = <-reload:
		default:
		}
		return current, nil
	}})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	s := rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
	client := identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	expires := timestamppb.New(time.Now().Add(time.Hour))
	resp, err := client.ImportTokens(t.Context(), &identityv1.ImportTokensRequest{Expires: expires})
	if err != nil || !slices.Equal(names(resp.GetTokens()), []string{"agent"}) { // zoe is of another tenant, the others are people
		t.Fatalf("%v, %v", resp, err)
	}
	if resp, err = client.ImportTokens(t.Context(), &identityv1.ImportTokensRequest{Expires: expires}); err != nil || len(resp.GetTokens()) != 0 {
		t.Errorf("the second import: %v, %v", resp, err)
	}
	for _, name := range []string{"viewer", "unknown"} {
		_, err = client.ImportTokens(t.Context(), &identityv1.ImportTokensRequest{Names: []string{name}, Expires: expires})
		rpctest.WantStatus(t, err, codes.NotFound, "TOKEN_UNKNOWN")
	}
	_, err = client.ImportTokens(t.Context(), &identityv1.ImportTokensRequest{Names: []string{"agent"}, Expires: expires})
	rpctest.WantStatus(t, err, codes.AlreadyExists, "TOKEN_EXISTS")
	if resp, err = client.ImportTokens(t.Context(), &identityv1.ImportTokensRequest{Names: []string{"zoe"}, Expires: expires}); err != nil || len(resp.GetTokens()) != 1 {
		t.Errorf("a token of another tenant: %v, %v", resp, err)
	}

	isConfigured := func() bool {
		resp, err := client.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(resp.GetTokens(), func(t *identityv1.Token) bool { return t.GetName() == "agent" })
		return at < 0 || resp.GetTokens()[at].GetConfigured()
	}
	if !isConfigured() {
		t.Error("the configuration does not take precedence")
	}
	reload <- slices.DeleteFunc(slices.Clone(all), func(r *identityv1.TokenRecord) bool { return r.GetToken().GetName() == "agent" })
	eventually.Holds(t, "the stored token is used", func() bool {
		if _, err := tokens.Lookup(rpctest.Secret("agent")); err != nil {
			t.Fatalf("the token: %v", err)
		}
		return !isConfigured()
	})
}
