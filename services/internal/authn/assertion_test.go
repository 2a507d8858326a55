package authn_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"buf.build/go/protovalidate"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	gateway   = authv1.Role_ROLE_GATEWAY
	policy    = authv1.Role_ROLE_POLICY
	ratelimit = authv1.Role_ROLE_RATELIMIT
	wasmagent = authv1.Role_ROLE_WASMAGENT
)

// newKey creates the key of one process of the mesh.
func newKey(t testing.TB, role authv1.Role) (ed25519.PrivateKey, authn.Peer) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key, authn.Peer{Role: role, Key: pub}
}

func newVerifier(t testing.TB) *authn.Verifier {
	t.Helper()
	v, err := authn.NewVerifier(func(m proto.Message) error { return protovalidate.Validate(m) })
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ana returns a principal that the gateway may sign.
func ana() *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "default", Subject: "ana", Agent: "dev", Groups: []string{"developers"},
		Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Session: "0123456789abcdef",
	}
}

// anasAgent returns an agent that belongs to ana. The wasmagent service may sign this principal.
func anasAgent() *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "default", Subject: "agent:default/a1", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Chain: []*identityv1.Principal{ana()},
	}
}

func TestVerifier_ReturnsSignedPrincipal(t *testing.T) {
	t.Parallel()
	for role, p := range map[authv1.Role]*identityv1.Principal{gateway: ana(), wasmagent: anasAgent()} {
		key, peer := newKey(t, role)
		signer, err := authn.NewSigner(role, key)
		if err != nil {
			t.Fatal(err)
		}
		text, err := signer.Sign(p, policy)
		if err != nil {
			t.Fatal(err)
		}
		verifier := newVerifier(t)
		for range 2 { // the second result comes from the cache
			got, err := verifier.Verify(text, peer, policy)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(p, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s's principal (-sent +got):\n%s", authn.RoleName(role), diff)
			}
		}
		if _, err := verifier.Verify(text, peer, ratelimit); !errors.Is(err, authn.ErrAssertion) {
			t.Errorf("what was verified for policy counts for ratelimit too: %v", err)
		}
	}
}

// forgery is an assertion in which each part can be made wrong. If a field has its zero value, that part of the
// assertion is correct.
type forgery struct {
	method    jwt.SigningMethod
	key       any
	issuer    string
	audience  jwt.ClaimStrings
	issued    time.Duration // relative to the current time
	life      time.Duration
	noIssued  bool
	noExpires bool
	principal *identityv1.Principal
	raw       string // replaces the principal's encoding
}

// assertionClaims repeats the claims that the contract defines, so that the test does not depend on the tested code.
type assertionClaims struct {
	jwt.RegisteredClaims
	Principal string `json:"principal"`
}

