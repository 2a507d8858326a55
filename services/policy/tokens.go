package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/issuerkeys"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// maxGroups is the maximum number of groups that a principal can have.
const maxGroups = 256

// Identities contains the parts of the configuration that identify callers. The service reads these parts again while
// it is running.
type Identities struct {
	// Tokens contains the configured tokens. The secrets are hashed.
	Tokens []*identityv1.TokenRecord
	// Groups maps a group to the subjects in the tenant "default" that belong to it. Stored tokens have these groups in
	// addition to their own groups. In Tokens, the groups of each token already include them.
	Groups map[string][]string
	// Issuers are the issuers whose JWTs identify agents.
	Issuers []Issuer
}

// equal reports whether two Identities are the same.
func (i Identities) equal(other Identities) bool {
	same := func(a, b *identityv1.TokenRecord) bool { return proto.Equal(a, b) }
	return slices.EqualFunc(i.Tokens, other.Tokens, same) && maps.EqualFunc(i.Groups, other.Groups, slices.Equal) &&
		slices.EqualFunc(i.Issuers, other.Issuers, Issuer.equal)
}

// approvers returns the holders of the configured tokens. Stored tokens belong only to agents, so the list of the
// people who may approve calls is complete.
func (i Identities) approvers(ownersMayApprove bool) *engine.Approvers {
	out := &engine.Approvers{OwnersMayApprove: ownersMayApprove}
	for _, r := range i.Tokens {
		t := r.GetToken()
		holder := engine.Principal{Tenant: t.GetTenant(), Name: t.GetSubject(), Agent: t.GetAgent(), Groups: t.GetGroups()}
		switch t.GetRole() { //nolint:exhaustive // other roles neither call nor decide
		case authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_APPROVER:
			out.Deciders = append(out.Deciders, holder)
		case authv1.TokenRole_TOKEN_ROLE_AGENT:
			out.Callers = append(out.Callers, engine.OwnedAgent{Principal: holder, Owner: t.GetOwner()})
		}
	}
	return out
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
	if tenant == homeTenant {
		for group := range i.Groups {
			out[group] = true
		}
	}
	return out
}

// tokenBook contains both the configured tokens and the stored tokens. It is safe for concurrent use.
type tokenBook struct {
	tokens  *authn.Tokens
	changes *signal
	// set contains all tokens. The field ended contains the names of the revoked and expired tokens in set. Both values
	// are immutable.
	set   atomic.Pointer[identityv1.TokenSet]
	ended atomic.Pointer[map[string]bool]

	// keys contains the keys of the issuers.
	keys *issuerkeys.Book

	mu         sync.Mutex // locked while the fields below and set are replaced
	configured Identities
	stored     store.TokenSet
}

// newTokenBook returns a token book that contains the configured tokens.
func newTokenBook(tokens *authn.Tokens, configured Identities) (*tokenBook, error) {
	b := &tokenBook{tokens: tokens, changes: newSignal(), stored: store.TokenSet{Version: -1}}
	b.keys = issuerkeys.NewBook(issuerkeys.Fetch, b.publishKeys)
	return b, b.configure(configured)
}

// configure replaces the configured tokens and groups. If it returns an error, the old tokens and groups stay valid.
func (b *tokenBook) configure(now Identities) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.publish(now, b.stored)
}

// store replaces the stored tokens, unless the token book already has a newer version of the tokens. It reports whether
// it has replaced them.
func (b *tokenBook) store(now store.TokenSet) (changed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Version <= b.stored.Version {
		return false, nil
	}
	err = b.publish(b.configured, now)
	return err == nil, err
}

// hasEnded reports whether a stored token was revoked or has expired.
func (b *tokenBook) hasEnded(name string) bool { return (*b.ended.Load())[name] }

// publish makes the given tokens valid, and all other tokens invalid. The caller must hold b.mu.
func (b *tokenBook) publish(configured Identities, stored store.TokenSet) error {
	set := combine(configured, stored)
	set.Issuers = withKeys(configured, b.keys)
	if err := b.tokens.Update(set); err != nil {
		return err
	}
	b.keys.Use(sourcesOf(configured.Issuers))
	ended := make(map[string]bool, len(set.GetEnded()))
	for _, t := range set.GetEnded() {
		ended[t.GetName()] = true
	}
	b.configured, b.stored = configured, stored
	b.ended.Store(&ended)
	b.set.Store(set)
	b.changes.notify()
	return nil
}

