package authn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/lru"
)

const (
	// maxVerified limits how many verified JWTs a process remembers. maxVerifiedBytes limits the total length of these
	// JWTs.
	maxVerified      = 16384
	maxVerifiedBytes = 32 << 20
	// maxRefused limits how many refused JWTs a process remembers. Each of them is remembered for refusedTime. A client
	// that repeats a bad token therefore causes only one verification in that time.
	maxRefused  = 4096
	refusedTime = time.Minute
	// verifyTimeout limits how long a JWT waits for its verification to begin.
	verifyTimeout = 250 * time.Millisecond
	// newKeysTimeout limits how long a JWT with an unknown key waits for the new keys of its issuer.
	newKeysTimeout = 2 * time.Second
	// keysPause is the minimum time between two requests for an issuer's new keys.
	keysPause = 30 * time.Second
)

// ErrVerifyBusy means that too many JWTs wait for their verification. Use errors.Is to test for it.
var ErrVerifyBusy = errors.New("too many JWTs wait for their verification: send the request again")

// JWT is a verified JWT that a client has presented. It implements [Credential].
type JWT struct {
	issuer.Identity

	tokens *Tokens
	text   string
	// generation is the number of the jwtState with which the JWT was verified.
	generation uint64
}

// jwts verifies JWTs. The zero value has no issuers and accepts no JWT. It is safe for concurrent use.
//
// Clients can cause only a limited amount of work before they are identified. At most one JWT from each address is
// verified at a time. The verifications for all addresses use at most a quarter of the processors. The results are
// remembered. Refused JWTs are remembered separately, so they can't displace the results for valid JWTs.
type jwts struct {
	state atomic.Pointer[jwtState]
	queue atomic.Pointer[fairqueue.Queue[string]]
	// newKeys requests the current keys of an issuer. It is nil if this process can't request them.
	newKeys atomic.Pointer[keyRequests]
	// verified is called after each verification. It is nil if verifications are not counted.
	verified atomic.Pointer[func(issuer, outcome string)]
}

// jwtState contains issuers, blocks, and the remembered results of verifications with these issuers and blocks. When
// issuers, keys or blocks change, a new state without results replaces this state, because the same JWT can then have
// another result.
type jwtState struct {
	// generation is the number of this state. JWTs contain the number instead of a reference to the state. While a
	// caller's stream is open, such a reference would keep the caches of an old state in memory.
	generation uint64
	from       []*identityv1.Issuer
	issuers    *issuer.Set
	blocks     blocks
	verified   *lru.Cache[[sha256.Size]byte, *JWT]
	refused    *lru.Cache[[sha256.Size]byte, refusedJWT]
}

type refusedJWT struct {
	refusal *issuer.Refusal
	until   time.Time
}

// replace replaces the issuers and the blocks, unless they are the same as before.
func (j *jwts) replace(from []*identityv1.Issuer, blocked blocks) error {
	before := j.state.Load()
	if before != nil && proto.Equal(&identityv1.TokenSet{Issuers: before.from, Blocks: before.blocks.from}, &identityv1.TokenSet{Issuers: from, Blocks: blocked.from}) {
		return nil
	}
	set, err := issuer.NewSet(from)
	if err != nil {
		return fmt.Errorf("read the issuers: %w", err)
	}
	if j.queue.Load() == nil {
		queue, err := fairqueue.New[string](max(1, fairqueue.Processors()/4), 1)
		if err != nil {
			return err
		}
		j.queue.Store(queue)
	}
	generation := uint64(1)
	if before != nil {
		generation += before.generation
	}
	j.state.Store(&jwtState{
		generation: generation, from: from, issuers: set, blocks: blocked,
		verified: lru.New[[sha256.Size]byte](maxVerified, maxVerifiedBytes, func(j *JWT) int { return len(j.text) }),
		refused:  lru.New[[sha256.Size]byte](maxRefused, maxRefused, func(refusedJWT) int { return 1 }),
	})
	return nil
}

// AskForKeys sets the function that is called if a JWT names a key that is not among the known keys of its issuer. The
// function requests the issuer's current keys and returns the digest of these keys. The keys themselves arrive with a
// later set of tokens.
//
// The function is called at most once in 30 s for each issuer, so JWTs of strangers can't cause many requests.
func (t *Tokens) AskForKeys(ask func(ctx context.Context, issuer string) (digest []byte, err error)) {
	t.jwts.newKeys.Store(&keyRequests{ask: ask, last: make(map[string]keyAnswer)})
}

