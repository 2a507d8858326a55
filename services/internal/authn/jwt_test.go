package authn_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// rsaKey returns a key with the given number. Keys are made once, because that takes long.
var rsaKeys = sync.OnceValue(func() (out [2]*rsa.PrivateKey) {
	for i := range out {
		var err error
		if out[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err)
		}
	}
	return out
})

// issuerWith returns an issuer with the given keys.
func issuerWith(t *testing.T, ids map[string]int) *identityv1.Issuer {
	t.Helper()
	i := &identityv1.Issuer{
		Name: "corp", Issuer: "https://login.example.com", Resource: "https://mcp.example.com/mcp", Tenant: "default", Subject: "corp/{/sub}",
		GroupsClaim: "/groups", GroupsOptional: true, Algorithms: []string{"RS256"}, Leeway: durationpb.New(0), MaxLife: durationpb.New(time.Hour),
	}
	for id, n := range ids {
		der, err := x509.MarshalPKIXPublicKey(rsaKeys()[n].Public())
		if err != nil {
			t.Fatal(err)
		}
		i.Keys = append(i.Keys, &identityv1.IssuerKey{Id: id, PublicKey: der})
	}
	return i
}

// newJWT returns a JWT that is valid for a minute, signed with a key.
func newJWT(t *testing.T, kid string, n int, changes map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": "https://login.example.com", "sub": "ana", "aud": "https://mcp.example.com/mcp",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(),
	}
	maps.Copy(claims, changes)
	var parts [2]string
	for i, part := range []any{map[string]string{"alg": "RS256", "kid": kid}, claims} {
		raw, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		parts[i] = base64.RawURLEncoding.EncodeToString(raw)
	}
	text := parts[0] + "." + parts[1]
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, rsaKeys()[n], crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// update gives the tokens an issuer, and confirms the set.
func update(t *testing.T, tokens *authn.Tokens, i *identityv1.Issuer) {
	t.Helper()
	if err := tokens.Update(&identityv1.TokenSet{Issuers: []*identityv1.Issuer{i}}); err != nil {
		t.Fatal(err)
	}
	tokens.Confirm()
}

func TestAuthenticate_AcceptsAJWTUntilItExpires(t *testing.T) {
	t.Parallel()
	rsaKeys()
	synctest.Test(t, func(t *testing.T) {
		tokens := new(authn.Tokens)
		update(t, tokens, issuerWith(t, map[string]int{"a": 0}))
		text := newJWT(t, "a", 0, nil)
		c, p, err := tokens.Authenticate(t.Context(), text, "192.0.2.1")
		if err != nil || p.GetSubject() != "corp/ana" || !c.IsValid() || c.Check(t.Context()) != nil {
			t.Fatalf("%v, %v", p, err)
		}
		time.Sleep(time.Minute)
		tokens.Confirm()
		expired := func(err error) bool {
			refusal := issuer.RefusalOf(err)
			return refusal != nil && refusal.Reason == issuer.Expired
		}
		if err := c.Check(t.Context()); !expired(err) || c.IsValid() {
			t.Errorf("after a minute: %v", err)
		}
		if _, _, err := tokens.Authenticate(t.Context(), newJWT(t, "a", 0, nil), "192.0.2.1"); err != nil {
			t.Errorf("a new JWT: %v", err)
		}
		if _, _, err := tokens.Authenticate(t.Context(), text, "192.0.2.1"); !expired(err) {
			t.Errorf("the first JWT again: %v", err)
		}
	})
}

// While the identity service does not confirm the set, a JWT may have been blocked. It is not known to be valid then.
func TestAuthenticate_JWTIsStaleWithoutConfirmation(t *testing.T) {
	t.Parallel()
	rsaKeys()
	synctest.Test(t, func(t *testing.T) {
		tokens := new(authn.Tokens)
		update(t, tokens, issuerWith(t, map[string]int{"a": 0}))
		text := newJWT(t, "a", 0, nil)
		time.Sleep(1100 * time.Millisecond)
		c, p, err := tokens.Authenticate(t.Context(), text, "192.0.2.1")
		if !errors.Is(err, authn.ErrTokensStale) || p == nil || c.IsValid() {
			t.Errorf("stale: %v, %v", p, err)
		}
		go func() {
			time.Sleep(300 * time.Millisecond)
			tokens.Confirm()
		}()
		if err := c.Check(t.Context()); err != nil {
			t.Errorf("confirmed after a while: %v", err)
		}
	})
}

