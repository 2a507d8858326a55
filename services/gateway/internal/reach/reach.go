// Package reach knows what callers could come by on servers: nothing at all, or
// something that a call may be allowed. It asks policy once for each caller, server
// and revision.
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
	// peerTimeout bounds the question, as it does in the pipeline.
	peerTimeout = 2 * time.Second
	// maxKept is how many answers of one principal are kept, and maxOwners for how
	// many principals. What is beyond is asked again.
	maxKept   = 256
	maxOwners = 10_000
)

// Standing is what a caller could come by on a server. The zero value is the
// strictest.
type Standing struct {
	// Some says that some call could be allowed, or held for people. Where it is
	// false, nothing of the caller's is to reach the server.
	Some bool
	// HidesNone says that no tool is hidden from the caller.
	HidesNone bool
	// PromptsAlike and ResourcesAlike say that no rule tells prompts, or resources, apart by
	// what they are called: lists of them go out as they are.
	PromptsAlike, ResourcesAlike bool
	// Methods are those of [mcp.OfferedMethods] that are not denied to the caller.
	Methods []string
	// Hidden says that the server is to be answered as one that does not exist: the caller can use nothing of it, policy
	// hides something of it, and no list shows the caller a tool.
	Hidden bool
	// Revision is the one that judged, in hex.
	Revision string

	others *others
}

// others are methods beside the offered ones, and whether they could be allowed. It is safe for concurrent
// use.
type others struct {
	mu sync.Mutex
	by map[string]bool
}

// maxOthers is how many are known for one caller on one server: a server may make them up.
const maxOthers = 256

// Reach asks policy and keeps what it says. It is safe for concurrent use.
type Reach struct {
	policy   policyv1.PolicyServiceClient
	revision func() string

	mu sync.Mutex
	by map[principal.Key]map[string]Standing
}

// New returns a reach that has asked nothing. The revision is the active one as far
// as is known, empty where none is: what is kept counts for that one alone.
func New(policy policyv1.PolicyServiceClient, revision func() string) (*Reach, error) {
	if policy == nil || revision == nil {
		return nil, errors.New("reach: every dependency is required")
	}
	return &Reach{policy: policy, revision: revision, by: make(map[principal.Key]map[string]Standing)}, nil
}

// Of says what a principal could come by on a server. An error means that policy
// can't be asked, and so that nothing may pass.
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

// May reports whether a method beside the offered ones could be allowed to a principal on a server. Where it
// can't be known it may not, nor where policy was asked about too many.
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
		o.by[method] = false // while policy is asked, which nobody waits for twice
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

// Hides reports whether a server is to be answered to a principal as one that does not exist. If policy can't be asked,
// or stale says that it is not to be, what it said last of the principal there counts; if it said nothing, false.
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

// askAgain is for how long a method may not that policy was asked about in vain.
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

// AppendKey appends what is the same for principals that policy can't tell apart on a
// server: it sees neither tokens nor owners, and what a session or run is called allows
// nothing.
func AppendKey(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = appendJudged(AppendPart(dst, server), p)
	for _, behind := range p.GetChain() {
		dst = appendJudged(dst, behind)
	}
	return dst
}

// AppendCaller appends what is the same for one caller on a server, whatever groups it is in by now.
func AppendCaller(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = AppendPart(dst, server)
	for _, who := range slices.Concat([]*identityv1.Principal{p}, p.GetChain()) {
		dst = AppendPart(AppendPart(AppendPart(dst, who.GetTenant()), who.GetSubject()), who.GetAgent())
	}
	return dst
}

// appendJudged appends the parts of a principal that policy looks at.
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

// AppendPart appends a text and, before it, how long it is: no two texts become one.
func AppendPart[T string | []byte](dst []byte, text T) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	dst = append(dst, ':')
	return append(dst, text...)
}