// publishKeys sends the keys of the issuers to the watchers after they have changed.
func (b *tokenBook) publishKeys() {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.publish(b.configured, b.stored) // never fails: the keys were checked when they were fetched
}

func (b *tokenBook) identities() Identities {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.configured
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
		if stored.Valid[i].CreatedByTenant == t.GetTenant() { // people of other tenants can't approve its calls
			t.CreatedBy = stored.Valid[i].CreatedBy
		}
		if !names[t.GetName()] && !hashes[string(stored.Valid[i].SHA256[:])] && len(t.GetGroups()) <= maxGroups {
			set.Tokens = append(set.Tokens, &identityv1.TokenRecord{Token: t, Sha256: stored.Valid[i].SHA256[:]})
		}
	}
	for i := range stored.Ended {
		t := &stored.Ended[i]
		if !hashes[string(t.SHA256[:])] && !names[t.Name] {
			set.Ended = append(set.Ended, &identityv1.EndedToken{Sha256: t.SHA256[:], Name: t.Name, Revoked: !t.Revoked.IsZero()})
		}
	}
	return set
}

// groupsOf returns the groups of a stored token, which are its own groups and the groups of its subject.
func (i Identities) groupsOf(t *identityv1.Token) []string {
	f := config.File{Groups: i.Groups}
	return f.GroupsOf(config.Token{Tenant: t.GetTenant(), Subject: t.GetSubject(), Groups: t.GetGroups()})
}

func packToken(t *store.Token) *identityv1.Token {
	return &identityv1.Token{
		Name: t.Name, Tenant: t.Tenant, Subject: t.Subject, Agent: t.Agent, Owner: t.Owner, Groups: t.Groups, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Created: packTime(t.Created), Expires: packTime(t.Expires),
	}
}

// packTime returns nil for the zero time.
func packTime(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// packListed converts a token to the message that a caller receives. People in tenants other than "default" do not get
// the names of other tenants' operators.
func packListed(t *store.Token, caller *authn.Caller) *identityv1.Token {
	out := packToken(t)
	out.LastUsed, out.Revoked = packTime(t.LastUsed), packTime(t.Revoked)
	if caller.Tenant() == homeTenant || caller.Tenant() == t.CreatedByTenant {
		out.CreatedBy = t.CreatedBy
	}
	if caller.Tenant() == homeTenant || caller.Tenant() == t.RevokedByTenant {
		out.RevokedBy = t.RevokedBy
	}
	return out
}

// readTokens reads the stored tokens if they have changed, and makes them valid.
func (s *Service) readTokens(ctx context.Context) error {
	set, err := s.store.TokensSince(ctx, s.tokens.version())
	if err == nil {
		err = s.publishTokens(set)
	}
	if err != nil {
		return fmt.Errorf("read the tokens: %w", err)
	}
	return nil
}

// publishTokens makes stored tokens valid, unless a newer version of the tokens is already valid. It starts a new
// epoch, so that gateways no longer use cached decisions on callers whose tokens were revoked or have expired.
func (s *Service) publishTokens(set store.TokenSet) error {
	if changed, err := s.tokens.store(set); err != nil || !changed {
		return err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	next := *s.active.Load()
	next.number++
	s.active.Store(&next)
	s.changes.notify()
	return nil
}

// refusesToken returns the decision that refuses a call if the caller's token was revoked or has expired. Otherwise it
// returns nil. The check is needed because a gateway that was suspended may not know yet that the token is invalid.
func (s *Service) refusesToken(set *activeSet, caller *identityv1.Principal) *policyv1.Decision {
	if caller.GetTokenId() == "" || !s.tokens.hasEnded(caller.GetTokenId()) {
		return nil
	}
	return &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_UNAUTHENTICATED, PolicyRevision: set.Revision(),
		Message: "the token of this caller was revoked or has expired: ask an operator for another one.",
	}
}

// recordUses stores when tokens were used, as far as this process has seen the uses, until ctx is done. If the gateway
// runs in the same process, it sees all uses.
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

// storeUses stores the times at which tokens were last used. It replaces a time in the future, which can occur because
// the clocks of services may differ, with the current time.
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
