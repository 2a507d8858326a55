package identity_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// maxReloadDelay is the time within which a changed configuration must be in force.
const maxReloadDelay = 2 * time.Second

// newToken returns a request for a token that expires in an hour.
func newToken(name, tenant, agent string, groups ...string) *identityv1.CreateTokenRequest {
	return &identityv1.CreateTokenRequest{Token: &identityv1.Token{
		Name: name, Tenant: tenant, Subject: name, Agent: agent, Groups: groups, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Expires: timestamppb.New(time.Now().Add(time.Hour)),
	}}
}

// An operator creates a token for a client. The token is valid at once, both in this process and at a gateway that
// watches the tokens. After the operator revokes the token, it is refused as revoked, even after a restart.
func TestCreateToken_IsValidUntilItIsRevoked(t *testing.T) {
	t.Parallel()
	opts := options{tokens: tokensOfTwoTenants(), data: t.TempDir(), groups: map[string][]string{"developers": {"cursor-1"}, "on call": {"ana"}}}
	svc, tokens, stop := start(t, opts)
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	s := rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
	operator := identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	watching, err := identityv1.NewIdentityServiceClient(s.Gateway()).WatchTokens(t.Context(), new(identityv1.WatchTokensRequest))
	if err != nil {
		t.Fatal(err)
	}
	atGateway := new(authn.Tokens)
	await := func(what string, holds func() bool) {
		t.Helper()
		for !holds() {
			resp, err := watching.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if resp.GetSet() != nil {
				if err := atGateway.Update(resp.GetSet()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	await("the first set", atGateway.HasSet)

	req := newToken("cursor-1", "default", "cursor", "on call")
	req.OwnedByCaller = true
	made, err := operator.CreateToken(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := made.GetToken()
	if got.GetOwner() != "operator" || got.GetCreatedBy() != "operator" || got.GetCreated() == nil || got.GetConfigured() || authn.CheckSecret(made.GetSecret()) != nil {
		t.Errorf("created is %v, %v", got, authn.CheckSecret(made.GetSecret()))
	}
	await("the new token", func() bool { _, err := atGateway.Lookup(made.GetSecret()); return err == nil })
	p, err := tokens.Lookup(made.GetSecret())
	if err != nil || p.GetAgent() != "cursor" || p.GetTokenCreatedBy() != "operator" || p.GetTokenId() != "cursor-1" || !cmp.Equal(p.GetGroups(), []string{"on call", "developers"}) {
		t.Errorf("%v, %v", p, err)
	}
	_, err = operator.CreateToken(t.Context(), req)
	rpctest.WantStatus(t, err, codes.AlreadyExists, "TOKEN_EXISTS")

	revoked, err := operator.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Agent: "cursor"})
	if err != nil || len(revoked.GetTokens()) != 1 || revoked.GetTokens()[0].GetRevokedBy() != "operator" || revoked.GetTokens()[0].GetRevoked() == nil {
		t.Fatalf("%v, %v", revoked, err)
	}
	again, err := operator.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Agent: "cursor"})
	if err != nil || !cmp.Equal(names(again.GetTokens()), []string{"cursor-1"}) || again.GetTokens()[0].GetRevoked().AsTime() != revoked.GetTokens()[0].GetRevoked().AsTime() {
		t.Errorf("a repeated revocation: %v, %v", again, err)
	}
	await("the revocation", func() bool {
		_, err := atGateway.Lookup(made.GetSecret())
		return errors.Is(err, authn.ErrTokenRevoked)
	})
	if _, err := tokens.Lookup(made.GetSecret()); !errors.Is(err, authn.ErrTokenRevoked) {
		t.Errorf("the revoked token: %v", err)
	}
	list := func(ended bool) []string {
		resp, err := operator.ListTokens(t.Context(), &identityv1.ListTokensRequest{Ended: ended})
		if err != nil {
			t.Fatal(err)
		}
		return names(resp.GetTokens())
	}
	if has := strings.Contains(fmt.Sprint(list(false)), "cursor-1"); has || !strings.Contains(fmt.Sprint(list(true)), "cursor-1") {
		t.Errorf("listed are %v, with ended tokens %v", list(false), list(true))
	}
	stop()
	if _, tokens, _ = start(t, opts); !errors.Is(lookupError(tokens, made.GetSecret()), authn.ErrTokenRevoked) {
		t.Errorf("after a restart: %v", lookupError(tokens, made.GetSecret()))
	}
}

func lookupError(tokens *authn.Tokens, secret string) error {
	_, err := tokens.Lookup(secret)
	return err
}

func TestCreateToken_RefusesTokensThatMayNotExist(t *testing.T) {
	t.Parallel()
	tokens := tokensOfTwoTenants()
	tokens[0].Token.Groups = []string{"developers"}
	s := serve(t, options{tokens: tokens, groups: map[string][]string{"on call": {"ana"}}})
	changed := func(change func(*identityv1.Token)) *identityv1.CreateTokenRequest {
		req := newToken("new", "default", "cursor")
		change(req.GetToken())
		return req
	}
	expires := func(after time.Duration) *identityv1.CreateTokenRequest {
		return changed(func(t *identityv1.Token) { t.Expires = timestamppb.New(time.Now().Add(after)) })
	}
	for _, c := range []struct {
		name, operator string
		req            *identityv1.CreateTokenRequest
		code           codes.Code
		reason         string
	}{
		{"of another tenant", "acme-operator", newToken("new", "default", "cursor"), codes.PermissionDenied, "TENANT_REFUSED"},
		{"with a configured name", "operator", newToken("zoe", "default", "cursor"), codes.AlreadyExists, "TOKEN_EXISTS"},
		{"of an operator", "operator", changed(func(t *identityv1.Token) { t.Role = authv1.TokenRole_TOKEN_ROLE_OPERATOR }), codes.InvalidArgument, "TOKEN_INVALID"},
		{"of an approver", "operator", changed(func(t *identityv1.Token) { t.Role = authv1.TokenRole_TOKEN_ROLE_APPROVER }), codes.InvalidArgument, "TOKEN_INVALID"},
		{"without an agent", "operator", newToken("new", "default", " "), codes.InvalidArgument, "TOKEN_INVALID"},
		{"with the subject of an agent of the mesh", "operator", changed(func(t *identityv1.Token) { t.Subject = "agent:default/1" }), codes.InvalidArgument, "TOKEN_INVALID"},
		{"with a control character", "operator", newToken("new", "default", "a\x1b[2J"), codes.InvalidArgument, "TOKEN_INVALID"},
		{"with an unknown group", "operator", newToken("new", "default", "cursor", "finance"), codes.InvalidArgument, "TOKEN_INVALID"},
		{"with a group of another tenant's tokens", "acme-operator", newToken("new", "acme", "cursor", "developers"), codes.InvalidArgument, "TOKEN_INVALID"},
		{"with a group of the tenant default", "acme-operator", newToken("new", "acme", "cursor", "on call"), codes.InvalidArgument, "TOKEN_INVALID"},
		{"without an expiry", "operator", changed(func(t *identityv1.Token) { t.Expires = nil }), codes.InvalidArgument, "TOKEN_INVALID"},
		{"that has expired", "operator", expires(-time.Hour), codes.InvalidArgument, "TOKEN_INVALID"},
		{"that expires in two years", "operator", expires(2 * 365 * 24 * time.Hour), codes.InvalidArgument, "TOKEN_INVALID"},
		{"by a viewer", "viewer", newToken("new", "default", "cursor"), codes.PermissionDenied, "CALLER_REFUSED"},
		{"by an agent", "agent", newToken("new", "default", "cursor"), codes.PermissionDenied, "CALLER_REFUSED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := identityv1.NewIdentityServiceClient(s.Person(t, c.operator)).CreateToken(t.Context(), c.req)
			rpctest.WantStatus(t, err, c.code, c.reason)
		})
	}
}

