package identity_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// ownedToken returns a request for a token with an owner. If the owner is empty, the caller becomes the owner.
func ownedToken(name, tenant, owner string, usesConnections bool) *identityv1.CreateTokenRequest {
	req := newToken(name, tenant, "cursor")
	req.OwnedByCaller, req.Token.Owner, req.Token.UsesConnections = owner == "", owner, usesConnections
	return req
}

// The owner of a token is only a name, also if the operator who creates the token is the owner. The agent uses the
// owner's connections only if the owner says so when she creates the token.
func TestCreateToken_PersonIsTheOwnerOnlyIfSheSaysSo(t *testing.T) {
	t.Parallel()
	svc, tokens, _ := start(t, options{tokens: tokensOfTwoTenants()})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	s := rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
	for _, c := range []struct {
		operator, owner, person string
		req                     *identityv1.CreateTokenRequest
	}{
		{"operator", "operator", "", ownedToken("default-owner", "default", "", false)},
		{"operator", "corp/ana", "", ownedToken("other-owner", "default", "corp/ana", false)},
		{"operator", "operator", "operator", ownedToken("uses", "default", "", true)},
		{"operator", "operator", "operator", ownedToken("uses-by-name", "default", "operator", true)},
		{"acme-operator", "acme-operator", "acme-operator", ownedToken("acme-uses", "acme", "", true)},
	} {
		client := identityv1.NewIdentityServiceClient(s.Person(t, c.operator))
		made, err := client.CreateToken(t.Context(), c.req)
		if err != nil {
			t.Fatal(err)
		}
		name := c.req.GetToken().GetName()
		p, err := tokens.Lookup(made.GetSecret())
		if err != nil || p.GetOwner() != c.owner || p.GetPerson() != c.person {
			t.Errorf("%s: the principal is %v, %v; want the owner %q and the person %q", name, p, err, c.owner, c.person)
		}
		listed, err := client.ListTokens(t.Context(), new(identityv1.ListTokensRequest))
		at := slices.IndexFunc(listed.GetTokens(), func(t *identityv1.Token) bool { return t.GetName() == name })
		if err != nil || at < 0 || listed.GetTokens()[at].GetUsesConnections() != (c.person != "") {
			t.Errorf("%s: the list has %v, %v", name, listed, err)
		}
	}
}

// No operator creates a token that uses the connections of another person, or that has an owner in a tenant only because
// a person of another tenant has the same subject.
func TestCreateToken_RefusesConnectionsOfOthers(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	noOwner := newToken("new", "default", "cursor")
	noOwner.Token.UsesConnections = true
	for _, c := range []struct {
		name, operator string
		req            *identityv1.CreateTokenRequest
		reason         string
	}{
		{"another owner", "operator", ownedToken("new", "default", "corp/ana", true), "OWNER_REFUSED"},
		{"the same subject in another tenant", "operator", ownedToken("new", "acme", "operator", true), "OWNER_REFUSED"},
		{"the caller in another tenant", "operator", ownedToken("new", "acme", "", true), "OWNER_REFUSED"},
		{"the caller in another tenant, without connections", "operator", ownedToken("new", "acme", "", false), "OWNER_REFUSED"},
		{"no owner", "operator", noOwner, "OWNER_REFUSED"},
		{"another tenant's operator", "acme-operator", ownedToken("new", "default", "", true), "TENANT_REFUSED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := identityv1.NewIdentityServiceClient(s.Person(t, c.operator)).CreateToken(t.Context(), c.req)
			rpctest.WantStatus(t, err, codes.PermissionDenied, c.reason)
		})
	}
}

// The rotation of a token keeps its person. Only the owner can rotate such a token, because the caller of a rotation gets
// the new secret.
func TestRotateToken_KeepsThePersonAndRefusesOthers(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	svc, tokens, stop := start(t, options{tokens: tokensOfTwoTenants(), data: data})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	s := rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
	operator, acme := identityv1.NewIdentityServiceClient(s.Person(t, "operator")), identityv1.NewIdentityServiceClient(s.Person(t, "acme-operator"))
	for client, req := range map[identityv1.IdentityServiceClient]*identityv1.CreateTokenRequest{
		operator: ownedToken("own", "default", "", true), acme: ownedToken("acmes", "acme", "", true),
	} {
		if _, err := client.CreateToken(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := operator.CreateToken(t.Context(), ownedToken("anas", "default", "corp/ana", false)); err != nil {
		t.Fatal(err)
	}
	rotate := func(name string) (string, error) {
		resp, err := operator.RotateToken(t.Context(), &identityv1.RotateTokenRequest{Name: name, Overlap: durationpb.New(time.Hour)})
		return resp.GetSecret(), err
	}
	secret, err := rotate("own")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := tokens.Lookup(secret); err != nil || p.GetPerson() != "operator" {
		t.Errorf("after the rotation: %v, %v", p, err)
	}
	_, err = rotate("acmes")
	rpctest.WantStatus(t, err, codes.PermissionDenied, "OWNER_REFUSED")
	if err == nil || !strings.Contains(err.Error(), "revoke it instead") {
		t.Errorf("the refusal says %v", err)
	}
	if _, err = rotate("anas"); err != nil {
		t.Errorf("a token that uses no connections: %v", err)
	}
	stop()
	_, tokens, _ = start(t, options{tokens: tokensOfTwoTenants(), data: data})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	if p, err := tokens.Lookup(secret); err != nil || p.GetPerson() != "operator" {
		t.Errorf("after a restart: %v, %v", p, err)
	}
}

// A token of the configuration that is imported has an owner, but no person.
func TestImportTokens_GivesNoPerson(t *testing.T) {
	t.Parallel()
	records := tokensOfTwoTenants()
	at := slices.IndexFunc(records, func(r *identityv1.TokenRecord) bool { return r.GetToken().GetName() == "agent" })
	records[at].Token.Owner, records[at].Token.UsesConnections = "corp/ana", true
	data := t.TempDir()
	svc, tokens, stop := start(t, options{tokens: records, data: data})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	s := rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
	if p, err := tokens.Lookup(rpctest.Secret("agent")); err != nil || p.GetPerson() != "corp/ana" {
		t.Errorf("in the configuration: %v, %v", p, err)
	}
	_, err := identityv1.NewIdentityServiceClient(s.Person(t, "operator")).ImportTokens(t.Context(), &identityv1.ImportTokensRequest{
		Names: []string{"agent"}, Expires: timestamppb.New(time.Now().Add(time.Hour)),
	})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	_, tokens, _ = start(t, options{tokens: slices.Delete(records, at, at+1), data: data})
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	if p, err := tokens.Lookup(rpctest.Secret("agent")); err != nil || p.GetOwner() != "corp/ana" || p.GetPerson() != "" {
		t.Errorf("imported: %v, %v", p, err)
	}
}
