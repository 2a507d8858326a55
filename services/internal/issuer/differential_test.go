package issuer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// otherVerifier verifies tokens of corp with the library jwx.
func otherVerifier(t *testing.T) func(token string) error {
	t.Helper()
	set := jwk.NewSet()
	for id, public := range map[string]any{"rsa": keys().rsa.Public(), "ec": keys().ecdsa.Public(), "ed": keys().ed.Public()} {
		key, err := jwk.Import(public)
		if err != nil {
			t.Fatal(err)
		}
		if err := key.Set(jwk.KeyIDKey, id); err != nil {
			t.Fatal(err)
		}
		if err := set.AddKey(key); err != nil {
			t.Fatal(err)
		}
	}
	return func(token string) error {
		_, err := jwt.Parse([]byte(token),
			jwt.WithKeySet(set, jws.WithInferAlgorithmFromKey(true), jws.WithRequireKid(false)),
			jwt.WithValidate(true), jwt.WithClock(jwt.ClockFunc(func() time.Time { return now })), jwt.WithAcceptableSkew(30*time.Second),
			jwt.WithIssuer("https://login.example.com"), jwt.WithAudience("https://mcp.example.com/mcp"),
			jwt.WithRequiredClaim("exp"), jwt.WithRequiredClaim("iat"))
		return err
	}
}

// TestVerify_AgreesWithAnotherLibrary generates tokens and verifies them with this package and with jwx. A token that
// this package accepts is accepted by jwx, too. A token that only this package refuses is refused for a reason that jwx
// does not check.
func TestVerify_AgreesWithAnotherLibrary(t *testing.T) {
	t.Parallel()
	set, other := newSet(t, nil), otherVerifier(t)
	stricter := []issuer.Reason{issuer.Malformed, issuer.TooLong, issuer.WrongClaim, issuer.UnknownKey, issuer.WrongAlgorithm}
	accepted := 0
	rapid.Check(t, func(r *rapid.T) {
		text := drawToken(t, r)
		_, refusal := set.Verify(text, now)
		problem := other(text)
		switch {
		case refusal == nil && problem != nil:
			r.Errorf("only jwx refuses %s: %v", text, problem)
		case refusal != nil && problem == nil && !slices.Contains(stricter, refusal.Reason):
			r.Errorf("jwx accepts %s: %v", text, refusal)
		case refusal == nil:
			accepted++
		}
	})
	if accepted == 0 {
		t.Error("no generated token is accepted")
	}
}

// drawToken generates a token. Most of its parts are valid.
func drawToken(t *testing.T, r *rapid.T) string {
	t.Helper()
	mostly := func(name string, valid any, others ...any) any {
		if rapid.IntRange(0, 9).Draw(r, name+" is valid") > 0 {
			return valid
		}
		return rapid.SampledFrom(others).Draw(r, name)
	}
	algorithm := rapid.SampledFrom([]string{"RS256", "PS256", "ES256", "EdDSA", "HS256"}).Draw(r, "algorithm")
	own := map[string]string{"RS256": "rsa", "PS256": "rsa", "ES256": "ec", "EdDSA": "ed", "HS256": "rsa"}[algorithm]
	header := object{
		"alg": mostly("alg", algorithm, "RS256", "ES256", "EdDSA", "none", "HS256"), "kid": mostly("kid", own, "rsa", "ec", "ed", "unknown", ""),
		"typ": mostly("typ", "JWT", "at+jwt", "logout+jwt"),
	}
	seconds := func(name string, valid int) int64 {
		at, _ := mostly(name, valid, -3600, -61, -31, -29, -1, 0, 1, 29, 31, 61, 3600).(int)
		return now.Add(time.Duration(at) * time.Second).Unix()
	}
	changes := object{
		"iss": mostly("iss", "https://login.example.com", "https://login.example.com/", "x", nil),
		"aud": mostly("aud", "https://mcp.example.com/mcp", []string{"x", "https://mcp.example.com/mcp"}, []string{}, "https://mcp.example.com", nil),
		"exp": seconds("exp", 600), "iat": seconds("iat", -60), "nbf": seconds("nbf", -60), "sub": mostly("sub", "ana", nil, 1),
	}
	text := sign(t, algorithm, header, claims(changes))
	if mostly("signature", true, false) == true {
		return text
	}
	flipped := map[bool]string{true: "A", false: "B"}
	at := strings.LastIndex(text, ".") + 5
	return text[:at] + flipped[text[at] != 'A'] + text[at+1:]
}
