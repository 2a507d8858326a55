package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Errors of [Tokens.Lookup]. Use errors.Is to compare them.
var (
	// ErrTokenUnknown means that no valid token has this secret.
	ErrTokenUnknown = errors.New("no valid token has this text")
	// ErrTokensStale means that the policy role has not confirmed the set of tokens recently enough. Therefore this
	// process can't know which tokens are valid.
	ErrTokensStale = errors.New("it is unknown which tokens are valid: the policy role is unavailable")
)

// minSecret is the minimum length of a token's secret, in bytes.
const minSecret = 32

const (
	// maxTokenAge is the maximum time since a watched set of tokens was last confirmed.
	maxTokenAge = time.Second
	// sourceTimeout is the time without a confirmation after which the source of the tokens counts as unavailable. Until
	// then the source counts as busy, and callers wait for it.
	sourceTimeout = 2 * time.Second
)

// sampleSecrets contains secrets from this project's documents and secrets that are easy to guess. They are not
// accepted as tokens.
var sampleSecrets = map[string]bool{
	"change-me-change-me-change-me-change-me":    true,
	"replace-with-at-least-32-random-characters": true,
	"0123456789abcdef0123456789abcdef":           true,
	"00000000000000000000000000000000":           true,
}

// CheckSecret returns an error if a token's secret is too short or publicly known.
func CheckSecret(secret string) error {
	switch {
	case len(secret) < minSecret:
		return fmt.Errorf("the token has %d characters, fewer than %d: make one with `openssl rand -hex 32`", len(secret), minSecret)
	case sampleSecrets[secret], allSame(secret):
		return errors.New("the token is a publicly known sample: make one with `openssl rand -hex 32`")
	default:
		return nil
	}
}

// isSample reports whether a hash is the hash of a sample secret or of the empty string.
func isSample(hash [sha256.Size]byte) bool {
	for sample := range sampleSecrets {
		if HashSecret(sample) == hash {
			return true
		}
	}
	return hash == HashSecret("")
}

func allSame(s string) bool {
	for i := range len(s) {
		if s[i] != s[0] {
			return false
		}
	}
	return true
}

// NewSecret returns a random secret of 43 characters for a token.
func NewSecret() string {
	raw := make([]byte, 32)
	rand.Read(raw) // never fails: it ends the program instead
	return base64.RawURLEncoding.EncodeToString(raw)
}

// HashSecret returns the SHA-256 digest of a token's secret. Tokens are stored only in this form.
func HashSecret(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// Tokens is the set of valid tokens. The zero value contains no set and is stale. It is safe for concurrent use.
type Tokens struct {
	set atomic.Pointer[tokenSet]
	// confirmedAt is the time at which the source last confirmed the set. It is nil if this process is the source, because
	// then no confirmation is needed.
	confirmedAt atomic.Pointer[time.Time]

	mu sync.Mutex
	// confirmed is closed at the next confirmation of the set. It is nil if no caller waits for a confirmation.
	confirmed chan struct{}
}

type tokenSet struct {
	byHash map[[sha256.Size]byte]*identityv1.Principal
	expiry map[[sha256.Size]byte]time.Time
}

// NewTokens returns Tokens whose source is this process. They are never stale.
func NewTokens(records []*identityv1.TokenRecord) (*Tokens, error) {
	t := new(Tokens)
	return t, t.Replace(records)
}

// Replace replaces the set of tokens. If it returns an error, for example because a hash belongs to a publicly known
// secret, the old set stays.
func (t *Tokens) Replace(records []*identityv1.TokenRecord) error {
	set := &tokenSet{
		byHash: make(map[[sha256.Size]byte]*identityv1.Principal, len(records)),
		expiry: make(map[[sha256.Size]byte]time.Time),
	}
	for _, r := range records {
		if len(r.GetSha256()) != sha256.Size {
			return fmt.Errorf("token %q has a hash of %d bytes, want %d", r.GetToken().GetName(), len(r.GetSha256()), sha256.Size)
		}
		hash := [sha256.Size]byte(r.GetSha256())
		if isSample(hash) {
			return fmt.Errorf("token %q is a publicly known sample: make one with `openssl rand -hex 32`", r.GetToken().GetName())
		}
		if other, ok := set.byHash[hash]; ok {
			return fmt.Errorf("tokens %q and %q have the same text", other.GetTokenId(), r.GetToken().GetName())
		}
		set.byHash[hash] = principalOf(r.GetToken())
		if r.GetToken().GetExpires() != nil {
			set.expiry[hash] = r.GetToken().GetExpires().AsTime()
		}
	}
	t.set.Store(set)
	return nil
}

// Confirm records that the source of the tokens confirms the set now. The set becomes stale 1 s after the last
// confirmation.
func (t *Tokens) Confirm() {
	t.confirmedAt.Store(new(time.Now()))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.confirmed != nil {
		close(t.confirmed)
		t.confirmed = nil
	}
}

// HasSet reports whether a set was received. Until then no token is accepted.
func (t *Tokens) HasSet() bool { return t.set.Load() != nil }

// Lookup returns the principal of the token with this secret. The result is shared and must not be modified. The error
// is [ErrTokenUnknown] or [ErrTokensStale]. With ErrTokensStale, Lookup also returns the token's principal in the last
// confirmed set, or nil if the set does not contain the token.
func (t *Tokens) Lookup(secret string) (*identityv1.Principal, error) {
	set := t.set.Load()
	if set == nil {
		return nil, ErrTokensStale
	}
	now := time.Now()
	confirmedAt := t.confirmedAt.Load()
	stale := confirmedAt != nil && now.Sub(*confirmedAt) > maxTokenAge
	hash := HashSecret(secret)
	p, known := set.byHash[hash]
	expires, ends := set.expiry[hash]
	switch {
	case known && ends && !now.Before(expires):
		return nil, ErrTokenUnknown
	case stale:
		return p, ErrTokensStale
	case !known:
		return nil, ErrTokenUnknown
	default:
		return p, nil
	}
}

// Await is like [Tokens.Lookup], but waits for a confirmation while the set is stale. It waits until ctx ends or the
// source counts as unavailable. It does not wait for a token that the set does not contain, so an unauthenticated
// caller can't make a process wait.
func (t *Tokens) Await(ctx context.Context, secret string) (*identityv1.Principal, error) {
	for {
		confirmed := t.nextConfirmation()
		p, err := t.Lookup(secret)
		if p == nil || !errors.Is(err, ErrTokensStale) {
			return p, err
		}
		left := sourceTimeout - time.Since(*t.confirmedAt.Load())
		if left <= 0 {
			return p, err
		}
		timer := time.NewTimer(left)
		select {
		case <-confirmed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return p, err
		}
		timer.Stop()
	}
}

func (t *Tokens) nextConfirmation() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.confirmed == nil {
		t.confirmed = make(chan struct{})
	}
	return t.confirmed
}

func principalOf(t *identityv1.Token) *identityv1.Principal {
	p := &identityv1.Principal{
		Tenant:       t.GetTenant(),
		Subject:      t.GetSubject(),
		Agent:        t.GetAgent(),
		Owner:        t.GetOwner(),
		Groups:       t.GetGroups(),
		Role:         t.GetRole(),
		TokenId:      t.GetName(),
		TokenCreated: t.GetCreated(),
	}
	return proto.CloneOf(p)
}