// CountVerifications sets the function that is called after each verification of a JWT. The first argument is the name
// of the issuer, which is empty if the JWT names no configured issuer. The second argument is `valid`, or the
// [issuer.Reason] of the refusal.
func (t *Tokens) CountVerifications(count func(issuer, outcome string)) {
	t.jwts.verified.Store(&count)
}

// keyRequests requests the keys of issuers and remembers the last answer for each issuer.
type keyRequests struct {
	ask   func(ctx context.Context, issuer string) (digest []byte, err error)
	group singleflight.Group

	mu sync.Mutex
	// last contains the last answer for each issuer.
	last map[string]keyAnswer
}

// keyAnswer is the answer to a request for the keys of an issuer.
type keyAnswer struct {
	at     time.Time
	digest []byte
	err    error
}

// request returns the digest of an issuer's current keys. If the last request was less than 30 s ago, request uses the
// answer to that request again. It reports false if the digest is not known. It also reports false if the answer is
// older than 2 s, because this process should have received the keys by then. Concurrent calls share one request.
func (k *keyRequests) request(ctx context.Context, issuer string) (digest []byte, ok bool) {
	k.mu.Lock()
	last, asked := k.last[issuer]
	k.mu.Unlock()
	if since := time.Since(last.at); asked && since < keysPause {
		return last.digest, last.err == nil && since < newKeysTimeout
	}
	answer, _, _ := k.group.Do(issuer, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), newKeysTimeout)
		defer cancel()
		digest, err := k.ask(ctx, issuer)
		answer := keyAnswer{at: time.Now(), digest: digest, err: err}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.last[issuer] = answer
		return answer, nil
	})
	last = answer.(keyAnswer) //nolint:forcetypeassert // the function above returns a keyAnswer
	return last.digest, last.err == nil
}

// digestOf returns the digest of an issuer's keys.
func (s *jwtState) digestOf(name string) []byte {
	var keys []*identityv1.IssuerKey
	for _, from := range s.from {
		if from.GetName() == name {
			keys = from.GetKeys()
		}
	}
	return issuer.KeysDigest(keys)
}

// Issuers returns the number of issuers whose JWTs are accepted.
func (t *Tokens) Issuers() int {
	if state := t.jwts.state.Load(); state != nil {
		return state.issuers.Len()
	}
	return 0
}

// IssuerURLs returns the accepted values of the claim `iss`.
func (t *Tokens) IssuerURLs() []string {
	state := t.jwts.state.Load()
	if state == nil {
		return nil
	}
	urls := make([]string, len(state.from))
	for i, from := range state.from {
		urls[i] = from.GetIssuer()
	}
	return urls
}

// Authenticate returns the credential for a bearer token, and the principal of the credential. A bearer token is a
// token of the mesh or a JWT. address is the address of the client that presents it. The error is that of
// [Tokens.Bearer], an [*issuer.Refusal] or [ErrVerifyBusy]. If the error is [ErrTokensStale], the credential was valid
// in the last confirmed set, or is nil.
func (t *Tokens) Authenticate(ctx context.Context, text, address string) (Credential, *identityv1.Principal, error) {
	if !issuer.IsJWT(text) || t.Issuers() == 0 {
		token, err := t.Bearer(text)
		if token == nil {
			return nil, nil, err
		}
		return token, token.Principal, err
	}
	j, err := t.verify(ctx, text, address)
	if err != nil {
		return nil, nil, err
	}
	if t.isStale(time.Now()) {
		return j, j.Principal, ErrTokensStale
	}
	return j, j.Principal, nil
}

// verify verifies a JWT. If the key of the JWT is unknown, verify requests new keys once and tries again.
func (t *Tokens) verify(ctx context.Context, text, address string) (*JWT, error) {
	state := t.jwts.state.Load()
	j, err := t.verifyWith(ctx, state, text, address)
	refusal := issuer.RefusalOf(err)
	ask := t.jwts.newKeys.Load()
	if refusal == nil || refusal.Reason != issuer.UnknownKey || ask == nil {
		return j, err
	}
	ctx, cancel := context.WithTimeout(ctx, newKeysTimeout)
	defer cancel()
	if t.isStale(time.Now()) {
		return nil, ErrTokensStale // the new keys might exist, but can't be received
	}
	digest, ok := ask.request(ctx, refusal.Issuer)
	for ok && ctx.Err() == nil {
		confirmed := t.nextConfirmation()
		if bytes.Equal(t.jwts.state.Load().digestOf(refusal.Issuer), digest) {
			break
		}
		select {
		case <-confirmed:
		case <-ctx.Done():
		}
	}
	if now := t.jwts.state.Load(); now != state {
		return t.verifyWith(ctx, now, text, address)
	}
	return nil, err
}