// An operator of a tenant can create, list and revoke only tokens of that tenant. The names of other tenants' operators
// are not returned.
func TestTokens_OfOtherTenantsAreNotVisible(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	operator, acme := identityv1.NewIdentityServiceClient(s.Person(t, "operator")), identityv1.NewIdentityServiceClient(s.Person(t, "acme-operator"))
	for _, req := range []*identityv1.CreateTokenRequest{newToken("home", "default", "cursor"), newToken("foreign", "acme", "cursor")} {
		if _, err := operator.CreateToken(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := acme.CreateToken(t.Context(), newToken("own", "acme", "claude")); err != nil {
		t.Fatal(err)
	}
	listed, err := acme.ListTokens(t.Context(), &identityv1.ListTokensRequest{Ended: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Bob", "acme-operator", "acme-viewer", "foreign", "own", "zoe"}, names(listed.GetTokens())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, one := range listed.GetTokens() {
		if want := map[string]string{"own": "acme-operator"}[one.GetName()]; one.GetCreatedBy() != want {
			t.Errorf("%s was created by %q, want %q", one.GetName(), one.GetCreatedBy(), want)
		}
	}
	_, err = acme.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Name: "home"})
	rpctest.WantStatus(t, err, codes.NotFound, "TOKEN_UNKNOWN")
	revoked, err := acme.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Agent: "cursor"})
	if err != nil || !cmp.Equal(names(revoked.GetTokens()), []string{"foreign"}) {
		t.Errorf("%v, %v", revoked, err)
	}
	if len(revoked.GetConfigured()) != 0 {
		t.Errorf("the configuration has %v", revoked.GetConfigured())
	}
	for _, req := range []*identityv1.RevokeTokenRequest{{}, {Name: "own", Agent: "claude"}} {
		_, err = acme.RevokeToken(t.Context(), req)
		rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	}
}

