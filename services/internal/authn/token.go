package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// These errors are returned by [Tokens.Lookup]. Use errors.Is to test for them.
var (
	// ErrTokenUnknown means that no valid token has this secret.
	ErrTokenUnknown = errors.New("no valid token has this text")
	// ErrTokenRevoked means that the token with this secret was revoked.
	ErrTokenRevoked = errors.New("this token was revoked: ask an operator for another one (`sluice token create`)")
	// ErrTokenExpired means that the token with this secret has expired.
	ErrTokenExpired = errors.New("this token has expired: ask an operator for another one (`sluice token create`)")
	// ErrSessionEnded means that the token with this secret is a session that has ended.
	ErrSessionEnded = errors.New("this session has ended: sign in again (`sluice login`)")
	// ErrTokensStale means that the identity service has not confirmed the set of tokens recently enough. Therefore this
	// process can't know which tokens are valid.
	ErrTokensStale = errors.New("it is unknown which tokens are valid: the identity role is unavailable")
)

// minSecret is the minimum length of a token's secret, in bytes.
const minSecret = 32

const (
	// maxTokenAge is how long a set of tokens from the identity service stays in use after its last confirmation. After
	// that, no token is accepted.
	maxTokenAge = time.Second
	// sourceTimeout is how long callers wait if the source of the tokens does not confirm the set. If the last
	// confirmation is older, the source counts as unavailable.
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

// CheckSecret returns an error if a token's secret is too short, publicly known or incomplete.
func CheckSecret(secret string) error {
	switch {
	case len(secret) < minSecret:
		return fmt.Errorf("the token has %d characters, fewer than %d: make one with `openssl rand -hex 32`", len(secret), minSecret)
	case sampleSecrets[secret], allSame(secret):
		return errors.New("the token is a publicly known sample: make one with `openssl rand -hex 32`")
	case isMistyped(secret):
		return errMistyped
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
func HashSecret(secret string) [sha256.Size]byte {
	var space [128]byte // secrets of at most 128 bytes need no allocation
	return sha256.Sum256(append(space[:0], secret...))
}

// Tokens is the set of valid tokens. The zero value contains no set and is stale. It is safe for concurrent use.
type Tokens struct {
	set atomic.Pointer[tokenSet]
	// confirmedAt is the time at which the source last confirmed the set. It is nil if this process itself is the source,
	// because then no confirmation is needed.
	confirmedAt atomic.Pointer[time.Time]
	jwts        jwts

	mu sync.Mutex
	// confirmed is closed at the next confirmation of the set, and when a set is received. It is nil if no caller waits.
	confirmed chan struct{}
}

// tokenSet is the content of [Tokens]. It is immutable, except that the uses of its tokens are recorded.
type tokenSet struct {
	// byPrefix maps the first 8 bytes of a hash to the tokens whose hashes begin with these bytes.
	byPrefix map[uint64][]*token
	tokens   []*token
	// records contains the valid tokens as they were received. ended contains the names of the ended tokens.
	records []*identityv1.TokenRecord
	ended   map[string]bool
	// blocks contains the blocked callers.
	blocks blocks
}

type token struct {
	name string
	// bearer is the result of a lookup of the token. Its Principal is nil if the set lists the token as ended. ended is
	// the error that a lookup returns if the token has ended or its holder is blocked. Otherwise ended is nil.
	bearer BearerToken
	ended  error
	// expires is zero if the token never expires. isSession is true if the token is the session of a person.
	expires   time.Time
	isSession bool
	// use records the uses of the token. It is nil if the uses are not reported.
	use *tokenUse
}

// find returns the token with the given hash, or nil. It compares hashes in constant time.
func (s *tokenSet) find(hash *[sha256.Size]byte) *token {
	for _, t := range s.byPrefix[binary.BigEndian.Uint64(hash[:])] {
		if subtle.ConstantTimeCompare(t.bearer.hash[:], hash[:]) == 1 {
			return t
		}
	}
	return nil
}

// add adds a token to the set. sum is the SHA-256 digest of the token's secret.
func (s *tokenSet) add(t *token, sum []byte) error {
	if len(sum) != sha256.Size {
		return fmt.Errorf("token %q has a hash of %d bytes, want %d", t.name, len(sum), sha256.Size)
	}
	t.bearer.hash = [sha256.Size]byte(sum)
	if isSample(t.bearer.hash) {
		return fmt.Errorf("token %q is a publicly known sample: make one with `openssl rand -hex 32`", t.name)
	}
	if other := s.find(&t.bearer.hash); other != nil {
		return fmt.Errorf("tokens %q and %q have the same text", other.name, t.name)
	}
	prefix := binary.BigEndian.Uint64(t.bearer.hash[:])
	s.byPrefix[prefix] = append(s.byPrefix[prefix], t)
	s.tokens = append(s.tokens, t)
	return nil
}

// addPrevious adds the previous secret of a token. After its replacement, a secret stays valid for some time.
func (s *tokenSet) addPrevious(current *token, p *identityv1.PreviousSecret, before *tokenSet) error {
	previous := &token{name: current.name, expires: p.GetExpires().AsTime(), ended: current.ended}
	previous.bearer = BearerToken{Principal: current.bearer.Principal, tokens: current.bearer.tokens}
	if err := s.add(previous, p.GetSha256()); err != nil {
		return err
	}
	if current.use != nil {
		previous.use = before.useOf(previous)
	}
	return nil
}

// NewTokens returns Tokens whose source is this process. Such Tokens are never stale.
func NewTokens(records []*identityv1.TokenRecord) (*Tokens, error) {
	t := new(Tokens)
	return t, t.Replace(records)
}

// Replace is like [Tokens.Update], but the new set contains no revoked or expired tokens.
func (t *Tokens) Replace(records []*identityv1.TokenRecord) error {
	return t.Update(&identityv1.TokenSet{Tokens: records})
}

// Update replaces the set of tokens. If it returns an error, for example because a hash belongs to a publicly known
// secret, the old set stays in use.
func (t *Tokens) Update(from *identityv1.TokenSet) error {
	before := t.set.Load()
	set := &tokenSet{
		byPrefix: make(map[uint64][]*token, len(from.GetTokens())+len(from.GetEnded())), records: from.GetTokens(), ended: make(map[string]bool),
		blocks: newBlocks(from.GetBlocks()),
	}
	for _, r := range from.GetTokens() {
		one := &token{name: r.GetToken().GetName(), bearer: BearerToken{Principal: principalOf(r.GetToken()), tokens: t}}
		if r.GetToken().GetExpires() != nil {
			one.expires = r.GetToken().GetExpires().AsTime()
		}
		one.isSession = r.GetToken().GetIssuer() != ""
		if set.blocks.blocks(one.bearer.Principal) {
			one.ended = ErrBlocked
		}
		if err := set.add(one, r.GetSha256()); err != nil {
			return err
		}
		if !r.GetToken().GetConfigured() {
			one.use = before.useOf(one)
		}
		for _, p := range r.GetPrevious() {
			if err := set.addPrevious(one, p, before); err != nil {
				return err
			}
		}
	}
	for _, r := range from.GetEnded() {
		set.ended[r.GetName()] = true
		one := &token{name: r.GetName(), ended: ErrTokenExpired}
		switch {
		case r.GetSession():
			one.ended = ErrSessionEnded
		case r.GetRevoked():
			one.ended = ErrTokenRevoked
		}
		if err := set.add(one, r.GetSha256()); err != nil {
			return err
		}
	}
	if err := t.jwts.replace(from.GetIssuers(), set.blocks); err != nil {
		return err
	}
	t.set.Store(set)
	t.wakeWaiting()
	return nil
}

// Confirm records that the source of the tokens has just confirmed the set. The set becomes stale 1 s after the last
// confirmation.
func (t *Tokens) Confirm() {
	t.confirmedAt.Store(new(time.Now()))
	t.wakeWaiting()
}

// wakeWaiting wakes the goroutines that wait for a confirmation or for a set.
func (t *Tokens) wakeWaiting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.confirmed != nil {
		close(t.confirmed)
		t.confirmed = nil
	}
}

// HasSet reports whether a set was received. Until then no token is accepted.
func (t *Tokens) HasSet() bool { return t.set.Load() != nil }

// Records returns the tokens that were valid when the set was received. The result is shared and must not be modified.
func (t *Tokens) Records() []*identityv1.TokenRecord {
	if set := t.set.Load(); set != nil {
		return set.records
	}
	return nil
}

// HasEnded reports whether the set contains a token with the given name that was revoked or has expired.
func (t *Tokens) HasEnded(name string) bool {
	set := t.set.Load()
	return set != nil && set.ended[name]
}

// Lookup returns the principal of the token with the given secret. The result is shared and must not be modified. The
// error is [ErrTokenUnknown], [ErrTokenRevoked], [ErrTokenExpired], [ErrSessionEnded], [ErrBlocked] or
// [ErrTokensStale]. If the error is ErrTokensStale, Lookup also returns the principal from the last confirmed set, or
// nil if that set does not contain the token.
func (t *Tokens) Lookup(secret string) (*identityv1.Principal, error) {
	token, err := t.Bearer(secret)
	if token == nil {
		return nil, err
	}
	return token.Principal, err
}

// LookupFresh is like [Tokens.Lookup], but waits at most 2 s if this process does not know whether the token is valid.
// This is the case before the first set is received, and while the source of the tokens is late with its confirmation.
// LookupFresh does not wait for a token that the last confirmed set does not contain.
func (t *Tokens) LookupFresh(ctx context.Context, secret string) (*identityv1.Principal, error) {
	p, err := t.Lookup(secret)
	if !errors.Is(err, ErrTokensStale) || p == nil && t.HasSet() {
		return p, err
	}
	waiting, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	for errors.Is(err, ErrTokensStale) && waiting.Err() == nil && (!t.HasSet() || t.IsSourceAvailable()) {
		confirmed := t.nextConfirmation()
		if p, err = t.Lookup(secret); !errors.Is(err, ErrTokensStale) {
			break
		}
		select {
		case <-confirmed:
		case <-waiting.Done():
		}
		p, err = t.Lookup(secret)
	}
	return p, err
}

// lookup returns the token with the given hash. The error is that of [Tokens.Lookup]. If the error is ErrTokensStale,
// lookup also returns the token from the last confirmed set, or nil if that set does not contain the token.
func (t *Tokens) lookup(hash *[sha256.Size]byte) (*token, error) {
	set := t.set.Load()
	if set == nil {
		return nil, ErrTokensStale
	}
	now := time.Now()
	stale := t.isStale(now)
	found := set.find(hash)
	switch {
	case found != nil && found.ended != nil:
		return nil, found.ended
	case found != nil && found.hasExpired(now):
		return nil, found.expiryError()
	case found == nil && stale:
		return nil, ErrTokensStale
	case found == nil:
		return nil, ErrTokenUnknown
	case stale:
		return found, ErrTokensStale
	default:
		found.use.record(now)
		return found, nil
	}
}

// IsSourceAvailable reports whether the source of the tokens has confirmed the set in the last 2 s, or is this process.
func (t *Tokens) IsSourceAvailable() bool {
	confirmedAt := t.confirmedAt.Load()
	return confirmedAt == nil || time.Since(*confirmedAt) <= sourceTimeout
}

// isStale reports whether the source last confirmed the set more than 1 s ago.
func (t *Tokens) isStale(now time.Time) bool {
	confirmedAt := t.confirmedAt.Load()
	if confirmedAt == nil {
		return false
	}
	// The monotonic clock can stop while the machine sleeps, so the wall clock is compared, too.
	return max(now.Sub(*confirmedAt), now.Round(0).Sub(confirmedAt.Round(0))) > maxTokenAge
}

func (t *token) expiryError() error {
	if t.isSession {
		return ErrSessionEnded
	}
	return ErrTokenExpired
}

func (t *token) hasExpired(now time.Time) bool { return !t.expires.IsZero() && !now.Before(t.expires) }

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
		Tenant:         t.GetTenant(),
		Subject:        t.GetSubject(),
		Agent:          t.GetAgent(),
		Owner:          t.GetOwner(),
		Groups:         t.GetGroups(),
		Role:           t.GetRole(),
		TokenId:        t.GetName(),
		TokenCreatedBy: t.GetCreatedBy(),
		Servers:        t.GetServers(),
	}
	if t.GetUsesConnections() {
		p.Person = t.GetOwner()
	}
	if t.GetIssuer() == "" { // a session has no TokenCreated, because a person may sign in to decide on an approval that was requested before
		p.TokenCreated = t.GetCreated()
	} else {
		p.AuthTime, p.Acr = t.GetAuthTime(), t.GetAcr()
	}
	return proto.CloneOf(p)
}
