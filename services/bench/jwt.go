package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
)

const (
	// issuerAudience is the value of the claim `aud` of the JWTs.
	issuerAudience = "bench"
	// jwtLife is how long the JWTs are valid. It is longer than a benchmark takes.
	jwtLife = 12 * time.Hour
	// fillerGroups is the number of groups that no rule names. Because of these groups, a JWT has about 1 KiB.
	fillerGroups = 30
	// keysTimeout limits how long a mesh may take to get the keys of the issuer.
	keysTimeout = 10 * time.Second
)

// jwtIssuer signs one JWT for each principal, and serves its public key.
type jwtIssuer struct {
	lis    net.Listener
	server *http.Server
	tokens []string
}

func startIssuer(ctx context.Context) (*jwtIssuer, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: public, KeyID: "bench", Algorithm: "EdDSA", Use: "sig"}}})
	if err != nil {
		return nil, err
	}
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for requests for keys: %w", err)
	}
	i := &jwtIssuer{lis: lis, server: &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keys) }),
		ReadHeaderTimeout: keysTimeout,
	}}
	go func() { _ = i.server.Serve(lis) }() // Serve returns after close
	return i, i.sign(private)
}

// sign makes the JWTs.
func (i *jwtIssuer) sign(key ed25519.PrivateKey) error {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: key, KeyID: "bench"}}, (&jose.SignerOptions{}).WithType("at+jwt"))
	if err != nil {
		return err
	}
	groups := []string{"developers"}
	for n := range fillerGroups {
		groups = append(groups, fmt.Sprintf("group-without-rule-%d", n))
	}
	now := time.Now()
	for n := range principals {
		claims, err := json.Marshal(map[string]any{
			"iss": i.url(), "sub": fmt.Sprintf("bench-%d", n), "aud": issuerAudience, "client_id": "bench", "groups": groups,
			"iat": now.Unix(), "exp": now.Add(jwtLife).Unix(),
		})
		if err != nil {
			return err
		}
		signed, err := signer.Sign(claims)
		if err != nil {
			return err
		}
		token, err := signed.CompactSerialize()
		if err != nil {
			return err
		}
		i.tokens = append(i.tokens, token)
	}
	return nil
}

func (i *jwtIssuer) url() string { return "http://" + i.lis.Addr().String() }

func (i *jwtIssuer) close() { _ = i.server.Close() } // no client waits for a response

// awaitKeys waits until a mesh accepts a JWT of the issuer.
func (i *jwtIssuer) awaitKeys(ctx context.Context, mesh endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := openSession(ctx, mesh, i.tokens[0])
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the mesh has the keys: %w", err)
		case <-tick.C:
		}
	}
}