// A JWT that was accepted is verified again after the keys or the mapping of its issuer have changed.
func TestJWT_IsVerifiedAgainAfterAChangeOfTheIssuer(t *testing.T) {
	t.Parallel()
	tokens := new(authn.Tokens)
	update(t, tokens, issuerWith(t, map[string]int{"a": 0}))
	text := newJWT(t, "a", 0, map[string]any{"groups": []string{"finance"}})
	c, _, err := tokens.Authenticate(t.Context(), text, "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	update(t, tokens, issuerWith(t, map[string]int{"a": 0, "b": 1}))
	if err := c.Check(t.Context()); err != nil {
		t.Errorf("a new key: %v", err)
	}
	changed := issuerWith(t, map[string]int{"a": 0})
	changed.GroupsPrefix = "x-"
	update(t, tokens, changed)
	if err := c.Check(t.Context()); !errors.Is(err, authn.ErrRightsChanged) || c.IsValid() {
		t.Errorf("the mapping gives no group: %v", err)
	}
	update(t, tokens, issuerWith(t, map[string]int{"b": 1}))
	if refusal := issuer.RefusalOf(c.Check(t.Context())); refusal == nil || refusal.Reason != issuer.UnknownKey {
		t.Errorf("the key is gone: %v", refusal)
	}
	if err := tokens.Update(new(identityv1.TokenSet)); err != nil {
		t.Fatal(err)
	}
	if refusal := issuer.RefusalOf(c.Check(t.Context())); refusal == nil || refusal.Reason != issuer.UnknownIssuer {
		t.Errorf("the issuer is gone: %v", refusal)
	}
}

// The issuer begins to use a new key. The first JWTs with this key wait for the keys, and all are accepted. Later JWTs
// of strangers with unknown keys cause no request for 30 s.
func TestAuthenticate_AsksForNewKeysOnce(t *testing.T) {
	t.Parallel()
	rsaKeys()
	synctest.Test(t, func(t *testing.T) {
		tokens := new(authn.Tokens)
		update(t, tokens, issuerWith(t, map[string]int{"a": 0}))
		var asked atomic.Int64
		rotated := issuerWith(t, map[string]int{"a": 0, "b": 1})
		tokens.AskForKeys(func(context.Context, string) ([]byte, error) {
			if asked.Add(1) == 1 {
				time.Sleep(500 * time.Millisecond)
				time.AfterFunc(100*time.Millisecond, func() { update(t, tokens, rotated) })
			}
			return issuer.KeysDigest(rotated.GetKeys()), nil
		})
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				if _, _, err := tokens.Authenticate(t.Context(), newJWT(t, "b", 1, nil), "192.0.2.1"); err != nil {
					t.Errorf("a JWT with the new key: %v", err)
				}
			})
		}
		calls.Wait()
		for range 20 {
			if _, _, err := tokens.Authenticate(t.Context(), newJWT(t, "unknown", 1, nil), "192.0.2.2"); err == nil {
				t.Error("a JWT with an unknown key is accepted")
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("the keys were requested %d times, want once", n)
		}
		time.Sleep(30 * time.Second)
		tokens.Confirm()
		_, _, _ = tokens.Authenticate(t.Context(), newJWT(t, "unknown", 1, nil), "192.0.2.2")
		if n := asked.Load(); n != 2 {
			t.Errorf("after 30 s the keys were requested %d times, want twice", n)
		}
	})
}

// While the identity service is silent, a JWT with an unknown key may be valid.
func TestAuthenticate_UnknownKeyIsStaleWhileTheSourceIsSilent(t *testing.T) {
	t.Parallel()
	rsaKeys()
	synctest.Test(t, func(t *testing.T) {
		tokens := new(authn.Tokens)
		update(t, tokens, issuerWith(t, map[string]int{"a": 0}))
		tokens.AskForKeys(func(context.Context, string) ([]byte, error) { return nil, errors.New("no connection") })
		time.Sleep(5 * time.Second)
		if _, _, err := tokens.Authenticate(t.Context(), newJWT(t, "b", 1, nil), "192.0.2.1"); !errors.Is(err, authn.ErrTokensStale) {
			t.Errorf("%v, want that the tokens are stale", err)
		}
	})
}

// A JWT is not a token of the mesh, and the other way round.
func TestAuthenticate_JWTsAndTokensAreSeparate(t *testing.T) {
	t.Parallel()
	tokens, err := authn.NewTokens([]*identityv1.TokenRecord{record("ana", anasToken)})
	if err != nil {
		t.Fatal(err)
	}
	if _, p, err := tokens.Authenticate(t.Context(), anasToken, ""); err != nil || p.GetSubject() == "" {
		t.Errorf("a token of the mesh: %v", err)
	}
	if _, _, err := tokens.Authenticate(t.Context(), newJWT(t, "a", 0, nil), ""); !errors.Is(err, authn.ErrTokenUnknown) {
		t.Errorf("a JWT without issuers: %v", err)
	}
	if _, err := tokens.Lookup(newJWT(t, "a", 0, nil)); !errors.Is(err, authn.ErrTokenUnknown) {
		t.Errorf("a JWT at another service: %v", err)
	}
}

func BenchmarkAuthenticate_RememberedJWT(b *testing.B) {
	tokens := new(authn.Tokens)
	update(&testing.T{}, tokens, issuerWith(&testing.T{}, map[string]int{"a": 0}))
	text := newJWT(&testing.T{}, "a", 0, map[string]any{"pad": strings.Repeat("x", 600), "exp": time.Now().Add(59 * time.Minute).Unix()})
	b.Logf("%d bytes", len(text))
	b.ReportAllocs()
	stop := context.AfterFunc(b.Context(), func() {})
	defer stop()
	for b.Loop() {
		tokens.Confirm()
		if _, _, err := tokens.Authenticate(b.Context(), text, "192.0.2.1"); err != nil {
			b.Fatal(err)
		}
	}
}
