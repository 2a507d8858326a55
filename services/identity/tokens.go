package identity

import (
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/changesignal"
)

const maxGroups = 256

// tokenBook contains both the configured tokens and the stored tokens. It is safe for concurrent use.
type tokenBook struct {
	tokens  *authn.Tokens
	changes *changesignal.Signal
	// published is the newest set of all tokens. It is nil until the stored tokens have been read.
	published atomic.Pointer[publishedSet]

	keys *issuerkeys.Book

	mu         sync.Mutex // locked while the fields below and published are replaced
	configured Identities
	stored     store.TokenSet
}

// publishedSet is a set of all tokens. It is immutable.
type publishedSet struct {
	*identityv1.TokenSet

	// version counts the sets in this process, starting at 1. stored is the version of the stored tokens.
	version uint64
	stored  int64
	// at is the time at which the set was published.
	at time.Time
}

// newTokenBook returns a token book that contains the configured tokens. The tokens are not valid until
// [tokenBook.store] has added the stored tokens.
func newTokenBook(tokens *authn.Tokens, configured Identities, fetch func(context.Context, issuerkeys.Source) ([]*identityv1.IssuerKey, error)) *tokenBook {
	b := &tokenBook{tokens: tokens, changes: changesignal.New(), configured: configured, stored: store.TokenSet{Version: -1}}
	b.keys = issuerkeys.NewBook(fetch, b.publishKeys)
	return b
}

// check returns an error if the configured tokens can't be used.
func (b *tokenBook) check() error { return new(authn.Tokens).Update(combine(b.configured, b.stored)) }

// configure replaces the configured tokens, groups and issuers. If it returns an error, the old tokens, groups and
// issuers stay valid.
func (b *tokenBook) configure(now Identities) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.published.Load() == nil { // the stored tokens are not known yet
		b.configured = now
		return nil
	}
	return b.publish(now, b.stored)
}

// store replaces the stored tokens, unless the token book already has a newer version of the tokens. It reports whether
// it has replaced the stored tokens.
func (b *tokenBook) store(now store.TokenSet) (changed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Version <= b.stored.Version {
		return false, nil
	}
	err = b.publish(b.configured, now)
	return err == nil, err
}

// publish makes the given tokens valid, and all other tokens invalid. The caller must hold b.mu.
func (b *tokenBook) publish(configured Identities, stored store.TokenSet) error {
	set := combine(configured, stored)
	set.Issuers = withKeys(configured, b.keys)
	if err := b.tokens.Update(set); err != nil {
		return err
	}
	b.keys.Use(sourcesOf(configured.Issuers))
	next := &publishedSet{TokenSet: set, version: 1, stored: stored.Version, at: time.Now()}
	if before := b.published.Load(); before != nil {
		next.version += before.version
	}
	b.configured, b.stored = configured, stored
	b.published.Store(next)
	b.changes.Notify()
	return nil
}

// publishKeys sends the keys of the issuers to the watchers after they have changed.
func (b *tokenBook) publishKeys() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.published.Load() == nil {
		return // the keys are published together with the stored tokens
	}
	_ = b.publish(b.configured, b.stored) // never fails, because the keys were checked when they were fetched
}

func (b *tokenBook) identities() Identities {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.configured
}

// hasEnded reports whether a stored token is a session that the configuration does not allow any more.
func (b *tokenBook) hasEnded(t *store.Token) bool {
	configured, token := b.identities(), packToken(t)
	token.Groups = configured.groupsOf(token)
	return t.Issuer != "" && !configured.allowsSession(token, t.IssuerURL)
}

func (b *tokenBook) version() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stored.Version
}

