package issuer

import (
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Identity is what a valid token says about its caller.
type Identity struct {
	// Principal is shared and must not be modified.
	Principal *identityv1.Principal
	// Expires is the time at which the token expires, plus the leeway of the issuer.
	Expires time.Time
}

// ErrorAt returns a [*Refusal] if the token has expired at the given time, and otherwise nil.
func (i *Identity) ErrorAt(now time.Time) error {
	if now.Before(i.Expires) {
		return nil
	}
	return &Refusal{Reason: Expired, Issuer: i.Principal.GetIssuer(), text: expiredText}
}

const expiredText = "the token has expired: the client needs another one from the issuer"

// Verify returns the identity of a token at the given time. It checks the signature after the checks that cost less,
// but before it maps the claims, so strangers learn nothing about the mapping (RFC 8725; RFC 9068, section 4).
func (s *Set) Verify(token string, now time.Time) (*Identity, *Refusal) {
	return s.verify(token, now, nil)
}

func (s *Set) verify(token string, now time.Time, t *trace) (*Identity, *Refusal) {
	header, claims, refusal := parse(token)
	if refusal != nil {
		return nil, refusal
	}
	t.addf("format", "a signed JWT of %d bytes", len(token))
	i, refusal := s.issuerOf(claims)
	if refusal != nil {
		return nil, refusal
	}
	t.addf("issuer", "%s (%s)", i.name, i.url)
	identity, refusal := i.verify(token, header, claims, now, t)
	if refusal != nil {
		refusal.Issuer = i.name
		return nil, refusal
	}
	return identity, nil
}

func (i *issuer) verify(token string, header, claims object, now time.Time, t *trace) (*Identity, *Refusal) {
	algorithm, keyID, refusal := i.checkHeader(header)
	if refusal != nil {
		return nil, refusal
	}
	t.addf("algorithm", "%s", algorithm)
	servers, refusal := i.checkAudience(claims)
	if refusal != nil {
		return nil, refusal
	}
	if len(servers) == 0 {
		t.addf("audience", "all servers")
	} else {
		t.addf("audience", "the servers %s", strings.Join(servers, ", "))
	}
	expires, refusal := i.checkTimes(claims, now)
	if refusal != nil {
		return nil, refusal
	}
	t.addf("time", "valid until %s", expires.UTC().Format(time.RFC3339))
	public, refusal := i.keyFor(keyID, algorithm)
	if refusal != nil {
		return nil, refusal
	}
	signed, err := jose.ParseSignedCompact(token, i.algorithms)
	if err == nil {
		_, err = signed.Verify(public)
	}
	if err != nil {
		return nil, refuse(WrongSignature, "the token's signature is not its issuer's")
	}
	t.addf("signature", "valid, with the key %q", keyID)
	p, refusal := i.principal(claims, servers, t) // last, because its refusals describe the issuer's configuration
	if refusal != nil {
		return nil, refusal
	}
	return &Identity{Principal: p, Expires: expires.Add(i.leeway)}, nil
}

// parse returns the header and the claims of a token.
func parse(token string) (header, claims object, _ *Refusal) {
	if len(token) > MaxToken {
		return nil, nil, refuse(Malformed, "the token has %d bytes, more than %d", len(token), MaxToken)
	}
	first, second, signature, ok := splitToken(token)
	if !ok {
		return nil, nil, refuse(Malformed, "the token is not a signed JWT: it does not have three parts")
	}
	if _, err := base64.RawURLEncoding.Strict().DecodeString(signature); err != nil {
		return nil, nil, refuse(Malformed, "the token's signature is not base64url without padding")
	}
	header, err := decodePart(first)
	if err != nil {
		return nil, nil, refuse(Malformed, "the token's header can't be read: %v", err)
	}
	if claims, err = decodePart(second); err != nil {
		return nil, nil, refuse(Malformed, "the token's claims can't be read: %v", err)
	}
	return header, claims, nil
}

func (s *Set) issuerOf(claims object) (*issuer, *Refusal) {
	url, refusal := claims.text("iss")
	if refusal != nil {
		return nil, refusal
	}
	if i := s.byIssuer[url]; i != nil {
		return i, nil
	}
	return nil, refuse(UnknownIssuer, "the token's issuer (iss) is not one that the mesh accepts")
}

// foreignHeaders are header members that change how a token is verified, or that refer to keys outside of the issuer's
// key set (RFC 7515, section 4.1).
var foreignHeaders = []string{"crit", "jku", "x5u", "jwk"}

// tokenTypes are the accepted values of the header `typ`. They exclude JWTs for other purposes, such as logout tokens
// (RFC 8725, section 3.11).
var tokenTypes = []string{"", "jwt", "application/jwt", "at+jwt", "application/at+jwt"}

// checkHeader returns the members `alg` and `kid` of the header. It refuses a header that the mesh does not accept.
func (i *issuer) checkHeader(header object) (algorithm, keyID string, _ *Refusal) {
	for _, name := range foreignHeaders {
		if _, ok := header[name]; ok {
			return "", "", refuse(Malformed, "the token's header has the member %s, which the mesh does not accept", name)
		}
	}
	kind, refusal := header.text("typ")
	if refusal != nil {
		return "", "", refusal
	}
	if !slices.Contains(tokenTypes, strings.ToLower(kind)) {
		return "", "", refuse(Malformed, "the token's typ is not JWT or at+jwt")
	}
	if algorithm, refusal = header.text("alg"); refusal != nil {
		return "", "", refusal
	}
	if !slices.Contains(i.algorithms, jose.SignatureAlgorithm(algorithm)) {
		return "", "", refuse(WrongAlgorithm, "the token's alg is not one that the issuer's configuration accepts")
	}
	if keyID, refusal = header.text("kid"); refusal != nil {
		return "", "", refusal
	}
	if len(keyID) > maxKeyID {
		return "", "", refuse(Malformed, "the token's kid has more than %d bytes", maxKeyID)
	}
	return algorithm, keyID, nil
}

// checkAudience returns the servers to which the claim `aud` gives access. The list is empty if it gives access to all
// servers. Audiences are compared as text (RFC 8707, section 2).
func (i *issuer) checkAudience(claims object) ([]string, *Refusal) {
	audiences, refusal := claims.texts("aud")
	if refusal != nil {
		return nil, refusal
	}
	var servers []string
	for _, audience := range audiences {
		if slices.Contains(i.audiences, audience) || i.resource != "" && audience == i.resource {
			return nil, nil
		}
		name, ok := strings.CutPrefix(audience, i.resource+"/")
		if ok && i.resource != "" && IsServerName(name) && !slices.Contains(servers, name) {
			servers = append(servers, name)
		}
	}
	if len(servers) == 0 || len(servers) > maxServers {
		return nil, refuse(WrongAudience, "the token was not issued for this mesh: its aud names neither the mesh nor a server of the mesh")
	}
	slices.Sort(servers)
	return servers, nil
}

// IsServerName reports whether a text can be the name of a server.
func IsServerName(name string) bool {
	isOther := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	return name != "" && len(name) <= 32 && !strings.ContainsFunc(name, isOther)
}

// checkTimes returns the time at which the token expires (claim `exp`). It also refuses claims that bind the token to
// something that the mesh does not check, which is a key of the sender (`cnf`, RFC 7800), an event (`events`, RFC
// 8417), or, if the issuer's configuration does not accept delegation, an actor (`act`, RFC 8693).
func (i *issuer) checkTimes(claims object, now time.Time) (time.Time, *Refusal) {
	for _, name := range []string{"cnf", "events"} {
		if claims[name] != nil {
			return time.Time{}, refuse(WrongClaim, "the token has the claim %s, which the mesh does not check", name)
		}
	}
	if claims["act"] != nil && !i.delegation {
		return time.Time{}, refuse(WrongClaim, "the token is delegated (claim act), which the issuer's configuration does not accept")
	}
	var times [3]time.Time
	for n, name := range []string{"exp", "iat", "nbf"} {
		at, refusal := claims.date(name)
		if refusal != nil {
			return time.Time{}, refusal
		}
		times[n] = at
	}
	expires, issued, from := times[0], times[1], times[2]
	switch {
	case expires.IsZero() || issued.IsZero():
		return time.Time{}, refuse(WrongClaim, "the token does not have the claims exp and iat")
	case !now.Before(expires.Add(i.leeway)):
		return time.Time{}, refuse(Expired, expiredText)
	case now.Add(i.leeway).Before(issued) || now.Add(i.leeway).Before(from):
		return time.Time{}, refuse(NotYetValid, "the token is not valid yet: compare the clocks of the issuer and the mesh")
	case expires.Sub(issued) > i.maxLife:
		return time.Time{}, refuse(TooLong, "the token is valid for more than %v after it was issued: set max_life of the issuer", i.maxLife)
	}
	return expires, nil
}