func TestReportTokenUse_SetsTheLastUse(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	operator := identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	if _, err := operator.CreateToken(t.Context(), newToken("cursor-1", "default", "cursor")); err != nil {
		t.Fatal(err)
	}
	used, future := time.Now().Add(-time.Minute).Truncate(time.Second), time.Now().Add(time.Hour)
	for _, at := range []time.Time{used, future} {
		_, err := identityv1.NewIdentityServiceClient(s.Gateway()).ReportTokenUse(t.Context(), &identityv1.ReportTokenUseRequest{
			Uses: []*identityv1.TokenUse{{Name: "cursor-1", Used: timestamppb.New(at)}, {Name: "absent", Used: timestamppb.New(at)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		listed, err := operator.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range listed.GetTokens() {
			if one.GetName() != "cursor-1" {
				continue
			}
			if got := one.GetLastUsed().AsTime(); got.After(time.Now()) || got.Before(used) {
				t.Errorf("the last use is %v", got)
			}
		}
	}
}

// A reloadedTokens is a running service in a synctest bubble. The test can change the service's configuration.
type reloadedTokens struct {
	*testing.T
	svc    *identity.Service
	tokens *authn.Tokens
	log    bytes.Buffer

	mu  sync.Mutex
	now identity.Identities
	err error
}

// change changes the configuration, and waits until the service must have applied the change. err is the error that the
// service gets when it reads the configuration, or nil.
func (r *reloadedTokens) change(err error, tokens ...*identityv1.TokenRecord) {
	r.mu.Lock()
	r.now, r.err = identity.Identities{Tokens: tokens}, err
	r.mu.Unlock()
	time.Sleep(maxReloadDelay)
	synctest.Wait()
}

func (r *reloadedTokens) read() (identity.Identities, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, r.err
}

func runTokenReload(t *testing.T, first identity.Identities, test func(r *reloadedTokens)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &reloadedTokens{T: t, now: first}
		r.svc, r.tokens, _ = start(t, options{tokens: first.Tokens, log: &r.log, reload: r.read})
		synctest.Wait()
		test(r)
	})
}

func (r *reloadedTokens) isValid(name string) bool {
	return lookupError(r.tokens, rpctest.Secret(name)) == nil
}

// The tokens in the configuration change. New tokens become valid, and removed tokens become invalid. Nothing changes
// if the configuration can't be read or contains a token twice.
func TestReload_ReplacesTokens(t *testing.T) {
	t.Parallel()
	all := rpctest.Records()
	runTokenReload(t, identity.Identities{Tokens: all}, func(r *reloadedTokens) {
		added := rpctest.Record("added", "default", authv1.TokenRole_TOKEN_ROLE_AGENT)
		r.change(nil, slices.Concat(all[1:], []*identityv1.TokenRecord{added})...)
		if !r.isValid("added") || r.isValid(all[0].GetToken().GetName()) || !r.isValid(all[1].GetToken().GetName()) {
			t.Fatalf("the new tokens are not in force: %s", r.log.String())
		}
		r.change(errors.New("line 1: broken"))
		if !r.isValid("added") || strings.Count(r.log.String(), "broken") != 1 {
			t.Errorf("after a configuration that can't be read: %s", r.log.String())
		}
		r.change(nil, added, added)
		if !r.isValid("added") || !r.isValid(all[1].GetToken().GetName()) || !strings.Contains(r.log.String(), "have the same text") {
			t.Errorf("after a configuration with a token twice: %s", r.log.String())
		}
		r.change(nil, all...)
		if r.isValid("added") || !r.isValid(all[0].GetToken().GetName()) {
			t.Errorf("the tokens before are not in force again: %s", r.log.String())
		}
	})
}

// An agent uses its token at a gateway in the same process. The service stores the time of this use and lists it as the
// token's last use.
func TestRun_StoresUsesOfTokens(t *testing.T) {
	t.Parallel()
	runTokenReload(t, identity.Identities{Tokens: rpctest.Records()}, func(r *reloadedTokens) {
		operator := &authn.Caller{Person: &identityv1.Principal{Tenant: "default", Subject: "operator", Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR}}
		ctx := authn.WithCaller(r.Context(), operator)
		made, err := r.svc.CreateToken(ctx, newToken("cursor-1", "default", "cursor"))
		if err != nil {
			r.Fatal(err)
		}
		used := time.Now().Truncate(time.Second)
		if err := lookupError(r.tokens, made.GetSecret()); err != nil {
			r.Fatal(err)
		}
		time.Sleep(authn.UseInterval)
		synctest.Wait()
		listed, err := r.svc.ListTokens(ctx, new(identityv1.ListTokensRequest))
		if err != nil {
			r.Fatal(err)
		}
		for _, one := range listed.GetTokens() {
			if at := one.GetLastUsed(); one.GetName() == "cursor-1" && !at.AsTime().Equal(used) || one.GetConfigured() && at != nil {
				r.Errorf("the last use of %s is %v, want %v", one.GetName(), at.AsTime(), used)
			}
		}
	})
}

// An agent has two tokens: one that an operator created, and one in the configuration. A request to revoke the agent's
// tokens revokes the first token. The response names the second token, which stays valid.
func TestRevokeToken_NamesConfiguredTokensOfTheAgent(t *testing.T) {
	t.Parallel()
	records := tokensOfTwoTenants()
	records[0].Token.Agent = "cursor"
	s := serve(t, options{tokens: records})
	operator := identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	if _, err := operator.CreateToken(t.Context(), newToken("cursor-1", "default", "cursor")); err != nil {
		t.Fatal(err)
	}
	resp, err := operator.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Agent: "cursor"})
	if err != nil || !cmp.Equal(names(resp.GetTokens()), []string{"cursor-1"}) || !cmp.Equal(resp.GetConfigured(), []string{records[0].GetToken().GetName()}) {
		t.Errorf("%v, %v", resp, err)
	}
}

