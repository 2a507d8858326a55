// Package issuer verifies JWTs (RFC 7519) of configured issuers, and maps their claims to principals.
//
// For example, an issuer "corp" with the subject template `corp/{/sub}` and the groups claim `/roles` maps the claims
// `{"sub":"ana","roles":["finance"]}` to the subject "corp/ana" with the group "finance".
//
// A token is refused if it has a claim of an unexpected type, a duplicate member, a header that refers to keys
// elsewhere, or a confirmation key, which the mesh does not check. A token of an actor who acts for a person (RFC 8693)
// is refused unless the issuer's configuration accepts delegation.
package issuer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

const (
	// MaxToken is the maximum length of a token, in bytes.
	MaxToken = 16 << 10
	// maxLeeway is the largest tolerated difference between the clocks of an issuer and of the mesh.
	maxLeeway = 2 * time.Minute
)

// Algorithms returns the signature algorithms that an issuer may use (RFC 7518, section 3.1). None of them is
// symmetric, because the mesh never knows a secret of an issuer.
func Algorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

// Set is a set of issuers. It is immutable, and safe for concurrent use. The zero value has no issuers.
type Set struct {
	byIssuer map[string]*issuer
}

// issuer is a configured issuer with parsed templates and keys.
type issuer struct {
	name, url string
	resource  string
	audiences []string
	require   []requirement
	tenant    tenantMapping
	subject   template
	owner     template
	groups    groupMapping
	// subjectGroups contains the groups of subjects of the tenant "default", in addition to the groups of their tokens.
	subjectGroups map[string]*identityv1.SubjectGroups
	agent         agentMapping
	// delegation is true if tokens with the claim `act` are accepted.
	delegation bool
	algorithms []jose.SignatureAlgorithm
	leeway     time.Duration
	maxLife    time.Duration
	keys       []key
}

// NewSet returns the set of the given issuers. It returns an error if the configuration of an issuer is not valid, or
// if two issuers have the same name or the same value of `iss`.
func NewSet(from []*identityv1.Issuer) (*Set, error) {
	s := &Set{byIssuer: make(map[string]*issuer, len(from))}
	names := make(map[string]bool, len(from))
	for _, config := range from {
		i, err := newIssuer(config)
		if err != nil {
			return nil, fmt.Errorf("issuer %q: %w", config.GetName(), err)
		}
		if s.byIssuer[i.url] != nil || names[i.name] {
			return nil, fmt.Errorf("issuer %q: another issuer has the same name or URL", i.name)
		}
		s.byIssuer[i.url], names[i.name] = i, true
	}
	return s, nil
}

// Len returns the number of issuers.
func (s *Set) Len() int { return len(s.byIssuer) }

func newIssuer(from *identityv1.Issuer) (*issuer, error) {
	i := &issuer{
		name: from.GetName(), url: from.GetIssuer(), resource: from.GetResource(), audiences: from.GetAudiences(),
		subjectGroups: from.GetSubjectGroups(),
		leeway:        from.GetLeeway().AsDuration(), maxLife: from.GetMaxLife().AsDuration(),
	}
	switch {
	case i.name == "" || i.url == "":
		return nil, errors.New("it needs a name and a URL")
	case i.resource == "" && len(i.audiences) == 0:
		return nil, errors.New("it accepts no audience: set public_url, or audiences of the issuer")
	case i.leeway < 0 || i.leeway > maxLeeway:
		return nil, fmt.Errorf("its leeway is not between 0 and %v", maxLeeway)
	case i.maxLife <= 0:
		return nil, errors.New("its max_life is not positive")
	case len(from.GetAlgorithms()) == 0:
		return nil, errors.New("it accepts no algorithm")
	}
	for _, name := range from.GetAlgorithms() {
		if !slices.Contains(Algorithms(), name) {
			return nil, fmt.Errorf("%q is not one of the algorithms %s", name, strings.Join(Algorithms(), ", "))
		}
		i.algorithms = append(i.algorithms, jose.SignatureAlgorithm(name))
	}
	if err := i.parseMapping(from); err != nil {
		return nil, err
	}
	for _, k := range from.GetKeys() {
		parsed, err := parseKey(k)
		if err != nil {
			return nil, err
		}
		i.keys = append(i.keys, parsed)
	}
	return i, nil
}

// IsJWT reports whether a bearer token has the form of a signed JWT in compact serialization (RFC 7515, section 7.1).
// Tokens of the mesh never have this form.
func IsJWT(token string) bool {
	return strings.HasPrefix(token, "ey") && strings.Count(token, ".") == 2
}
