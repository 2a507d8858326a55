package identity_test

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func tokensOfTwoTenants() []*identityv1.TokenRecord {
	return append(rpctest.Records(),
		rpctest.Record("zoe", "acme", authv1.TokenRole_TOKEN_ROLE_AGENT),
		rpctest.Record("acme-operator", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR),
		rpctest.Record("acme-viewer", "acme", authv1.TokenRole_TOKEN_ROLE_VIEWER),
		rpctest.Record("Bob", "acme", authv1.TokenRole_TOKEN_ROLE_APPROVER))
}

func names(tokens []*identityv1.Token) []string {
	var out []string
	for _, t := range tokens {
		out = append(out, t.GetName())
	}
	return out
}

func TestListTokens_ReturnsTokensOfTheCallersTenant(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	own, acme := []string{"agent", "approver", "operator", "viewer"}, []string{"Bob", "acme-operator", "acme-viewer", "zoe"}
	all := slices.Sorted(slices.Values(append(slices.Clone(own), acme...)))
	for _, c := range []struct {
		name, token string
		want        []string
	}{
		{"an operator of the installation sees every tenant's", "operator", all},
		{"a viewer of the tenant default sees that tenant's", "viewer", own},
		{"an operator of another tenant sees that tenant's", "acme-operator", acme},
		{"a viewer of another tenant sees that tenant's", "acme-viewer", acme},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client := identityv1.NewIdentityServiceClient(s.Person(t, c.token))
			resp, err := client.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, names(resp.GetTokens())); diff != "" || resp.GetNextPageToken() != "" {
				t.Errorf("(-want +got), then %q:\n%s", resp.GetNextPageToken(), diff)
			}
		})
	}
}

func TestListTokens_ReturnsPages(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	client := identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	whole, err := client.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 8
	for size := 1; size <= tokens+1; size++ {
		var got []*identityv1.Token
		pages := 0
		for at := ""; pages <= tokens && (pages == 0 || at != ""); pages++ {
			page, err := client.ListTokens(t.Context(), &identityv1.ListTokensRequest{PageSize: int32(size), PageToken: at})
			if err != nil {
				t.Fatal(err)
			}
			if len(page.GetTokens()) > size || len(page.GetTokens()) == 0 {
				t.Fatalf("a page of %d has %d tokens", size, len(page.GetTokens()))
			}
			got, at = append(got, page.GetTokens()...), page.GetNextPageToken()
		}
		if diff := cmp.Diff(whole.GetTokens(), got, protocmp.Transform()); diff != "" {
			t.Errorf("in pages of %d (-whole +pages):\n%s", size, diff)
		}
		if want := (tokens + size - 1) / size; pages != want {
			t.Errorf("in pages of %d there were %d pages, want %d", size, pages, want)
		}
	}
	beyond, err := client.ListTokens(t.Context(), &identityv1.ListTokensRequest{PageToken: "~"})
	if err != nil || len(beyond.GetTokens()) > 0 || beyond.GetNextPageToken() != "" {
		t.Errorf("after the last page there is %v, %v", beyond, err)
	}
	for _, size := range []int32{-1, 1001} {
		_, err = client.ListTokens(t.Context(), &identityv1.ListTokensRequest{PageSize: size})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	}
}

func TestListTokens_PageHasAHundredTokensByDefault(t *testing.T) {
	t.Parallel()
	tokens := rpctest.Records()
	for i := range 200 {
		tokens = append(tokens, rpctest.Record(string([]byte{'t', '0' + byte(i/100), '0' + byte(i/10%10), '0' + byte(i%10)}), "default", authv1.TokenRole_TOKEN_ROLE_AGENT))
	}
	client := identityv1.NewIdentityServiceClient(serve(t, options{tokens: tokens}).Person(t, "operator"))
	resp, err := client.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
	if err != nil || len(resp.GetTokens()) != 100 || resp.GetNextPageToken() == "" {
		t.Errorf("%d tokens, then %q, %v", len(resp.GetTokens()), resp.GetNextPageToken(), err)
	}
}

