package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// MaxTokensOfOwner is the maximum number of valid tokens of one owner.
	MaxTokensOfOwner = 50
	// MaxTokensOfTenant is the maximum number of valid tokens in one tenant.
	MaxTokensOfTenant = 1000
	// MaxTokens is the maximum number of valid tokens in all tenants together.
	MaxTokens = 2000
	// maxEndedTokens is the maximum number of revoked or expired tokens that are stored for one tenant. It is also the
	// maximum number of such tokens in a [TokenSet].
	maxEndedTokens = 1000
)

// These are errors about tokens. Use errors.Is to test for them.
var (
	// ErrTokenExists means that another token already has the requested name.
	ErrTokenExists = errors.New("a token has this name, or had it and is still listed: choose another name")
	// ErrTokenUnknown means that there is no token with the given name that the operator may change.
	ErrTokenUnknown = errors.New("there is no such token in your tenant")
	// ErrTokenEnded means that the token has expired or was revoked.
	ErrTokenEnded = errors.New("the token has expired or was revoked: create another one")
	// ErrSession means that the token is a session, whose secret can't be replaced.
	ErrSession = errors.New("the token is the session of a person, who can sign in again")
	// ErrOwnerOnly means that the token uses the connections of its owner, and the operator is not the owner.
	ErrOwnerOnly = errors.New("the token uses the connections of its owner to servers, so only the owner can replace its text: revoke it instead")
	// ErrRotatedTooOften means that too many replaced secrets of the token are still valid.
	ErrRotatedTooOften = errors.New("too many earlier texts of the token are still valid: wait until one of them ends, or create another token")
	// ErrTokensFull means that there are too many valid tokens.
	ErrTokensFull = errors.New("there are too many valid tokens: revoke some of them first")
)

// Token is a token that an operator has created, or a session of a person.
type Token struct {
	Name, Tenant, Subject, Agent, Owner string
	// UsesConnections is true if the owner has created the token, and lets the agent use the owner's connections to
	// servers.
	UsesConnections bool
	Groups          []string
	// Role is the role of the holder. Issuer and IssuerURL are the name and the URL of the issuer at which the person has
	// signed in. They are empty unless the token is a session.
	Role              authv1.TokenRole
	Issuer, IssuerURL string
	// AuthTime is the time at which the person authenticated at the issuer, and ACR is the authentication context class.
	// They are zero if the issuer has not sent them, or if the token is not a session.
	AuthTime time.Time
	ACR      string
	// Servers contains the servers to which the token gives access. It is empty if the token gives access to all servers.
	Servers []string
	// SHA256 is the SHA-256 digest of the token's secret.
	SHA256 [32]byte
	// Previous contains the secrets that were replaced and are still valid, sorted from the newest to the oldest.
	Previous         []PreviousSecret
	Created, Expires time.Time
	// CreatedByTenant and CreatedBy are the tenant and the subject of the operator who created the token.
	CreatedByTenant, CreatedBy string
	// LastUsed is the time at which the token was last used. It is zero if the token was never used.
	LastUsed time.Time
	// Revoked is the time at which the token was revoked. It is zero if the token was not revoked. RevokedByTenant and
	// RevokedBy are the tenant and the subject of the operator who revoked the token.
	Revoked                    time.Time
	RevokedByTenant, RevokedBy string
}

// PreviousSecret is a replaced secret of a token.
type PreviousSecret struct {
	// SHA256 is the SHA-256 digest of the secret, in hexadecimal digits.
	SHA256 string `json:"sha256"`
	// Until is the time until which the secret is valid.
	Until time.Time `json:"until"`
}

// TokenSet contains the tokens and blocks in one version of the store.
type TokenSet struct {
	Version int64
	// Valid contains the valid tokens, sorted by name. Ended contains the newest tokens that were revoked or have
	// expired.
	Valid, Ended []Token
	// Blocks contains the callers that are blocked.
	Blocks []Block
}

