// Package signeddecision signs statements that the policy service makes about its decisions, and verifies them. The
// other services of the mesh can't sign a statement that passes the verification.
package signeddecision

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// domain is the prefix of everything that this package signs. The policy service uses the same key for TLS. Because of
// the prefix, a signature of this package is not valid in TLS, and a TLS signature is not valid in this package.
const domain = "sluice-decision-1\x00"

// principalFormat names the format from which a principal's digest is computed. jwtFormat names the format that is used
// if a JWT has identified the caller or a principal in its delegation chain. personFormat names the format that is used
// if one of them has a person. All other principals use the first format, which versions without support for JWTs also
// use.
const (
	principalFormat = "sluice-principal-1"
	jwtFormat       = "sluice-principal-2"
	personFormat    = "sluice-principal-3"
)

// nonceSize is the length of a nonce in bytes.
const nonceSize = 16

// ErrNotSignedByPolicy means that the policy service did not sign a statement. Use errors.Is to test for it.
var ErrNotSignedByPolicy = errors.New("the decision is not signed by the policy role")

// Signer signs decisions for the policy service. It is safe for concurrent use.
type Signer struct {
	identity func() (ed25519.PrivateKey, [][]byte)
}

// NewSigner returns a signer. identity returns the key and the key's certificate chain in DER, beginning with the
// service's own certificate. The chain is empty if the verifiers already have the public key. The signer calls identity
// for each signature, so that certificates can be renewed.
func NewSigner(identity func() (ed25519.PrivateKey, [][]byte)) *Signer {
	return &Signer{identity: identity}
}

// Sign sets the statement's nonce and signs the statement.
func (s *Signer) Sign(statement *policyv1.DecisionStatement) (*policyv1.SignedDecision, error) {
	key, chain := s.identity()
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("sign a decision: the key is not Ed25519")
	}
	statement.Nonce = make([]byte, nonceSize)
	rand.Read(statement.GetNonce())
	raw, err := proto.Marshal(statement)
	if err != nil {
		return nil, fmt.Errorf("encode a decision: %w", err)
	}
	return &policyv1.SignedDecision{Statement: raw, Signature: ed25519.Sign(key, signingInput(raw)), Certificates: chain}, nil
}

func signingInput(statement []byte) []byte { return append([]byte(domain), statement...) }

// Verifier verifies the policy service's signatures. It is safe for concurrent use.
type Verifier struct {
	key func(certificates [][]byte) (ed25519.PublicKey, error)
}

// NewVerifier returns a verifier for services that run in separate processes and have certificates from a CA. pool is
// called for each statement, so that the CA can be renewed.
func NewVerifier(pool func() *x509.CertPool) *Verifier {
	return &Verifier{key: func(certificates [][]byte) (ed25519.PublicKey, error) { return policyKey(certificates, pool()) }}
}

// NewLocalPair returns a signer and its verifier for services that run in one process. They need no certificates.
func NewLocalPair() (*Signer, *Verifier, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	return NewSigner(func() (ed25519.PrivateKey, [][]byte) { return key, nil }),
		&Verifier{key: func([][]byte) (ed25519.PublicKey, error) { return public, nil }}, nil
}

// policyKey returns the key in the leaf certificate. The CA must have issued the certificate for the policy service,
// and the certificate must not have expired.
func policyKey(certificates [][]byte, ca *x509.CertPool) (ed25519.PublicKey, error) {
	if ca == nil || len(certificates) == 0 {
		return nil, errors.New("there is no certificate, or no CA is configured")
	}
	between := x509.NewCertPool()
	var leaf *x509.Certificate
	for i, der := range certificates {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			leaf = c
			continue
		}
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: ca, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, err
	}
	peer, err := authn.PeerOf(leaf)
	if err != nil {
		return nil, err
	}
	if peer.Role != authv1.Role_ROLE_POLICY {
		return nil, fmt.Errorf("the certificate is that of %s", authn.RoleName(peer.Role))
	}
	return peer.Key, nil
}

// Verify returns the statement that the policy service has signed. The caller must check whether the statement is
// recent and about the right call. If the policy service did not sign the statement, Verify returns
// [ErrNotSignedByPolicy].
func (v *Verifier) Verify(s *policyv1.SignedDecision) (*policyv1.DecisionStatement, error) {
	key, err := v.key(s.GetCertificates())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSignedByPolicy, err)
	}
	if !ed25519.Verify(key, signingInput(s.GetStatement()), s.GetSignature()) {
		return nil, fmt.Errorf("%w: the signature does not belong to the certificate's key", ErrNotSignedByPolicy)
	}
	out := new(policyv1.DecisionStatement)
	if err := proto.Unmarshal(s.GetStatement(), out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSignedByPolicy, err)
	}
	return out, nil
}

// PrincipalDigest returns the digest of a principal, as the comments in sluice/policy/v1 define it.
func PrincipalDigest(p *identityv1.Principal) []byte {
	all := append([]*identityv1.Principal{p}, p.GetChain()...)
	fields := []string{principalFormat, strconv.Itoa(len(all))}
	hasJWT := slices.ContainsFunc(all, func(p *identityv1.Principal) bool { return p.GetIssuer() != "" })
	hasPerson := principal.HasPerson(p)
	switch {
	case hasPerson:
		fields[0] = personFormat
	case hasJWT:
		fields[0] = jwtFormat
	}
	for _, member := range all {
		fields = append(fields, member.GetTenant(), member.GetSubject(), member.GetAgent(), member.GetOwner(), strconv.Itoa(len(member.GetGroups())))
		fields = append(fields, member.GetGroups()...)
		if hasJWT || hasPerson {
			fields = append(fields, member.GetIssuer(), member.GetClient(), strconv.Itoa(len(member.GetScopes())))
			fields = append(fields, member.GetScopes()...)
		}
		if hasPerson {
			fields = append(fields, member.GetPerson())
		}
	}
	sum := canonicaljson.Sum(fields...)
	return sum[:]
}
