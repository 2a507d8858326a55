// Package kept caches decisions of policy. A cached decision is used only while this gateway has a lease on the epoch
// of the policy role in which it was made. Package attempt uses it.
package kept

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// askedAnyway is of how many lookups one asks policy although a decision may be cached, so that the two are
	// compared.
	askedAnyway = 1000
	// maxEach is how many decisions are cached for one principal and all that act for it, and maxAll is how many are
	// cached in all. maxKey is the length in bytes up to which a question's key is cached.
	maxEach = 1024
	maxAll  = 100_000
	maxKey  = 2048
	// idleAfter is after how long without a lookup the decisions for a principal are removed.
	idleAfter = time.Minute
)

// Deps are the dependencies of [Decisions]. Every field is required.
type Deps struct {
	Policy policyv1.PolicyServiceClient
	Meters *meters.Meters
	Log    *slog.Logger
}

// Decisions caches decisions of policy. It uses them only with a lease, which [Decisions.Run] renews. It is safe for
// concurrent use.
type Decisions struct {
	deps Deps
	// off disables the cache.
	off   bool
	clock func() instant

	epoch atomic.Pointer[epoch]
	heard atomic.Pointer[heard]
}

// epoch is a state of what policy decides from, with the decisions that were made in it.
type epoch struct {
	name, revision string
	// until is when the lease ends; nil if there is no lease.
	until atomic.Pointer[instant]

	mu     sync.Mutex
	shares map[principal.Key]*share
	all    int
}

// share is what is cached for one principal. A decision that depends on sessions has an entry without a decision,
// which marks that, and one entry with a decision for each session.
type share struct {
	entries map[string]*policyv1.Decision
	used    instant
}

// New returns an empty cache, or an error if a dependency is missing. If off is set, it stays empty.
func New(deps Deps, off bool) (*Decisions, error) {
	if deps.Policy == nil || deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("kept: every dependency is required")
	}
	return &Decisions{deps: deps, off: off, clock: now}, nil
}

// A Question is what policy is asked about a call, apart from its arguments.
type Question struct {
	// Principal is the caller.
	Principal *identityv1.Principal
	// Method, Server and Name say what is called, and Ref says what Name refers to.
	Method, Server, Name, Ref string
	// Definition is the digest of the tool's definition; nil if none is known.
	Definition []byte
}

// holder returns the principal whose quota of the cache is used: the last of the chain, for which all others act.
func (q *Question) holder() principal.Key {
	if chain := q.Principal.GetChain(); len(chain) > 0 {
		return principal.Of(chain[len(chain)-1])
	}
	return principal.Of(q.Principal)
}

// appendKey appends everything that a decision depends on, except sessions. The length of the chain comes first, so
// that no two different questions have the same key.
func (q *Question) appendKey(dst []byte) []byte {
	dst = append(strconv.AppendInt(dst, int64(len(q.Principal.GetChain())), 10), ':')
	dst = reach.AppendKey(dst, q.Principal, q.Server)
	dst = reach.AppendPart(dst, q.Principal.GetOwner())
	for _, behind := range q.Principal.GetChain() {
		dst = reach.AppendPart(dst, behind.GetOwner())
	}
	dst = reach.AppendPart(reach.AppendPart(dst, q.Method), q.Name)
	return reach.AppendPart(reach.AppendPart(dst, q.Ref), q.Definition)
}

// appendSessions appends the sessions and runs that a decision may depend on.
func (q *Question) appendSessions(dst []byte) []byte {
	dst = reach.AppendPart(reach.AppendPart(dst, q.Principal.GetSession()), q.Principal.GetRun())
	for _, behind := range q.Principal.GetChain() {
		dst = reach.AppendPart(reach.AppendPart(dst, behind.GetSession()), behind.GetRun())
	}
	return dst
}

// Find returns the cached decision on a call. It returns nil if policy must be asked: if no usable decision is
// cached, if the call's trace is sampled and is to show the policy service, or for one of 1000 lookups to compare.
// Callers must not change the decision.
func (d *Decisions) Find(ctx context.Context, q Question) *policyv1.Decision {
	e := d.epoch.Load()
	if e == nil || d.off || rand.IntN(askedAnyway) == 0 || trace.SpanContextFromContext(ctx).IsSampled() { //nolint:gosec // nobody gains by guessing it
		return nil
	}
	now := d.clock()
	if !e.leased(now) {
		return nil
	}
	return e.find(&q, now)
}

// leased reports whether decisions of the epoch may be used.
func (e *epoch) leased(now instant) bool {
	until := e.until.Load()
	return until != nil && !now.reaches(*until)
}

func (e *epoch) find(q *Question, now instant) *policyv1.Decision {
	var space [512]byte
	key := q.appendKey(space[:0])
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shares[q.holder()]
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

// Keep caches policy's answer to a question, and returns the decision that counts. That is the answer's, unless the
// cache has a different one of the same epoch. Such a difference is an error: it is logged and counted, the cache is
// cleared, and the stricter of the two decisions counts.
func (d *Decisions) Keep(ctx context.Context, q Question, resp *policyv1.DecideCallResponse) *policyv1.Decision {
	decision, keeping := resp.GetDecision(), resp.GetKeeping()
	e := d.epoch.Load()
	if e == nil || d.off || e.name == "" || keeping.GetEpoch() != e.name || decision == nil {
		return decision
	}
	kept := e.keep(&q, decision, keeping.GetBySession(), d.clock())
	if kept == nil || proto.Equal(kept, decision) {
		return decision
	}
	e.clear()
	d.deps.Meters.Differed(ctx)
	d.deps.Log.ErrorContext(ctx, "policy decides differently than before in the same epoch; the cached decisions are dropped",
		"server", q.Server, "revision", decision.GetPolicyRevision(), "kept", kept.GetEffect().String(), "decided", decision.GetEffect().String())
	return stricter(kept, decision)
}

// keep caches a decision unless there is one already, which it returns then.
func (e *epoch) keep(q *Question, decision *policyv1.Decision, bySession bool, now instant) *policyv1.Decision {
	var space [512]byte
	key := q.appendKey(space[:0])
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shares[q.holder()]
	if s == nil {
		s = &share{entries: make(map[string]*policyv1.Decision)}
		e.shares[q.holder()] = s
	}
	s.used = now
	if bySession {
		e.put(s, string(key), nil)
		key = q.appendSessions(key)
	}
	if kept := s.entries[string(key)]; kept != nil {
		return kept
	}
	e.put(s, string(key), decision)
	return nil
}

// put adds an entry to a share. If the share is full, put replaces one of its entries. The caller holds the lock.
func (e *epoch) put(s *share, key string, decision *policyv1.Decision) {
	if _, ok := s.entries[key]; !ok {
		if len(key) > maxKey {
			return
		}
		if len(s.entries) >= maxEach {
			for other := range s.entries { // any of them
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
	clear(e.shares)
	e.all = 0
}

// forget removes the decisions for principals whose last lookup is longer ago than idleAfter.
func (e *epoch) forget(now instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for who, s := range e.shares {
		if now.even-s.used.even > idleAfter {
			e.all -= len(s.entries)
			delete(e.shares, who)
		}
	}
}

// stricter returns the decision that lets less through. Of two different decisions with the same effect that do not
// deny the call, it returns a denial.
func stricter(a, b *policyv1.Decision) *policyv1.Decision {
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
			Message: "policy gave two answers to the same question; make the call again.",
		}
	}
}