// CreateToken stores a token. It sets the time of creation. The returned set contains all tokens. The error can be
// [ErrTokenExists], [ErrTokensFull] or [sqlstore.ErrUnavailable].
func (s *Store) CreateToken(ctx context.Context, want Token) (created Token, set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		created = want
		created.Created = tx.Now
		if err := checkRoom(ctx, tx, &want); err != nil {
			return err
		}
		if err := insertToken(ctx, tx, &created); err != nil {
			return err
		}
		set, err = s.changedTokens(ctx, tx, want.Tenant)
		return err
	})
	return created, set, err
}

// ImportConfigured stores tokens that the configuration contains. Either all tokens are stored, or none. The returned
// set contains all tokens. The error can be [ErrTokenExists], [ErrTokensFull] or [sqlstore.ErrUnavailable].
func (s *Store) ImportConfigured(ctx context.Context, want []Token) (stored []Token, set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		stored = slices.Clone(want)
		for i := range stored {
			t := &stored[i]
			t.Created = tx.Now
			if err := checkRoom(ctx, tx, t); err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
			var same int
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM identity_tokens WHERE sha256 = $1", hex.EncodeToString(t.SHA256[:])).Scan(&same); err != nil {
				return err
			}
			if same > 0 {
				return fmt.Errorf("%s: a stored token has the same text: %w", t.Name, ErrTokenExists)
			}
			if err := insertToken(ctx, tx, t); err != nil {
				return err
			}
		}
		for i := range stored {
			if i > 0 && stored[i].Tenant == stored[i-1].Tenant {
				continue // one change is enough for all tokens of a tenant
			}
			if set, err = s.changedTokens(ctx, tx, stored[i].Tenant); err != nil {
				return err
			}
		}
		return nil
	})
	return stored, set, err
}

// checkRoom returns an error if the name of the token is already used, or if there are too many valid tokens.
func checkRoom(ctx context.Context, tx *sqlstore.Tx, want *Token) error {
	var same, owned, ofTenant, all int
	now := sqlstore.Micros(tx.Now)
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM identity_tokens WHERE name = $1", want.Name).Scan(&same); err != nil {
		return err
	}
	err := tx.QueryRowContext(ctx, `SELECT count(CASE WHEN tenant = $1 AND owner = $2 THEN 1 END), count(CASE WHEN tenant = $1 THEN 1 END), count(*)
		FROM identity_tokens WHERE ended > $3 AND revoked = 0 AND issuer = ''`, want.Tenant, want.Owner, now).Scan(&owned, &ofTenant, &all)
	switch {
	case err != nil:
		return err
	case same > 0:
		return ErrTokenExists
	case want.Owner != "" && owned >= MaxTokensOfOwner:
		return fmt.Errorf("%s owns %d tokens: %w", want.Owner, owned, ErrTokensFull)
	case ofTenant >= MaxTokensOfTenant:
		return fmt.Errorf("the tenant %s has %d tokens: %w", want.Tenant, ofTenant, ErrTokensFull)
	case all >= MaxTokens:
		return fmt.Errorf("the installation has %d tokens: %w", all, ErrTokensFull)
	default:
		return nil
	}
}