// The secret of a token is replaced. Both secrets are valid during the overlap, with the same rights, and only the new
// one after it. When the token is revoked during an overlap, both are refused.
func TestRotateToken_BothSecretsAreValidDuringTheOverlap(t *testing.T) {
	t.Parallel()
	runTokenReload(t, identity.Identities{Tokens: rpctest.Records()}, func(r *reloadedTokens) {
		ctx := authn.WithCaller(r.Context(), &authn.Caller{Person: &identityv1.Principal{Tenant: "default", Subject: "operator", Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR}})
		req := newToken("cursor-1", "default", "cursor")
		req.Token.Servers, req.Token.Expires = []string{"files"}, timestamppb.New(time.Now().Add(90*24*time.Hour))
		made, err := r.svc.CreateToken(ctx, req)
		if err != nil {
			r.Fatal(err)
		}
		rotate := func() string {
			resp, err := r.svc.RotateToken(ctx, &identityv1.RotateTokenRequest{Name: "cursor-1", Overlap: durationpb.New(time.Hour)})
			if err != nil {
				r.Fatal(err)
			}
			return resp.GetSecret()
		}
		second := rotate()
		check := func(when string, want map[string]error) {
			for secret, err := range want {
				p, got := r.tokens.Lookup(secret)
				if !errors.Is(got, err) || got == nil && (p.GetTokenId() != "cursor-1" || !slices.Equal(p.GetServers(), []string{"files"})) {
					r.Errorf("%s: %v, %v; want %v", when, p, got, err)
				}
			}
		}
		check("during the overlap", map[string]error{made.GetSecret(): nil, second: nil})
		time.Sleep(time.Hour)
		check("after the overlap", map[string]error{made.GetSecret(): authn.ErrTokenExpired, second: nil})
		third := rotate()
		check("after another rotation", map[string]error{made.GetSecret(): authn.ErrTokenUnknown, second: nil, third: nil})
		if _, err := r.svc.RevokeToken(ctx, &identityv1.RevokeTokenRequest{Name: "cursor-1"}); err != nil {
			r.Fatal(err)
		}
		check("after the revocation", map[string]error{second: authn.ErrTokenUnknown, third: authn.ErrTokenRevoked})
	})
}