func (t *Tokens) verifyWith(ctx context.Context, state *jwtState, text, address string) (*JWT, error) {
	hash := HashSecret(text)
	if j, err := state.recall(hash, time.Now()); j != nil || err != nil {
		return j, err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, verifyTimeout, ErrVerifyBusy)
	defer cancel()
	end, err := t.jwts.queue.Load().Acquire(waiting, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrVerifyBusy, err)
	}
	defer end()
	now := time.Now()
	if j, err := state.recall(hash, now); j != nil || err != nil { // another request has verified the same JWT meanwhile
		return j, err
	}
	identity, refusal := state.verify(text, now)
	t.jwts.count(identity, refusal)
	if refusal != nil {
		state.remember(hash, refusal, now)
		return nil, refusal
	}
	j := &JWT{Identity: *identity, tokens: t, text: text, generation: state.generation}
	state.verified.Put(hash, j)
	return j, nil
}

// verify verifies a JWT without using remembered results. It refuses a JWT whose caller is blocked.
func (s *jwtState) verify(text string, now time.Time) (*issuer.Identity, *issuer.Refusal) {
	identity, refusal := s.issuers.Verify(text, now)
	if refusal == nil && s.blocks.blocks(identity.Principal) {
		return nil, issuer.NewBlocked(identity.Principal.GetIssuer(), ErrBlocked)
	}
	return identity, refusal
}

// count passes the result of a verification to the function that [Tokens.CountVerifications] set.
func (j *jwts) count(identity *issuer.Identity, refusal *issuer.Refusal) {
	count := j.verified.Load()
	switch {
	case count == nil:
	case refusal != nil:
		(*count)(refusal.Issuer, string(refusal.Reason))
	default:
		(*count)(identity.Principal.GetIssuer(), "valid")
	}
}

// remember remembers that a JWT is refused, unless the JWT is not valid yet, because it might soon become valid.
func (s *jwtState) remember(hash [sha256.Size]byte, refusal *issuer.Refusal, now time.Time) {
	if refusal.Reason != issuer.NotYetValid {
		s.refused.Put(hash, refusedJWT{refusal: refusal, until: now.Add(refusedTime)})
	}
}

// recall returns the remembered result of a verification. Both results are nil if there is none.
func (s *jwtState) recall(hash [sha256.Size]byte, now time.Time) (*JWT, error) {
	if j, ok := s.verified.Get(hash); ok {
		if err := j.ErrorAt(now); err != nil {
			return nil, err
		}
		return j, nil
	}
	if r, ok := s.refused.Get(hash); ok && now.Before(r.until) {
		return nil, r.refusal
	}
	return nil, nil
}

// IsValid implements [Credential].
func (j *JWT) IsValid() bool { return j.lookup() == nil }

// Check implements [Credential].
func (j *JWT) Check(ctx context.Context) error { return j.tokens.awaitFresh(ctx, j.lookup) }

// lookup returns nil if the JWT is valid now and gives the same rights as when it was verified.
func (j *JWT) lookup() error {
	now := time.Now()
	if err := j.ErrorAt(now); err != nil {
		return err
	}
	state := j.tokens.jwts.state.Load()
	switch {
	case j.tokens.isStale(now):
		return ErrTokensStale
	case state.generation == j.generation:
		return nil
	}
	hash := HashSecret(j.text)
	same, err := state.recall(hash, now)
	if same == nil && err == nil {
		identity, refusal := state.verify(j.text, now)
		j.tokens.jwts.count(identity, refusal)
		switch {
		case refusal != nil && refusal.Reason == issuer.NoKeys:
			return ErrTokensStale // the keys will be fetched soon
		case refusal != nil:
			state.remember(hash, refusal, now)
			return refusal
		}
		same = &JWT{Identity: *identity, tokens: j.tokens, text: j.text, generation: state.generation}
		state.verified.Put(hash, same)
	}
	if err == nil && !proto.Equal(same.Principal, j.Principal) {
		return ErrRightsChanged
	}
	return err
}
