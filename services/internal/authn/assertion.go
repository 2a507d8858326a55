package authn

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

const (
	// PrincipalKey is the metadata key of a signed principal.
	PrincipalKey = "sluice-principal"
	// assertionLife is how long a signed principal is valid.
	assertionLife = 60 * time.Second
	// assertionReuse is how long a signer sends the same signed principal again. A principal that is sent is therefore
	// valid for at least another 30 s.
	assertionReuse = 30 * time.Second
	// clockSkew is how far the clocks of two machines may differ.
	clockSkew = 5 * time.Second
	// cacheSize limits how many assertions each signer and each verifier caches.
	cacheSize = 8192
)

// ErrAssertion means that a signed principal was refused. Every error of [Verifier.Verify] wraps it.
var ErrAssertion = errors.New("the signed principal is not valid")

// claims is the content of a signed principal, which is a JWT (RFC 7519). The private claim "principal" contains the
// principal's protobuf encoding, so that all verifiers decode the same principal.
type claims struct {
	jwt.RegisteredClaims
	// Principal is the base64url encoding of a sluice.identity.v1.Principal.
	Principal string `json:"principal"`
}

// Signer signs principals on behalf of one service of the mesh. It is safe for concurrent use.
type Signer struct {
	issuer string
	key    ed25519.PrivateKey
	// signed caches assertions. The key is the principal's encoding followed by the audience.
	signed *cache[string, string]
	// encodings contains reusable buffers. Most lookups find the assertion in the cache and do not copy the encoding.
	encodings sync.Pool
}

// NewSigner returns a signer for the service with the given role and private key. [Signs] must report true for the
// role.
func NewSigner(role authv1.Role, key ed25519.PrivateKey) (*Signer, error) {
	if !Signs(role) {
		return nil, fmt.Errorf("authn: role %s signs no principals", RoleName(role))
	}
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("authn: a signer needs an Ed25519 key")
	}
	return &Signer{issuer: RoleURI(role), key: key, signed: newCache[string, string](cacheSize)}, nil
}

// Sign returns a signed assertion of p for the audience. It may return an assertion that it signed less than 30 s ago
// for the same principal and audience. It returns an error if p is nil or the audience is not a mesh role.
func (s *Signer) Sign(p *identityv1.Principal, audience authv1.Role) (string, error) {
	if p == nil || roleNames[audience] == "" {
		return "", fmt.Errorf("sign for %s: a principal and a role as audience are required", RoleName(audience))
	}
	buffer, ok := s.encodings.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	defer s.encodings.Put(buffer)
	raw, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend((*buffer)[:0], p)
	if err != nil {
		return "", fmt.Errorf("encode the principal: %w", err)
	}
	encoded := len(raw)
	raw = binary.BigEndian.AppendUint32(raw, uint32(audience))
	*buffer = raw
	now := time.Now()
	if text, ok := getText(s.signed, raw, now); ok {
		return text, nil
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    s.issuer,
			Audience:  jwt.ClaimStrings{RoleURI(audience)},
			IssuedAt:  jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(now.Add(assertionLife)),
		},
		Principal: base64.RawURLEncoding.EncodeToString(raw[:encoded]),
	})
	text, err := token.SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign the principal: %w", err)
	}
	s.signed.put(string(raw), text, now.Add(assertionReuse))
	return text, nil
}

// Verifier verifies signed principals for the services of the mesh that run in this process. It is safe for concurrent
// use.
type Verifier struct {
	validate func(proto.Message) error
	cache    *cache[assertionKey, *identityv1.Principal]
}

type assertionKey struct {
	text             string
	key              [ed25519.PublicKeySize]byte
	signer, audience authv1.Role
}

// NewVerifier returns a verifier. The function validate is required. It returns an error if a principal, for example an
// empty one, violates the constraints of sluice.identity.v1.Principal.
func NewVerifier(validate func(proto.Message) error) (*Verifier, error) {
	if validate == nil {
		return nil, errors.New("authn: a verifier needs the contract's constraints")
	}
	return &Verifier{validate: validate, cache: newCache[assertionKey, *identityv1.Principal](cacheSize)}, nil
}