// combine returns the set of all tokens. A stored token is omitted if a configured token has the same name or the same
// hash.
func combine(configured Identities, stored store.TokenSet) *identityv1.TokenSet {
	names, hashes := make(map[string]bool), make(map[string]bool)
	set := &identityv1.TokenSet{Tokens: slices.Clone(configured.Tokens)}
	for _, r := range configured.Tokens {
		names[r.GetToken().GetName()], hashes[string(r.GetSha256())] = true, true
	}
	for i := range stored.Valid {
		t := packToken(&stored.Valid[i])
		t.Groups = configured.groupsOf(t)
		if t.GetIssuer() != "" && !configured.allowsSession(t, stored.Valid[i].IssuerURL) {
			set.Ended = append(set.Ended, &identityv1.EndedToken{Sha256: stored.Valid[i].SHA256[:], Name: t.GetName(), Revoked: true, Session: true})
			continue
		}
		if stored.Valid[i].CreatedByTenant == t.GetTenant() { // people of other tenants can't approve the token's calls
			t.CreatedBy = stored.Valid[i].CreatedBy
		}
		if !names[t.GetName()] && !hashes[string(stored.Valid[i].SHA256[:])] && len(t.GetGroups()) <= maxGroups {
			record := &identityv1.TokenRecord{Token: t, Sha256: stored.Valid[i].SHA256[:]}
			for _, p := range stored.Valid[i].Previous {
				if raw, err := hex.DecodeString(p.SHA256); err == nil && !hashes[string(raw)] {
					record.Previous = append(record.Previous, &identityv1.PreviousSecret{Sha256: raw, Expires: timestamppb.New(p.Until)})
				}
			}
			set.Tokens = append(set.Tokens, record)
		}
	}
	for i := range stored.Blocks {
		set.Blocks = append(set.Blocks, packBlocked(&stored.Blocks[i]))
	}
	for i := range stored.Ended {
		t := &stored.Ended[i]
		if !hashes[string(t.SHA256[:])] && !names[t.Name] {
			set.Ended = append(set.Ended, &identityv1.EndedToken{Sha256: t.SHA256[:], Name: t.Name, Revoked: !t.Revoked.IsZero(), Session: t.Issuer != ""})
		}
	}
	return set
}

func packToken(t *store.Token) *identityv1.Token {
	return &identityv1.Token{
		Name: t.Name, Tenant: t.Tenant, Subject: t.Subject, Agent: t.Agent, Owner: t.Owner, Groups: t.Groups, Servers: t.Servers, Role: t.Role, Issuer: t.Issuer,
		Created: packTime(t.Created), Expires: packTime(t.Expires), AuthTime: packTime(t.AuthTime), Acr: t.ACR, UsesConnections: t.UsesConnections,
	}
}

// packTime converts a time to its protobuf message. It returns nil for the zero time.
func packTime(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// packListed converts a token to the message that a caller receives. A caller in a tenant other than "default" does not
// receive the names of operators in other tenants.
func packListed(t *store.Token, caller *authn.Caller) *identityv1.Token {
	out := packToken(t)
	out.LastUsed, out.Revoked = packTime(t.LastUsed), packTime(t.Revoked)
	if caller.Tenant() == authn.HomeTenant || caller.Tenant() == t.CreatedByTenant {
		out.CreatedBy = t.CreatedBy
	}
	if caller.Tenant() == authn.HomeTenant || caller.Tenant() == t.RevokedByTenant {
		out.RevokedBy = t.RevokedBy
	}
	return out
}

// recordUses regularly stores when tokens were last used in this process, until ctx is done. If the gateway runs in the
// same process, these are all uses.
func (s *Service) recordUses(ctx context.Context) error {
	tick := time.NewTicker(authn.UseInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := s.deps.Tokens.ReportUses(func(uses []*identityv1.TokenUse) error { return s.storeUses(ctx, uses) })
		if err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "the uses of tokens could not be stored; they are stored later", "error", err)
		}
	}
}

// storeUses stores the times at which tokens were last used. The clocks of services may differ, so a time in the future
// is replaced with the current time.
func (s *Service) storeUses(ctx context.Context, uses []*identityv1.TokenUse) error {
	now, latest := time.Now(), make(map[string]time.Time, len(uses))
	for _, use := range uses {
		if at := use.GetUsed().AsTime(); at.After(latest[use.GetName()]) {
			latest[use.GetName()] = at
		}
	}
	for name, at := range latest {
		if at.After(now) {
			latest[name] = now
		}
	}
	return s.store.UseTokens(ctx, latest)
}