func insertToken(ctx context.Context, tx *sqlstore.Tx, t *Token) error {
	groups, err1 := json.Marshal(t.Groups)
	servers, err2 := json.Marshal(t.Servers)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("write a token: %w", err)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO identity_tokens (name, sha256, tenant, subject, agent, owner, member_of, servers, created, expires,
			created_by_tenant, created_by, last_used, revoked, revoked_by_tenant, revoked_by, ended, life, role, issuer, issuer_url, auth_time, acr, uses_connections, previous)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, '[]')`,
		t.Name, hex.EncodeToString(t.SHA256[:]), t.Tenant, t.Subject, t.Agent, t.Owner, string(groups), string(servers), sqlstore.Micros(t.Created), sqlstore.Micros(t.Expires),
		t.CreatedByTenant, t.CreatedBy, sqlstore.Micros(t.LastUsed), sqlstore.Micros(t.Revoked), t.RevokedByTenant, t.RevokedBy, sqlstore.Micros(t.ended()),
		t.Expires.Sub(t.Created).Microseconds(), int64(t.Role), t.Issuer, t.IssuerURL, sqlstore.Micros(t.AuthTime), t.ACR, number(t.UsesConnections))
	return err
}

// ended returns the time at which the token was revoked or expires.
func (t *Token) ended() time.Time {
	if !t.Revoked.IsZero() && t.Revoked.Before(t.Expires) {
		return t.Revoked
	}
	return t.Expires
}

// Revocation describes which tokens are revoked, and by which operator.
type Revocation struct {
	// Name is the name of the token that is revoked. If Name is empty, all unexpired tokens of the agent named Agent are
	// revoked.
	Name, Agent string
	// OperatorTenant and Operator are the tenant and the subject of the operator. Only tokens of OperatorTenant are
	// revoked, unless AnyTenant is true.
	OperatorTenant, Operator string
	AnyTenant                bool
}

func (r *Revocation) selects(t *Token, now time.Time) bool {
	if !r.AnyTenant && t.Tenant != r.OperatorTenant {
		return false
	}
	if r.Name != "" {
		return t.Name == r.Name
	}
	return t.Issuer == "" && t.Agent == r.Agent && now.Before(t.Expires) // selects revoked tokens too, so that a revocation can be repeated
}

// RevokeTokens revokes the selected tokens and returns them. A token that was already revoked stays unchanged. The
// returned set contains all tokens. The error can be [sqlstore.ErrUnavailable], or [ErrTokenUnknown] if no token is
// selected.
func (s *Store) RevokeTokens(ctx context.Context, r Revocation) (revoked []Token, set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		revoked, set = nil, TokenSet{}
		found, err := readTokens(ctx, tx, "WHERE name = $1 OR $2 <> '' AND agent = $2 AND expires > $3 ORDER BY name", r.Name, r.Agent, sqlstore.Micros(tx.Now))
		if err != nil {
			return err
		}
		for i := range found {
			if t := &found[i]; r.selects(t, tx.Now) {
				if err := revokeToken(ctx, tx, t, &r); err != nil {
					return err
				}
				revoked = append(revoked, *t)
			}
		}
		if len(revoked) == 0 {
			return ErrTokenUnknown
		}
		for i := range revoked {
			if set, err = s.changedTokens(ctx, tx, revoked[i].Tenant); err != nil {
				return err
			}
		}
		return nil
	})
	return revoked, set, err
}

func revokeToken(ctx context.Context, tx *sqlstore.Tx, t *Token, r *Revocation) error {
	if !t.Revoked.IsZero() {
		return nil
	}
	t.Revoked, t.RevokedByTenant, t.RevokedBy = tx.Now, r.OperatorTenant, r.Operator
	_, err := tx.ExecContext(ctx, "UPDATE identity_tokens SET revoked = $1, revoked_by_tenant = $2, revoked_by = $3, ended = $4 WHERE name = $5",
		sqlstore.Micros(t.Revoked), t.RevokedByTenant, t.RevokedBy, sqlstore.Micros(t.ended()), t.Name)
	return err
}

// Rotation describes how the secret of a token is replaced.
type Rotation struct {
	Name string
	// OperatorTenant and Operator are the tenant and the subject of the operator. Only a token of OperatorTenant is
	// changed, unless AnyTenant is true. A token that uses the connections of its owner is changed only if the operator is
	// the owner, because the operator gets the new secret.
	OperatorTenant, Operator string
	AnyTenant                bool
	// SHA256 is the SHA-256 digest of the new secret. Overlap is how long the old secret stays valid.
	SHA256  [32]byte
	Overlap time.Duration
	// Expires is the time at which the token expires. If it is zero, the token gets the lifetime that it received at its
	// creation or at its last rotation.
	Expires time.Time
}

// RotateToken replaces the secret of a token. The returned set contains all tokens. The error can be [ErrTokenUnknown],
// [ErrTokenEnded], [ErrSession], [ErrOwnerOnly], [ErrRotatedTooOften] or [sqlstore.ErrUnavailable].
func (s *Store) RotateToken(ctx context.Context, r Rotation) (rotated Token, set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		found, err := readTokens(ctx, tx, "WHERE name = $1", r.Name)
		switch {
		case err != nil:
			return err
		case len(found) == 0 || !r.AnyTenant && found[0].Tenant != r.OperatorTenant:
			return ErrTokenUnknown
		case found[0].Issuer != "":
			return ErrSession
		case !found[0].Revoked.IsZero() || !tx.Now.Before(found[0].Expires):
			return ErrTokenEnded
		case found[0].UsesConnections && (found[0].Tenant != r.OperatorTenant || found[0].Owner != r.Operator):
			return ErrOwnerOnly
		}
		var life int64
		if err := tx.QueryRowContext(ctx, "SELECT life FROM identity_tokens WHERE name = $1", r.Name).Scan(&life); err != nil {
			return err
		}
		rotated = found[0]
		rotated.SHA256, rotated.Expires = r.SHA256, r.Expires
		if rotated.Expires.IsZero() {
			rotated.Expires = tx.Now.Add(time.Duration(life) * time.Microsecond)
		}
		if rotated.Previous, err = r.previous(&found[0], rotated.Expires, tx.Now); err != nil {
			return err
		}
		previous, err := json.Marshal(rotated.Previous)
		if err != nil {
			return fmt.Errorf("write a token: %w", err)
		}
		if _, err := tx.ExecContext(ctx, "UPDATE identity_tokens SET sha256 = $1, previous = $2, expires = $3, ended = $3, life = $4 WHERE name = $5",
			hex.EncodeToString(rotated.SHA256[:]), string(previous), sqlstore.Micros(rotated.Expires), rotated.Expires.Sub(tx.Now).Microseconds(), r.Name); err != nil {
			return err
		}
		set, err = s.changedTokens(ctx, tx, rotated.Tenant)
		return err
	})
	return rotated, set, err
}

// maxPrevious limits how many replaced secrets of a token are valid at the same time.
const maxPrevious = 4

// previous returns the replaced secrets of a token after the rotation. A replaced secret is valid until the old expiry
// or the new expiry of the token at the latest. If Overlap is zero, all replaced secrets become invalid, because an
// attacker may know one of them.
func (r *Rotation) previous(t *Token, expires, now time.Time) ([]PreviousSecret, error) {
	if r.Overlap == 0 {
		return nil, nil
	}
	valid := slices.DeleteFunc(slices.Clone(t.Previous), func(p PreviousSecret) bool { return !now.Before(p.Until) })
	if len(valid) == maxPrevious {
		return nil, ErrRotatedTooOften
	}
	ends := []time.Time{now.Add(r.Overlap), t.Expires, expires}
	until := slices.MinFunc(ends, time.Time.Compare)
	for i := range valid {
		if expires.Before(valid[i].Until) {
			valid[i].Until = expires
		}
	}
	return append([]PreviousSecret{{SHA256: hex.EncodeToString(t.SHA256[:]), Until: until}}, valid...), nil
}

// changedTokens increments the version of the tokens and returns all tokens. If the tenant has too many revoked or
// expired tokens, changedTokens first deletes the oldest of them. It also deletes sessions that ended more than a day
// ago.
func (s *Store) changedTokens(ctx context.Context, tx *sqlstore.Tx, tenant string) (TokenSet, error) {
	now := sqlstore.Micros(tx.Now)
	_, err := tx.ExecContext(ctx, `DELETE FROM identity_tokens WHERE tenant = $1 AND ended <= $2 AND issuer = '' AND name NOT IN
		(SELECT name FROM identity_tokens WHERE tenant = $1 AND ended <= $2 AND issuer = '' ORDER BY ended DESC, name LIMIT $3)`, tenant, now, maxEndedTokens)
	if err != nil {
		return TokenSet{}, err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM identity_tokens WHERE issuer <> '' AND ended <= $1", sqlstore.Micros(tx.Now.Add(-endedSessionLife))); err != nil {
		return TokenSet{}, err
	}
	if err := s.nextVersion(ctx, tx); err != nil {
		return TokenSet{}, err
	}
	return s.tokenSet(ctx, tx)
}

// UseTokens stores when tokens were last used. uses maps the names of tokens to times. UseTokens ignores unknown names.
func (s *Store) UseTokens(ctx context.Context, uses map[string]time.Time) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for name, used := range uses {
			if _, err := tx.ExecContext(ctx, "UPDATE identity_tokens SET last_used = $1 WHERE name = $2 AND last_used < $1", sqlstore.Micros(used), name); err != nil {
				return err
			}
		}
		return nil
	})
}

// TokensSince returns all tokens if the version of the store differs from known. Otherwise, it returns only the
// version. If known is -1, it always returns all tokens. It returns [ErrLost] if this process has seen a newer version.
func (s *Store) TokensSince(ctx context.Context, known int64) (set TokenSet, err error) {
	seen := s.seen.Load() // before the transaction, which sees no later changes
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		set = TokenSet{}
		version, err := readVersion(ctx, tx)
		switch {
		case err != nil:
			return err
		case version < seen:
			return ErrLost
		case version == known:
			set.Version = version
			return nil
		}
		set, err = s.tokenSet(ctx, tx)
		return err
	})
	if err == nil {
		s.see(set.Version)
	}
	return set, err
}

// Tokens returns all stored tokens sorted by name, with the times at which they were last used. It includes revoked and
// expired tokens.
func (s *Store) Tokens(ctx context.Context) (all []Token, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all, err = readTokens(ctx, tx, "ORDER BY name")
		return err
	})
	return all, err
}

func (s *Store) tokenSet(ctx context.Context, tx *sqlstore.Tx) (set TokenSet, err error) {
	if set.Version, err = readVersion(ctx, tx); err != nil {
		return TokenSet{}, err
	}
	now := sqlstore.Micros(tx.Now)
	if set.Valid, err = readTokens(ctx, tx, "WHERE ended > $1 AND revoked = 0 ORDER BY name", now); err != nil {
		return TokenSet{}, err
	}
	if set.Blocks, err = readBlocks(ctx, tx, ""); err != nil {
		return TokenSet{}, err
	}
	// Sessions are last, because a person whose session has ended can sign in again without an operator.
	set.Ended, err = readTokens(ctx, tx, "WHERE ended <= $1 OR revoked <> 0 ORDER BY CASE WHEN issuer = '' THEN 0 ELSE 1 END, ended DESC, name LIMIT $2", now, maxEndedTokens)
	return set, err
}

func readTokens(ctx context.Context, tx *sqlstore.Tx, where string, args ...any) (out []Token, err error) {
	err = tx.Each(ctx, func(rows *sql.Rows) error {
		var t Token
		var hash, previous, groups, servers string
		var created, expires, used, revoked, role, authTime, usesConnections int64
		if err := rows.Scan(&t.Name, &hash, &previous, &t.Tenant, &t.Subject, &t.Agent, &t.Owner, &groups, &servers, &created, &expires,
			&t.CreatedByTenant, &t.CreatedBy, &used, &revoked, &t.RevokedByTenant, &t.RevokedBy, &role, &t.Issuer, &t.IssuerURL, &authTime, &t.ACR, &usesConnections); err != nil {
			return fmt.Errorf("read a token: %w", err)
		}
		raw, err := hex.DecodeString(hash)
		if err != nil || len(raw) != len(t.SHA256) {
			return fmt.Errorf("read the token %s: its hash is damaged", t.Name)
		}
		t.SHA256 = [32]byte(raw)
		if err := errors.Join(json.Unmarshal([]byte(groups), &t.Groups), json.Unmarshal([]byte(servers), &t.Servers), json.Unmarshal([]byte(previous), &t.Previous)); err != nil {
			return fmt.Errorf("read the groups, servers and earlier secrets of the token %s: %w", t.Name, err)
		}
		if len(t.Servers) == 0 {
			t.Servers = nil
		}
		if len(t.Previous) == 0 {
			t.Previous = nil
		}
		t.UsesConnections = usesConnections != 0
		t.Role, t.AuthTime = authv1.TokenRole(role), sqlstore.Time(authTime)
		t.Created, t.Expires, t.LastUsed, t.Revoked = sqlstore.Time(created), sqlstore.Time(expires), sqlstore.Time(used), sqlstore.Time(revoked)
		out = append(out, t)
		return nil
	}, `SELECT name, sha256, previous, tenant, subject, agent, owner, member_of, servers, created, expires,
		created_by_tenant, created_by, last_used, revoked, revoked_by_tenant, revoked_by, role, issuer, issuer_url, auth_time, acr, uses_connections FROM identity_tokens `+where, args...)
	return out, err
}
