// Package decisioncache caches decisions of the policy service. A policy epoch is a period during which the data that
// determines decisions does not change. The gateway uses a cached decision only while the policy service has confirmed,
// with a lease, that the epoch of the decision has not ended.
package decisioncache

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// verifyOneIn controls how often cached decisions are verified. On average, one of verifyOneIn lookups asks the
	// policy service although a decision is cached, so that the two decisions can be compared.
	verifyOneIn = 1000
	// maxPerPerson is the maximum number of cached decisions for one person and the agents that act for that person.
	// maxAll is the maximum total number of cached decisions. maxKey is the maximum length of a cache key, in bytes.
	maxPerPerson = 1024
	maxAll       = 100_000
	maxKey       = 2048
	// idleAfter is how long a person's decisions are kept after the last lookup for that person.
	idleAfter = time.Minute
)

// Deps are the dependencies of a [Cache]. Every field is required.
type Deps struct {
	Policy policyv1.PolicyServiceClient
	Meters *meters.Meters
	Log    *slog.Logger
}

// Cache caches decisions of the policy service. It uses them only while it has a lease, which [Cache.Run] renews. A
// Cache is safe for concurrent use.
type Cache struct {
	deps  Deps
	off   bool
	clock func() instant

	epoch    atomic.Pointer[epoch]
	received atomic.Pointer[lastMessage]
}

type epoch struct {
	name, revision string
	scopes         serverScopes
	// until is when the lease on this epoch expires, or nil if there is no lease.
	until atomic.Pointer[instant]

	mu     sync.Mutex
	people map[principal.Key]*personEntries
	all    int
}

// personEntries contains the cached decisions for one person and that person's agents. If a decision depends on the
// session, there is one entry for each session. A further entry without a decision marks this dependency.
type personEntries struct {
	entries map[string]*policyv1.Decision
	used    instant
}

// New returns an empty cache, or an error if a dependency is missing. If off is true, the cache stays empty, and the
// gateway asks the policy service about every call.
func New(deps Deps, off bool) (*Cache, error) {
	if deps.Policy == nil || deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("decisioncache: every dependency is required")
	}
	return &Cache{deps: deps, off: off, clock: now}, nil
}

// Query identifies a call that needs a decision. It does not contain the call's arguments.
type Query struct {
	// Principal is the caller.
	Principal *identityv1.Principal
	// Method, Server and Name identify the target of the call. Ref is the reference type of a completion; it determines
	// whether Name is the name of a prompt or of a resource.
	Method, Server, Name, Ref string
	// Definition is the digest of the tool's definition, or nil if the definition is not known.
	Definition []byte
}

// owner returns the key of the person who owns the query's cache entries. All agents of a person share that person's
// entries, so that a person with many agents can't fill the cache.
func (q *Query) owner() principal.Key { return principal.Root(q.Principal) }

// appendKey appends to dst all values on which a decision depends, except sessions and runs. The length of the
// delegation chain comes first, so that different queries always have different keys.
func (q *Query) appendKey(dst []byte) []byte {
	dst = append(strconv.AppendInt(dst, int64(len(q.Principal.GetChain())), 10), ':')
	dst = visibility.AppendKey(dst, q.Principal, q.Server)
	dst = visibility.AppendPart(visibility.AppendPart(dst, q.Principal.GetOwner()), q.Principal.GetPerson())
	for _, owner := range q.Principal.GetChain() {
		dst = visibility.AppendPart(visibility.AppendPart(dst, owner.GetOwner()), owner.GetPerson())
	}
	dst = visibility.AppendPart(visibility.AppendPart(dst, q.Method), q.Name)
	return visibility.AppendPart(visibility.AppendPart(dst, q.Ref), q.Definition)
}

// appendSessions appends to dst the sessions and runs on which a decision may depend.
func (q *Query) appendSessions(dst []byte) []byte {
	dst = visibility.AppendPart(visibility.AppendPart(dst, q.Principal.GetSession()), q.Principal.GetRun())
	for _, owner := range q.Principal.GetChain() {
		dst = visibility.AppendPart(visibility.AppendPart(dst, owner.GetSession()), owner.GetRun())
	}
	return dst
}

// Get returns the cached decision on a call, or nil if the gateway must ask the policy service. It returns nil if no
// usable decision is cached. If the call's trace is sampled, Get also returns nil, so that the trace shows the request
// to the policy service. On average, Get also returns nil for one in 1000 lookups, so that the cached decision is
// verified. Callers must not modify the decision.
func (d *Cache) Get(ctx context.Context, q Query) *policyv1.Decision {
	e := d.epoch.Load()
	if e == nil || d.off || rand.IntN(verifyOneIn) == 0 || trace.SpanContextFromContext(ctx).IsSampled() { //nolint:gosec // an attacker gains nothing by predicting the lookups
		return nil
	}
	now := d.clock()
	if !e.isLeased(now) {
		return nil
	}
	return e.get(&q, now)
}