// Verify returns the principal in a signed assertion. The signer is the peer at the other end of the connection. It
// must have signed the assertion for the given audience. The result is shared and must not be modified. Every error
// wraps [ErrAssertion].
func (v *Verifier) Verify(text string, signer Peer, audience authv1.Role) (*identityv1.Principal, error) {
	now := time.Now()
	if len(signer.Key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%w: its signer's key is not an Ed25519 key", ErrAssertion)
	}
	key := assertionKey{text: text, key: [ed25519.PublicKeySize]byte(signer.Key), signer: signer.Role, audience: audience}
	if p, ok := v.cache.get(key, now); ok {
		return p, nil
	}
	p, expires, err := v.verify(text, signer, audience)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAssertion, err)
	}
	v.cache.put(key, p, expires)
	return p, nil
}

func (v *Verifier) verify(text string, signer Peer, audience authv1.Role) (*identityv1.Principal, time.Time, error) {
	if roleNames[audience] == "" {
		return nil, time.Time{}, errors.New("the called service belongs to no role")
	}
	var c claims
	_, err := jwt.ParseWithClaims(text, &c,
		func(*jwt.Token) (any, error) { return signer.Key, nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithIssuer(RoleURI(signer.Role)),
		jwt.WithAudience(RoleURI(audience)),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(clockSkew),
	)
	if err != nil {
		return nil, time.Time{}, err
	}
	if c.IssuedAt == nil || c.ExpiresAt.Sub(c.IssuedAt.Time) > assertionLife {
		return nil, time.Time{}, fmt.Errorf("the assertion must have the claims iat and exp, at most %v apart", assertionLife)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(c.Principal)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("decode the principal: %w", err)
	}
	p := new(identityv1.Principal)
	if err := proto.Unmarshal(raw, p); err != nil {
		return nil, time.Time{}, fmt.Errorf("decode the principal: %w", err)
	}
	if err := v.validate(p); err != nil {
		return nil, time.Time{}, fmt.Errorf("the principal breaks its contract: %w", err)
	}
	return p, c.ExpiresAt.Time, checkMaySign(signer.Role, p)
}

// principalChecks maps each mesh role that may act on behalf of other principals to a function. The function returns an
// error if the role may not sign the given principal.
var principalChecks = map[authv1.Role]func(*identityv1.Principal) error{
	authv1.Role_ROLE_GATEWAY:   func(*identityv1.Principal) error { return nil }, // the gateway authenticates all principals
	authv1.Role_ROLE_WASMAGENT: checkOwnAgent,
	authv1.Role_ROLE_POLICY:    checkOperator,
}

// Signs reports whether a mesh role acts on behalf of other principals and therefore signs them.
func Signs(role authv1.Role) bool { return principalChecks[role] != nil }

// checkMaySign returns an error unless the mesh role may sign the principal.
func checkMaySign(role authv1.Role, p *identityv1.Principal) error {
	if !Signs(role) {
		return fmt.Errorf("role %s may not act on behalf of a principal", RoleName(role))
	}
	return principalChecks[role](p)
}

// checkOperator returns an error unless the principal is an operator who acts without a delegation. The policy service
// signs only such principals, because it requests approvals for operators who change the policy.
func checkOperator(p *identityv1.Principal) error {
	if p.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR && len(p.GetChain()) == 0 {
		return nil
	}
	return errors.New("policy signs only for operators who act for themselves")
}

func checkOwnAgent(p *identityv1.Principal) error {
	if id, own := strings.CutPrefix(p.GetSubject(), "agent:"+p.GetTenant()+"/"); own && id != "" && (len(p.GetChain()) > 0 || p.GetOwner() != "") {
		return nil
	}
	return errors.New("wasmagent signs only for its own agents; the chain must contain the agent's creator, or the owner must be set")
}
