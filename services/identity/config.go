package identity

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/seal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Config configures the identity service.
type Config struct {
	Identities

	// Source is `sqlite`, or the URL of the PostgreSQL database that stores the tokens. Data is the data directory, which
	// contains the SQLite database.
	Source, Data string
	// Apart is true if other services run in separate processes. After this process has started, these services may use
	// tokens from an earlier identity process for a short time.
	Apart bool
	// SealKey is the key that encrypts the tokens of connections, as 64 hexadecimal digits. If it is empty and the store
	// is SQLite, the key is in a file in the data directory. If it is empty and the store is PostgreSQL, connections can't
	// be stored.
	SealKey string
	// RefreshBefore is the remaining lifetime at which an access token for a server is refreshed. Zero means 30 s, or a
	// quarter of the token's lifetime if that is shorter.
	RefreshBefore time.Duration
	// MaxStoreAge is how long the service confirms tokens while a PostgreSQL database is unavailable. After that time,
	// no token is accepted.
	MaxStoreAge time.Duration
}

// Identities contains the parts of the configuration that identify callers. The service reads these parts again while
// it is running.
type Identities struct {
	// Tokens contains the configured tokens. They contain hashes instead of secrets.
	Tokens []*identityv1.TokenRecord
	// Groups maps a group to the subjects in the tenant "default" that belong to it. Stored tokens have these groups in
	// addition to their own groups. In Tokens, the groups of each token already include them.
	Groups map[string][]string
	// Issuers are the issuers whose JWTs identify agents.
	Issuers []Issuer
	// Servers are the servers at which the mesh signs in, by name.
	Servers map[string]OAuthServer
}

func (i Identities) equal(other Identities) bool {
	same := func(a, b *identityv1.TokenRecord) bool { return proto.Equal(a, b) }
	return slices.EqualFunc(i.Tokens, other.Tokens, same) && maps.EqualFunc(i.Groups, other.Groups, slices.Equal) &&
		slices.EqualFunc(i.Issuers, other.Issuers, Issuer.equal) && maps.EqualFunc(i.Servers, other.Servers, OAuthServer.equal)
}

// groupsOfTenant returns the groups that the configuration assigns to people and agents in a tenant.
func (i Identities) groupsOfTenant(tenant string) map[string]bool {
	out := make(map[string]bool)
	for _, r := range i.Tokens {
		if r.GetToken().GetTenant() == tenant {
			for _, group := range r.GetToken().GetGroups() {
				out[group] = true
			}
		}
	}
	if tenant == authn.HomeTenant {
		for group := range i.Groups {
			out[group] = true
		}
	}
	return out
}

// groupsOf returns the groups of a stored token. These are the token's own groups and the groups of its subject.
func (i Identities) groupsOf(t *identityv1.Token) []string {
	f := config.File{Groups: i.Groups}
	return f.GroupsOf(config.Token{Tenant: t.GetTenant(), Subject: t.GetSubject(), Groups: t.GetGroups()})
}

// FromFile returns the configuration of the identity service. References in tokens are resolved, and the tokens are
// hashed.
func FromFile(f *config.File, env config.Env) (Config, error) {
	source, err := f.Stores.Identity.Resolve(f, env)
	if err != nil {
		return Config{}, fmt.Errorf("stores.identity: %w", err)
	}
	sealKey, err := f.Stores.IdentityKey.Resolve(f, env)
	if err != nil {
		return Config{}, fmt.Errorf("stores.identity_key: %w", err)
	}
	identities, err := identitiesOf(f, env)
	return Config{Identities: identities, Source: source, Data: f.Path(f.Data), SealKey: sealKey, MaxStoreAge: f.Stores.IdentityMaxAge, Apart: f.HasSeparateRoles()}, err
}

// identitiesOf returns the groups, the tokens and the issuers in a configuration. References in tokens are resolved,
// and the tokens are hashed.
func identitiesOf(f *config.File, env config.Env) (Identities, error) {
	out := Identities{Groups: f.Groups}
	var errs []error
	for i, t := range f.Auth.Tokens {
		hash, err := tokenHash(f, t, env)
		if err != nil {
			errs = append(errs, fmt.Errorf("auth.tokens[%d] (%s): %w", i, t.Name, err))
			continue
		}
		out.Tokens = append(out.Tokens, &identityv1.TokenRecord{Sha256: hash, Token: f.TokenMessage(t)})
	}
	var err1, err2 error
	out.Issuers, err1 = issuersOf(f, env)
	out.Servers, err2 = oauthServersOf(f, env)
	return out, errors.Join(append(errs, err1, err2)...)
}

func tokenHash(f *config.File, t config.Token, env config.Env) ([]byte, error) {
	if t.SHA256 != "" {
		text, err := t.SHA256.Resolve(f, env)
		if err != nil {
			return nil, err
		}
		hash, err := hex.DecodeString(strings.TrimSpace(text))
		if err != nil || len(hash) != 32 {
			return nil, errors.New("sha256 is not 64 hexadecimal digits")
		}
		return hash, nil
	}
	secret, err := t.Token.Resolve(f, env)
	if err != nil {
		return nil, err
	}
	if err := authn.CheckSecret(secret); err != nil {
		return nil, err
	}
	hash := authn.HashSecret(secret)
	return hash[:], nil
}

// errNoSealKey means that the tokens of connections can't be encrypted.
var errNoSealKey = errors.New("servers with `credentials` need a key that encrypts their tokens in PostgreSQL: set stores.identity_key to the same 64 hexadecimal digits for all replicas, such as the output of `openssl rand -hex 32`, and restart the identity service")

// sealKey returns the key that encrypts the tokens of connections. With SQLite, it creates the key file if the file
// does not exist.
func (c *Config) sealKey() (*seal.Key, error) {
	switch {
	case c.SealKey != "":
		key, err := seal.NewKey(c.SealKey)
		if err != nil {
			return nil, fmt.Errorf("stores.identity_key: %w", err)
		}
		return key, nil
	case c.Source == sqlstore.SQLite:
		return seal.ReadOrCreate(filepath.Join(c.Data, "keys", "identity", "seal"))
	default:
		return nil, errNoSealKey
	}
}

// Validate returns an error that lists all problems in the configuration.
func (c *Config) Validate() error {
	var errs []error
	if c.Source == "" || c.Source == sqlstore.SQLite && c.Data == "" {
		errs = append(errs, errors.New("identity: a store is required: set stores.identity, and data for SQLite"))
	}
	if c.MaxStoreAge < 0 {
		errs = append(errs, errors.New("identity: the maximum age of the store's state must not be negative"))
	}
	return errors.Join(errs...)
}
