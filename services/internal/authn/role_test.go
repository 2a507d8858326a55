package authn_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"net/url"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

func TestRoleName_CoversEveryRole(t *testing.T) {
	t.Parallel()
	for number, enum := range authv1.Role_name {
		role := authv1.Role(number)
		name := authn.RoleName(role)
		back, err := authn.ParseRole(name)
		if role == authv1.Role_ROLE_UNSPECIFIED {
			if err == nil {
				t.Errorf("%q is a role", name)
			}
			continue
		}
		if err != nil || back != role {
			t.Errorf("%s is %q, and %q is %s, %v", enum, name, name, back, err)
		}
	}
	for _, name := range []string{"", "unknown", "Gateway", "gateway ", "gateway/x"} {
		if role, err := authn.ParseRole(name); err == nil || role != authv1.Role_ROLE_UNSPECIFIED {
			t.Errorf("%q is the role %s", name, role)
		}
	}
	if got := authn.RoleName(99); got != "unknown" {
		t.Errorf("99 is %q", got)
	}
}

func TestPeerOf_RequiresExactlyOneRole(t *testing.T) {
	t.Parallel()
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		uris []string
		key  any
		want authv1.Role
	}{
		{"a role", []string{"spiffe://sluice/ratelimit"}, pub, ratelimit},
		{"a role and another URI", []string{"https://example.com/", "spiffe://sluice/ratelimit"}, pub, ratelimit},
		{"no name", nil, pub, 0},
		{"something else's name", []string{"spiffe://other/gateway"}, pub, 0},
		{"an unknown role", []string{"spiffe://sluice/root"}, pub, 0},
		{"the name of no role", []string{"spiffe://sluice/unknown"}, pub, 0},
		{"an empty role", []string{"spiffe://sluice/"}, pub, 0},
		{"two roles", []string{"spiffe://sluice/gateway", "spiffe://sluice/policy"}, pub, 0},
		{"one role twice", []string{"spiffe://sluice/gateway", "spiffe://sluice/gateway"}, pub, 0},
		{"a role and an unknown one", []string{"spiffe://sluice/gateway", "spiffe://sluice/root"}, pub, 0},
		{"a path below a role", []string{"spiffe://sluice/gateway/1"}, pub, 0},
		{"a query behind a role", []string{"spiffe://sluice/gateway?x=1"}, pub, 0},
		{"another case", []string{"spiffe://sluice/Gateway"}, pub, 0},
		{"an escaped role", []string{"spiffe://sluice/%67ateway"}, pub, 0},
		{"a user before the domain", []string{"spiffe://x@sluice/gateway"}, pub, 0},
		{"a key that signs no principals", []string{"spiffe://sluice/gateway"}, &curve.PublicKey, 0},
		{"no key", []string{"spiffe://sluice/gateway"}, nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cert := &x509.Certificate{PublicKey: tt.key}
			for _, text := range tt.uris {
				uri, err := url.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				cert.URIs = append(cert.URIs, uri)
			}
			got, err := authn.PeerOf(cert)
			if got.Role != tt.want || (err == nil) != (tt.want != 0) || err != nil && got.Key != nil {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestCaller_Tenant(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]authn.Caller{
		"acme":    {Person: &identityv1.Principal{Tenant: "acme"}},
		"default": {Role: gateway, Principal: &identityv1.Principal{Tenant: "default"}},
		"":        {Role: gateway},
	} {
		if got := c.Tenant(); got != want {
			t.Errorf("the tenant is %q, want %q", got, want)
		}
	}
	if c := authn.CallerOf(t.Context()); c != nil {
		t.Errorf("a context without a caller has %v", c)
	}
	if p := authn.PrincipalOf(authn.OnBehalfOf(t.Context(), nil)); p != nil {
		t.Errorf("OnBehalfOf with nil set %v", p)
	}
}