func TestListTokens_OmitsHashesAndSecrets(t *testing.T) {
	t.Parallel()
	tokens := tokensOfTwoTenants()
	client := identityv1.NewIdentityServiceClient(serve(t, options{tokens: tokens}).Person(t, "operator"))
	resp, err := client.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(resp)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range tokens {
		if bytes.Contains(raw, r.GetSha256()) || bytes.Contains(raw, []byte(rpctest.Secret(r.GetToken().GetName()))) {
			t.Errorf("the response contains the hash of %s", r.GetToken().GetName())
		}
	}
}

func TestRevokeToken_RefusesTokensOfTheConfiguration(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	operator, acme := identityv1.NewIdentityServiceClient(s.Person(t, "operator")), identityv1.NewIdentityServiceClient(s.Person(t, "acme-operator"))
	for _, c := range []struct {
		name   string
		client identityv1.IdentityServiceClient
		token  string
		code   codes.Code
		reason string
	}{
		{"one of one's own tenant", operator, "agent", codes.FailedPrecondition, "TOKENS_CONFIGURED"},
		{"one of another tenant, by an operator of the installation", operator, "zoe", codes.FailedPrecondition, "TOKENS_CONFIGURED"},
		{"one of one's own tenant, by an operator of a tenant", acme, "zoe", codes.FailedPrecondition, "TOKENS_CONFIGURED"},
		{"one of another tenant, by an operator of a tenant", acme, "agent", codes.NotFound, "TOKEN_UNKNOWN"},
		{"an unknown token", operator, "zed", codes.NotFound, "TOKEN_UNKNOWN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := c.client.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Name: c.token})
			rpctest.WantStatus(t, err, c.code, c.reason)
		})
	}
}

func TestWatchTokens_SendsTokensThenHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := tokensOfTwoTenants()
		svc, _, _ := start(t, options{tokens: tokens})
		synctest.Wait()
		hearing := newWatchStream[identityv1.WatchTokensResponse](t.Context())
		go func() { _ = svc.WatchTokens(new(identityv1.WatchTokensRequest), hearing) }() // ends with the test
		synctest.Wait()
		if got := hearing.messages(); len(got) != 1 || got[0].after != 0 {
			t.Fatalf("at once it heard %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		hearing.wantHeartbeats(t)
		for i, h := range hearing.messages() {
			if i > 0 && h.message.GetSet() != nil {
				t.Fatalf("message %d has a set, but nothing has changed", i)
			}
		}
		if diff := cmp.Diff(tokens, hearing.messages()[0].message.GetSet().GetTokens(), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestWatchTokens_GivesOtherRolesTheTokens(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		tokens []*identityv1.TokenRecord
	}{{"where there are some", tokensOfTwoTenants()}, {"where there are none", []*identityv1.TokenRecord{}}}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, options{tokens: c.tokens})
			stream, err := identityv1.NewIdentityServiceClient(s.Role(authv1.Role_ROLE_RATELIMIT)).WatchTokens(t.Context(), new(identityv1.WatchTokensRequest))
			if err != nil {
				t.Fatal(err)
			}
			first, err := stream.Recv()
			if err != nil || first.GetSet() == nil {
				t.Fatalf("the first message is %v, %v", first, err)
			}
			learned, err := authn.NewTokens(first.GetSet().GetTokens())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.tokens {
				p, err := learned.Lookup(rpctest.Secret(r.GetToken().GetName()))
				if err != nil || p.GetSubject() != r.GetToken().GetSubject() || p.GetTenant() != r.GetToken().GetTenant() {
					t.Errorf("%s is known as %v, %v", r.GetToken().GetName(), p, err)
				}
			}
			if _, err := learned.Lookup(rpctest.Secret("stranger")); err == nil {
				t.Error("an unknown token is accepted")
			}
		})
	}
}