func (f forgery) text(t *testing.T, key ed25519.PrivateKey) string {
	t.Helper()
	now := time.Now().Add(f.issued)
	c := assertionClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: "spiffe://sluice/gateway", Audience: jwt.ClaimStrings{"spiffe://sluice/policy"}}}
	if f.issuer != "" {
		c.Issuer = f.issuer
	}
	if f.audience != nil {
		c.Audience = f.audience
	}
	if f.life == 0 {
		f.life = time.Minute
	}
	if !f.noIssued {
		c.IssuedAt = jwt.NewNumericDate(now)
	}
	if !f.noExpires {
		c.ExpiresAt = jwt.NewNumericDate(now.Add(f.life))
	}
	if f.principal == nil {
		f.principal = ana()
	}
	raw, err := proto.Marshal(f.principal)
	if err != nil {
		t.Fatal(err)
	}
	c.Principal = base64.RawURLEncoding.EncodeToString(raw)
	if f.raw != "" {
		c.Principal = f.raw
	}
	if f.method == nil {
		f.method, f.key = jwt.SigningMethodEdDSA, key
	} else if f.key == nil {
		f.key = key
	}
	text, err := jwt.NewWithClaims(f.method, c).SignedString(f.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Case I1. An assertion is refused if one of its parts is wrong.
func TestVerifier_RefusesWrongAssertions(t *testing.T) {
	t.Parallel()
	other, _ := newKey(t, gateway)
	edit := func(change func(*identityv1.Principal)) *identityv1.Principal {
		p := ana()
		change(p)
		return p
	}
	tests := []struct {
		name string
		with forgery
		ok   bool
	}{
		{"nothing wrong", forgery{}, true},
		{"signed a little ahead of our clock", forgery{issued: 3 * time.Second}, true},
		{"among several audiences", forgery{audience: jwt.ClaimStrings{"spiffe://sluice/policy", "spiffe://sluice/ratelimit"}}, true},
		{"another key", forgery{method: jwt.SigningMethodEdDSA, key: other}, false},
		{"alg none", forgery{method: jwt.SigningMethodNone, key: jwt.UnsafeAllowNoneSignatureType}, false},
		{"alg HS256 with the public key as secret", forgery{method: jwt.SigningMethodHS256, key: []byte(other.Public().(ed25519.PublicKey))}, false},
		{"another role as issuer", forgery{issuer: "spiffe://sluice/wasmagent"}, false},
		{"no role as issuer", forgery{issuer: "gateway"}, false},
		{"another audience", forgery{audience: jwt.ClaimStrings{"spiffe://sluice/ratelimit"}}, false},
		{"no audience", forgery{audience: jwt.ClaimStrings{}}, false},
		{"expired", forgery{issued: -2 * time.Minute}, false},
		{"no expiry", forgery{noExpires: true}, false},
		{"no time of signing", forgery{noIssued: true}, false},
		{"signed in the future", forgery{issued: time.Minute}, false},
		{"lives too long", forgery{life: 61 * time.Second}, false},
		{"lives too long, nearly at its end", forgery{issued: -time.Hour, life: 61 * time.Minute}, false},
		{"no principal", forgery{raw: "="}, false},
		{"a principal that is no protobuf", forgery{raw: "_____w"}, false},
		{"a padded principal", forgery{raw: base64.URLEncoding.EncodeToString([]byte{0x0a, 0x01, 'x'}) + "="}, false},
		{"an empty principal", forgery{principal: new(identityv1.Principal)}, false},
		{"no tenant", forgery{principal: edit(func(p *identityv1.Principal) { p.Tenant = "" })}, false},
		{"no subject", forgery{principal: edit(func(p *identityv1.Principal) { p.Subject = "" })}, false},
		{"no role", forgery{principal: edit(func(p *identityv1.Principal) { p.Role = 0 })}, false},
		{"an unknown role", forgery{principal: edit(func(p *identityv1.Principal) { p.Role = 99 })}, false},
		{"an empty principal in the chain", forgery{principal: edit(func(p *identityv1.Principal) { p.Chain = []*identityv1.Principal{{}} })}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key, peer := newKey(t, gateway)
			got, err := newVerifier(t).Verify(tt.with.text(t, key), peer, policy)
			if tt.ok != (err == nil) || !tt.ok && (got != nil || !errors.Is(err, authn.ErrAssertion)) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// Case I1. An assertion is refused unless it was signed by the service at the other end of the connection. That service
// must be one that signs principals.
func TestVerifier_RefusesAssertionsOfOtherPeers(t *testing.T) {
	t.Parallel()
	key, peer := newKey(t, gateway)
	text := forgery{}.text(t, key)
	_, other := newKey(t, gateway)
	verifier := newVerifier(t)
	if _, err := verifier.Verify(text, peer, policy); err != nil {
		t.Fatal(err) // the verifier has now cached the assertion; other signers must still be refused
	}
	for name, from := range map[string]authn.Peer{
		"another gateway":           other,
		"the same key, other role":  {Role: wasmagent, Key: peer.Key},
		"a role that may not sign":  {Role: ratelimit, Key: peer.Key},
		"no role":                   {Key: peer.Key},
		"no key":                    {Role: gateway},
		"half a key":                {Role: gateway, Key: peer.Key[:16]},
		"no role and no key":        {},
		"a key with bytes appended": {Role: gateway, Key: append(append([]byte(nil), peer.Key...), byte(gateway))},
	} {
		if p, err := verifier.Verify(text, from, policy); !errors.Is(err, authn.ErrAssertion) {
			t.Errorf("%s: got %v, %v", name, p, err)
		}
	}
	own := forgery{issuer: "spiffe://sluice/ratelimit"}.text(t, key)
	if p, err := verifier.Verify(own, authn.Peer{Role: ratelimit, Key: peer.Key}, policy); !errors.Is(err, authn.ErrAssertion) {
		t.Errorf("ratelimit spoke for %v, %v", p, err)
	}
	unknown := forgery{audience: jwt.ClaimStrings{"spiffe://sluice/unknown"}}.text(t, key)
	if p, err := verifier.Verify(unknown, peer, authv1.Role_ROLE_UNSPECIFIED); !errors.Is(err, authn.ErrAssertion) {
		t.Errorf("for no role: %v, %v", p, err)
	}
}

// Case I1. The wasmagent service may sign only its own agents. An agent's creator must be in the agent's delegation
// chain, or a person must be the agent's owner.
func TestVerifier_AcceptsOnlyOwnAgentsFromWasmagent(t *testing.T) {
	t.Parallel()
	key, peer := newKey(t, wasmagent)
	tests := []struct {
		name    string
		subject string
		tenant  string
		chain   bool
		owner   string
		ok      bool
	}{
		{"its own agent", "agent:default/a1", "default", true, "", true},
		{"a person", "ana", "default", true, "", false},
		{"a person with an owner", "ana", "default", false, "ana", false},
		{"its agent without a creator", "agent:default/a1", "default", false, "", false},
		{"a person's agent", "agent:default/a1", "default", false, "ana", true},
		{"an agent of another tenant", "agent:acme/a1", "default", true, "", false},
		{"a tenant that only begins alike", "agent:default-2/a1", "default", true, "", false},
		{"an agent without an id", "agent:default/", "default", true, "", false},
		{"an agent of no tenant", "agent:/a1", "", true, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := anasAgent()
			p.Subject, p.Tenant, p.Owner = tt.subject, tt.tenant, tt.owner
			if !tt.chain {
				p.Chain = nil
			}
			text := forgery{issuer: "spiffe://sluice/wasmagent", principal: p}.text(t, key)
			if _, err := newVerifier(t).Verify(text, peer, policy); tt.ok != (err == nil) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// The policy service may sign only operators. It signs an operator's principal when the operator's change to the policy
// needs an approval.
func TestVerifier_AcceptsOnlyOperatorsFromPolicy(t *testing.T) {
	t.Parallel()
	key, peer := newKey(t, policy)
	for role := range authv1.TokenRole_name {
		for _, chain := range [][]*identityv1.Principal{nil, {ana()}} {
			p := ana()
			p.Role, p.Chain = authv1.TokenRole(role), chain
			text := forgery{issuer: "spiffe://sluice/policy", principal: p}.text(t, key)
			ok := p.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR && chain == nil
			if _, err := newVerifier(t).Verify(text, peer, policy); ok != (err == nil) {
				t.Errorf("%v with the chain %v: %v", p.GetRole(), chain, err)
			}
		}
	}
}

func TestSigner_ReusesAssertionForHalfItsLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key, peer := newKey(t, gateway)
		signer, err := authn.NewSigner(gateway, key)
		if err != nil {
			t.Fatal(err)
		}
		sign := func(p *identityv1.Principal, to authv1.Role) string {
			text, err := signer.Sign(p, to)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		verifier := newVerifier(t)
		first := sign(ana(), policy)
		if sign(ana(), ratelimit) == first {
			t.Error("two audiences share an assertion")
		}
		bob := ana()
		bob.Subject = "bob"
		if sign(bob, policy) == first {
			t.Error("two principals share an assertion")
		}
		time.Sleep(29 * time.Second)
		if sign(ana(), policy) != first {
			t.Error("a new assertion was signed after 29 s")
		}
		if _, err := verifier.Verify(first, peer, policy); err != nil {
			t.Errorf("after 29 s: %v", err)
		}
		time.Sleep(time.Second)
		if sign(ana(), policy) == first {
			t.Error("the same assertion is sent after 30 s")
		}
		time.Sleep(30 * time.Second)
		if _, err := verifier.Verify(first, peer, policy); err != nil {
			t.Errorf("after 60 s, which a slow clock may see: %v", err)
		}
		time.Sleep(6 * time.Second)
		if _, err := verifier.Verify(first, peer, policy); !errors.Is(err, authn.ErrAssertion) {
			t.Errorf("after 66 s the assertion is still accepted: %v", err)
		}
	})
}

func TestNewSigner_AcceptsOnlyRolesThatActForOthers(t *testing.T) {
	t.Parallel()
	key, _ := newKey(t, gateway)
	for number := range authv1.Role_name {
		role := authv1.Role(number)
		_, err := authn.NewSigner(role, key)
		if may := role == gateway || role == wasmagent || role == policy; may != (err == nil) {
			t.Errorf("a signer for %s: %v", role, err)
		}
	}
	for _, broken := range []ed25519.PrivateKey{nil, key[:32]} {
		if _, err := authn.NewSigner(gateway, broken); err == nil {
			t.Errorf("a signer with a key of %d bytes was made", len(broken))
		}
	}
	signer, err := authn.NewSigner(gateway, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signer.Sign(nil, policy); err == nil {
		t.Error("a nil principal was signed")
	}
	for _, audience := range []authv1.Role{authv1.Role_ROLE_UNSPECIFIED, 99} {
		if _, err := signer.Sign(ana(), audience); err == nil {
			t.Errorf("signed for the audience %d", audience)
		}
	}
	if _, err := authn.NewVerifier(nil); err == nil {
		t.Error("a verifier without constraints was made")
	}
}

// FuzzVerify checks that Verify accepts only signed assertions, and that it never panics.
func FuzzVerify(f *testing.F) {
	key, peer := newKey(f, gateway)
	signer, err := authn.NewSigner(gateway, key)
	if err != nil {
		f.Fatal(err)
	}
	good, err := signer.Sign(ana(), policy)
	if err != nil {
		f.Fatal(err)
	}
	head, rest, _ := strings.Cut(good, ".")
	for _, seed := range []string{
		"", ".", "..", good, good + ".", head + ".e30." + rest, "eyJhbGciOiJub25lIn0." + rest, strings.ToLower(good), good[:len(good)-1],
	} {
		f.Add(seed)
	}
	verifier := newVerifier(f)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := verifier.Verify(text, peer, policy)
		switch {
		case err == nil && !proto.Equal(p, ana()):
			t.Errorf("%q was accepted for %v", text, p)
		case err != nil && (p != nil || !errors.Is(err, authn.ErrAssertion)):
			t.Errorf("%q: %v, %v", text, p, err)
		}
	})
}
