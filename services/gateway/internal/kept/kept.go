// Package kept uses decisions of policy again, as long as policy lets it: those that carry
// the epoch on which this gateway has a lease.
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
	// askedAnyway is of how many questions with a kept answer one is asked all the same.
	askedAnyway = 1000
	// maxEach is how many decisions are kept for one principal and all that act for it, and
	// maxAll for all together. maxKey is how long the names in a question may be.
	maxEach = 1024
	maxAll  = 100_000
	maxKey  = 2048
	// idleAfter is how long a principal asks nothing until its decisions are forgotten.
	idleAfter = time.Minute
)

// Deps are the live objects that [Decisions] work with. Every field is required.
type Deps struct {
	Policy policyv1.PolicyServiceClient
	Meters *meters.Meters
	Log    *slog.Logger
}

// Decisions are those that policy has made. Without a lease, which [Decisions.Run] keeps up,
// none is used. They are safe for concurrent use.
type Decisions struct {
	deps Deps
	// off says that none is used.
	off   bool
	clock func() instant

	epoch atomic.Pointer[epoch]
	heard atomic.Pointer[heard]
}

// An epoch is what decisions are made from, and the decisions that were.
type epoch struct {
	name, revision string
	// until is when the lease ends; nil where there is none.
	until atomic.Pointer[instant]

	mu     sync.Mutex
	shares map[principal.Key]*share
	all    int
}

// A share is what is kept for a principal. Of a question that depends on sessions there is
// an entry without a decision, and one with it for each session.
type share struct {
	entries map[string]*policyv1.Decision
	used    instant
}

// New returns decisions of which there are none. Where off is set there never are.
func New(deps Deps, off bool) (*Decisions, error) {
	if deps.Policy == nil || deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("kept: every dependency is required")
	}
	return &Decisions{deps: deps, off: off, clock: now}, nil
}

// A Question is what policy is asked about a call, beside its arguments.
type Question struct {
	// Principal is on whose behalf.
	Principal *identityv1.Principal
	// Method, Server and Name are what is called, and Ref is what the name is of.
	Method, Server, Name, Ref string
	// Definition is the digest of the tool's definition; nil where none is known.
	Definition []byte
}

// holder is for whom what is kept counts: who stands behind all that act here.
func (q *Question) holder() principal.Key {
	if chain := q.Principal.GetChain(); len(chain) > 0 {
		return principal.Of(chain[len(chain)-1])
	}
	return principal.Of(q.Principal)
}

// appendKey appends all that a decision depends on which depends on no session. How long the
// chain is stands first, so that no two questions become one.
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

// appendSessions appends what a decision depends on beside that.
func (q *Question) appendSessions(dst []byte) []byte {
	dst = reach.AppendPart(reach.AppendPart(dst, q.Principal.GetSession()), q.Principal.GetRun())
	for _, behind := range q.Principal.GetChain() {
		dst = reach.AppendPart(reach.AppendPart(dst, behind.GetSession()), behind.GetRun())
	}
	return dst
}

// Find returns the decision on a call; nil where policy has to be asked: none is kept that
// may be used now, the call's trace is to show who decided, or it is this one's turn to be
// asked all the same. A decision is read-only.
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

// Keep takes policy's answer to a question, and returns the decision that counts. That is
// the answer's, unless another one is kept of the same epoch: then something is wrong, which
// is logged and counted, all that is kept is forgotten, and the stricter one counts.
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
	d.deps.Log.ErrorContext(ctx, "policy decides otherwise than it did in the same epoch; what was kept is forgotten",
		"server", q.Server, "revision", decision.GetPolicyRevision(), "kept", kept.GetEffect().String(), "decided", decision.GetEffect().String())
	return stricter(kept, decision)
}

// keep keeps a decision unless there is one, which it returns then.
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

// put puts an entry in a share, in place of another one of it where that has its number. The
// lock is held.
func (e *epoch) put(s *share, key string, decision *policyv1.Decision) {
	if _, ok := s.entries[key]; !ok {
		if len(key) > maxKey {
			return
		}
		if len(s.entries) >= maxEach {
			for other := range s.entries { // any will do
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

// forget forgets what is kept for those who have asked nothing of late.
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

// stricter is the decision that lets less through. Where that can't be told of two that let
// the call go on, it is a refusal.
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
