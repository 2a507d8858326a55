// Package reach caches what callers may see and use on servers. It asks policy once for each caller, server and
// revision. Listings and sessions use it.
package reach

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// peerTimeout limits the request to policy, as in package attempt.
	peerTimeout = 2 * time.Second
	// maxKept is how many answers are cached for one principal and those that act for it, and maxOwners is for how
	// many principals. If either is exceeded, answers are dropped and policy is asked again.
	maxKept   = 256
	maxOwners = 10_000
)

// Standing is what a caller may see and use on a server. The zero value allows nothing.
type Standing struct {
	// Some reports that some call could be allowed, at once or with an approval. If it is false, nothing of the
	// caller may reach the server.
	Some bool
	// HidesNone reports that no tool is hidden from the caller.
	HidesNone bool
	// PromptsAlike and ResourcesAlike report that no rule distinguishes prompts, or resources, by name: lists of them
	// are passed on unchanged.
	PromptsAlike, ResourcesAlike bool
	// Methods are those of [mcp.OfferedMethods] that policy does not deny to the caller.
	Methods []string
	// Hidden reports that the server must be answered like a server that does not exist: the caller can use nothing
	// of it, policy hides something of it, and no list shows the caller a tool.
	Hidden bool
	// Revision is the policy revision of the answer, in hex.
	Revision string

	others *others
}

// others caches whether methods other than the offered ones could be allowed. It is safe for concurrent use.
type others struct {
	mu sync.Mutex
	by map[string]bool
}

// maxOthers limits the methods that are cached for one caller on one server, because a server may invent them.
const maxOthers = 256

// Reach asks policy and caches the answers. It is safe for concurrent use.
type Reach struct {
	policy   policyv1.PolicyServiceClient
	revision func() string

	mu sync.Mutex
	by map[principal.Key]map[string]Standing
}

// New returns a Reach with an empty cache, or an error if an argument is nil. revision returns the active revision,
// empty if none is known; cached answers count for that revision only.
func New(policy policyv1.PolicyServiceClient, revision func() string) (*Reach, error) {
	if policy == nil || revision == nil {
		return nil, errors.New("reach: every dependency is required")
	}
	return &Reach{policy: policy, revision: revision, by: make(map[principal.Key]map[string]Standing)}, nil
}

// Of returns what a principal may see and use on a server. An error means that policy cannot be asked, so nothing may
// pass.
func (r *Reach) Of(ctx context.Context, p *identityv1.Principal, server string) (Standing, error) {
	active := r.revision()
	var space [256]byte
	who, key := principal.Root(p), AppendKey(space[:0], p, server)
	if kept, ok := r.kept(who, key); ok && active != "" && kept.Revision == active {
		return kept, nil
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, p), peerTimeout)
	defer cancel()
	resp, err := r.policy.CheckServer(ctx, &policyv1.CheckServerRequest{Server: server, Methods: mcp.OfferedMethods()})
	if err != nil {
		return Standing{}, err
	}
	said := Standing{
		Some: resp.GetCouldAllow(), HidesNone: resp.GetHidesNone(), Methods: resp.GetMethods(), Revision: resp.GetPolicyRevision(),
		PromptsAlike: resp.GetPromptsAlike(), ResourcesAlike: resp.GetResourcesAlike(),
	}
	said.Hidden = !said.Some && !said.HidesNone && !resp.GetCouldList()
	said.others = &others{by: make(map[string]bool)}
	r.keep(who, key, said)
	return said, nil
}

// May reports whether a method other than the offered ones could be allowed to a principal on a server. It returns
// false if policy cannot be asked, or was asked about too many methods.
func (r *Reach) May(ctx context.Context, p *identityv1.Principal, server, method string) bool {
	said, err := r.Of(ctx, p, server)
	if err != nil || !said.Some || said.others == nil {
		return false
	}
	o := said.others
	o.mu.Lock()
	may, known := o.by[method]
	known = known || len(o.by) >= maxOthers
	if !known {
		o.by[method] = false // while policy is asked; concurrent calls do not wait
	}
	o.mu.Unlock()
	if known {
		return may
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, p), peerTimeout)
	defer cancel()
	resp, err := r.policy.CheckServer(ctx, &policyv1.CheckServerRequest{Server: server, Methods: []string{method}})
	if err != nil {
		time.AfterFunc(askAgain, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.by, method)
		})
		return false
	}
	may = resp.GetCouldAllow() && slices.Contains(resp.GetMethods(), method)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by[method] = may
	return may
}

// Hides reports whether a server must be answered to a principal like a server that does not exist. If policy cannot
// be asked, or stale says that it must not be, the last answer for the principal counts; without one, Hides returns
// false.
func (r *Reach) Hides(ctx context.Context, p *identityv1.Principal, server string, stale bool) bool {
	if !stale {
		if said, err := r.Of(ctx, p, server); err == nil {
			return said.Hidden
		}
	}
	var space [256]byte
	said, _ := r.kept(principal.Root(p), AppendKey(space[:0], p, server))
	return said.Hidden
}

// askAgain is how long a method counts as not allowed after policy could not be asked about it.
const askAgain = 5 * time.Second

func (r *Reach) kept(who principal.Key, key []byte) (Standing, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said, ok := r.by[who][string(key)]
	return said, ok
}

func (r *Reach) keep(who principal.Key, key []byte, said Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.by) >= maxOwners && r.by[who] == nil {
		clear(r.by)
	}
	if kept := r.by[who]; kept == nil || len(kept) >= maxKept {
		r.by[who] = make(map[string]Standing)
	}
	r.by[who][string(key)] = said
}

// AppendKey appends a key that is the same for principals which policy cannot distinguish on a server: policy sees
// neither tokens nor owners, and the names of sessions and runs allow nothing.
func AppendKey(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = appendJudged(AppendPart(dst, server), p)
	for _, behind := range p.GetChain() {
		dst = appendJudged(dst, behind)
	}
	return dst
}

// AppendCaller appends a key that stays the same for a caller on a server when the caller's groups change.
func AppendCaller(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = AppendPart(dst, server)
	for _, who := range slices.Concat([]*identityv1.Principal{p}, p.GetChain()) {
		dst = AppendPart(AppendPart(AppendPart(dst, who.GetTenant()), who.GetSubject()), who.GetAgent())
	}
	return dst
}

// appendJudged appends the parts of a principal that policy considers.
func appendJudged(dst []byte, p *identityv1.Principal) []byte {
	dst = AppendPart(dst, p.GetTenant())
	dst = AppendPart(dst, p.GetSubject())
	dst = AppendPart(dst, p.GetAgent())
	dst = append(strconv.AppendInt(dst, int64(len(p.GetGroups())), 10), ':')
	for _, g := range p.GetGroups() {
		dst = AppendPart(dst, g)
	}
	return dst
}

// AppendPart appends a text after its length, so that different sequences of texts have different keys.
func AppendPart[T string | []byte](dst []byte, text T) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	dst = append(dst, ':')
	return append(dst, text...)
}