// isLeased reports whether decisions of the epoch may be used at the given time.
func (e *epoch) isLeased(now instant) bool {
	until := e.until.Load()
	return until != nil && !now.reaches(*until)
}

func (e *epoch) get(q *Query, now instant) *policyv1.Decision {
	var space [512]byte
	key := q.appendKey(space[:0])
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.people[q.owner()]
	if s == nil {
		return nil
	}
	s.used = now
	found, ok := s.entries[string(key)]
	if ok && found == nil {
		found = s.entries[string(q.appendSessions(key))]
	}
	return found
}

// Put caches the policy service's response to a query, and returns the decision to apply. This is usually the decision
// in the response. If the cache contains a different decision of the same epoch, Put logs and counts an error, clears
// the cache, and returns the stricter of the two decisions. When it compares how strict they are, Put ignores rules
// that are only recorded and not enforced (mode: observe), because these rules refuse nothing.
func (d *Cache) Put(ctx context.Context, q Query, resp *policyv1.DecideCallResponse) *policyv1.Decision {
	decision, keeping := resp.GetDecision(), resp.GetKeeping()
	e := d.epoch.Load()
	if e == nil || d.off || e.name == "" || keeping.GetEpoch() != e.name || decision == nil {
		return decision
	}
	cached := e.putIfAbsent(&q, decision, keeping.GetBySession(), d.clock())
	if cached == nil || proto.Equal(cached, decision) {
		return decision
	}
	e.clear()
	d.deps.Meters.CountCacheMismatch(ctx)
	d.deps.Log.ErrorContext(ctx, "policy decides differently than before in the same epoch; the cached decisions are dropped",
		"server", q.Server, "revision", decision.GetPolicyRevision(), "kept", cached.GetEffect().String(), "decided", decision.GetEffect().String())
	return stricter(cached, decision)
}

// putIfAbsent caches a decision and returns nil. If a decision is already cached, it returns that decision instead.
func (e *epoch) putIfAbsent(q *Query, decision *policyv1.Decision, bySession bool, now instant) *policyv1.Decision {
	var space [512]byte
	key := q.appendKey(space[:0])
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.people[q.owner()]
	if s == nil {
		s = &personEntries{entries: make(map[string]*policyv1.Decision)}
		e.people[q.owner()] = s
	}
	s.used = now
	if bySession {
		e.insert(s, string(key), nil)
		key = q.appendSessions(key)
	}
	if cached := s.entries[string(key)]; cached != nil {
		return cached
	}
	e.insert(s, string(key), decision)
	return nil
}

// insert adds an entry to a person's entries. If the person already has the maximum number of entries, insert first
// removes an arbitrary one of them. If the key is too long or the cache is full, insert does nothing. The caller must
// hold the lock.
func (e *epoch) insert(s *personEntries, key string, decision *policyv1.Decision) {
	if _, ok := s.entries[key]; !ok {
		if len(key) > maxKey {
			return
		}
		if len(s.entries) >= maxPerPerson {
			for other := range s.entries { // an arbitrary entry
				delete(s.entries, other)
				e.all--
				break
			}
		}
		if e.all >= maxAll {
			return
		}
		e.all++
	}
	s.entries[key] = decision
}

func (e *epoch) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.people)
	e.all = 0
}

// forget removes the decisions of each person whose last lookup was more than idleAfter ago.
func (e *epoch) forget(now instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, s := range e.people {
		if now.monotonic-s.used.monotonic > idleAfter {
			e.all -= len(s.entries)
			delete(e.people, key)
		}
	}
}

func withoutObserved(d *policyv1.Decision) *policyv1.Decision {
	out := proto.CloneOf(d)
	out.Observed = nil
	return out
}

// stricter returns the more restrictive of two decisions. If the decisions differ but are equally restrictive, stricter
// returns a denial. If they differ only in rules that are only recorded and not enforced (mode: observe), stricter
// returns b.
func stricter(a, b *policyv1.Decision) *policyv1.Decision {
	if proto.Equal(withoutObserved(a), withoutObserved(b)) {
		return b
	}
	strictness := func(d *policyv1.Decision) int {
		switch d.GetEffect() {
		case policyv1.Effect_EFFECT_ALLOW:
			return 0
		case policyv1.Effect_EFFECT_REQUIRE_APPROVAL:
			return 1
		case policyv1.Effect_EFFECT_DENY, policyv1.Effect_EFFECT_UNSPECIFIED:
		}
		return 2
	}
	switch {
	case strictness(a) > strictness(b):
		return a
	case strictness(a) < strictness(b), strictness(b) == 2:
		return b
	default:
		return &policyv1.Decision{
			Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, PolicyRevision: b.GetPolicyRevision(),
			Message: "policy made two different decisions on the same call; make the call again.",
		}
	}
}
