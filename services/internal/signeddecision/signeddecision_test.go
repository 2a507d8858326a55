package signeddecision_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

// newSigner returns a signer with a new certificate from the authority a.
func newSigner(t *testing.T, a *pki.Authority, leaf pki.Leaf) *signeddecision.Signer {
	t.Helper()
	certPEM, keyPEM, err := a.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := pair.PrivateKey.(ed25519.PrivateKey)
	if !ok {
		t.Fatal("the key is not Ed25519")
	}
	return signeddecision.NewSigner(func() (ed25519.PrivateKey, [][]byte) { return key, pair.Certificate })
}

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Case I5. The verifier accepts only signatures of the policy service. The service's certificate must be issued by the
// CA and must not have expired.
func TestVerifier_AcceptsOnlyPolicyCertificates(t *testing.T) {
	t.Parallel()
	ours, other := authority(t), authority(t)
	expired := pki.RoleLeaf(authv1.Role_ROLE_POLICY)
	expired.Life = -time.Minute
	verifier := signeddecision.NewVerifier(ours.Pool)
	for name, tt := range map[string]struct {
		signer *signeddecision.Signer
		change func(*policyv1.SignedDecision)
		good   bool
	}{
		"policy":                  {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_POLICY)), nil, true},
		"the gateway":             {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_GATEWAY)), nil, false},
		"the approval role":       {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_APPROVAL)), nil, false},
		"no role":                 {newSigner(t, ours, pki.Leaf{Name: "policy"}), nil, false},
		"policy of another CA":    {newSigner(t, other, pki.RoleLeaf(authv1.Role_ROLE_POLICY)), nil, false},
		"a certificate of before": {newSigner(t, ours, expired), nil, false},
		"no certificate":          {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_POLICY)), func(s *policyv1.SignedDecision) { s.Certificates = nil }, false},
		"junk":                    {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_POLICY)), func(s *policyv1.SignedDecision) { s.Certificates = [][]byte{{1}} }, false},
		"the gateway's key, policy's certificate": {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_GATEWAY)), func(s *policyv1.SignedDecision) {
			s.Certificates = sign(t, newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_POLICY))).GetCertificates()
		}, false},
		"policy's certificate behind the gateway's": {newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_GATEWAY)), func(s *policyv1.SignedDecision) {
			s.Certificates = append(s.Certificates, sign(t, newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_POLICY))).GetCertificates()...)
		}, false},
	} {
		signed := sign(t, tt.signer)
		if tt.change != nil {
			tt.change(signed)
		}
		got, err := verifier.Verify(signed)
		if tt.good != (err == nil) || err != nil && !errors.Is(err, signeddecision.ErrNotSignedByPolicy) {
			t.Errorf("%s: %v", name, err)
		}
		if tt.good && (got.GetApprovalId() != "a-1" || len(got.GetNonce()) != 16) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if _, err := signeddecision.NewVerifier(func() *x509.CertPool { return nil }).Verify(sign(t, newSigner(t, ours, pki.RoleLeaf(authv1.Role_ROLE_POLICY)))); err == nil {
		t.Error("without a CA")
	}
}

func sign(t *testing.T, s *signeddecision.Signer) *policyv1.SignedDecision {
	t.Helper()
	out, err := s.Sign(&policyv1.DecisionStatement{ApprovalId: "a-1"})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Two statements with the same contents get different nonces, so the signed statements differ.
func TestSigner_AddsNonceToEachStatement(t *testing.T) {
	t.Parallel()
	signer, verifier, err := signeddecision.NewLocalPair()
	if err != nil {
		t.Fatal(err)
	}
	a, b := sign(t, signer), sign(t, signer)
	if proto.Equal(a, b) {
		t.Error("two are the same")
	}
	if _, err := verifier.Verify(a); err != nil {
		t.Error(err)
	}
	if _, err := verifier.Verify(&policyv1.SignedDecision{Statement: a.GetStatement(), Signature: b.GetSignature()}); err == nil {
		t.Error("a statement is accepted with the signature of another one")
	}
}

// Case I5. Principals that differ have different digests.
func TestPrincipalDigest_DiffersForDifferentPrincipals(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for name, p := range map[string]*identityv1.Principal{
		"one":           {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}},
		"a border":      {Tenant: "ab", Agent: "c", Owner: "d", Groups: []string{"e", "f"}},
		"one group":     {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"ef"}},
		"no owner":      {Tenant: "a", Subject: "b", Agent: "c", Groups: []string{"d", "e", "f"}},
		"a chain":       {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Chain: []*identityv1.Principal{{}}},
		"another chain": {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Chain: []*identityv1.Principal{{Owner: "x"}}},
		"an issuer":     {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Issuer: "g"},
		"a client":      {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Issuer: "g", Client: "h"},
		"two scopes":    {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Issuer: "g", Client: "h", Scopes: []string{"i", "j"}},
		"one scope":     {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Issuer: "g", Client: "h", Scopes: []string{"ij"}},
		"other scopes":  {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Issuer: "g", Scopes: []string{"h", "i", "j"}},
		"a person":      {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Person: "d", Groups: []string{"e", "f"}},
		"and an issuer": {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Person: "d", Groups: []string{"e", "f"}, Issuer: "g"},
		"person behind": {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Chain: []*identityv1.Principal{{Person: "d"}}},
		"issuer behind": {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e", "f"}, Chain: []*identityv1.Principal{{Issuer: "g"}}},
	} {
		sum := string(signeddecision.PrincipalDigest(p))
		if other, was := seen[sum]; was {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[sum] = name
	}
}

// The terms of an approval are signed with the decision, including the authentication that approvers need. The
// authentication of the caller does not change the caller's digest, because no decision depends on it.
func TestSigner_SignsTheAuthenticationOfApprovers(t *testing.T) {
	t.Parallel()
	signer, verifier, err := signeddecision.NewLocalPair()
	if err != nil {
		t.Fatal(err)
	}
	terms := &policyv1.ApprovalTerms{Quorum: 2, ApproveWith: &policyv1.StepUp{MaxAge: durationpb.New(5 * time.Minute), AcrValues: []string{"phr", "phrh"}}}
	signed, err := signer.Sign(&policyv1.DecisionStatement{Decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: terms}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := verifier.Verify(signed)
	if err != nil || !proto.Equal(got.GetDecision().GetApproval(), terms) {
		t.Errorf("%v, %v", got, err)
	}
	p, now := &identityv1.Principal{Tenant: "a", Subject: "b", Issuer: "g"}, timestamppb.Now()
	before := signeddecision.PrincipalDigest(p)
	p.AuthTime, p.Acr = now, "phr"
	if !bytes.Equal(before, signeddecision.PrincipalDigest(p)) {
		t.Error("the digest of the caller depends on the time of the authentication")
	}
}

// Digests of principals without a person are the same as in versions that know no persons, because replicas of both
// versions compare them.
func TestPrincipalDigest_WithoutAPersonIsThatOfEarlierVersions(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]*identityv1.Principal{
		"9a729a6b3f6a6732e4e65ef3d74b4a594f10ac29a0cca482fe73a65a981897d7": {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Groups: []string{"e"}},
		"68a40ffc9d7af2c7980092e22a2da097d51a2a96e605bf7572a9e6d831bf7786": {Tenant: "a", Subject: "b", Agent: "c", Owner: "d", Issuer: "g", Client: "h", Scopes: []string{"i"}},
	} {
		if got := hex.EncodeToString(signeddecision.PrincipalDigest(p)); got != want {
			t.Errorf("the digest is %s, want %s", got, want)
		}
	}
}
