// Package reach knows what callers could come by on servers: nothing at all, or
// something that a call may be allowed. It asks policy once for each caller, server
// and revision.
package reach

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	// peerTimeout bounds the question, as it does in the pipeline.
	peerTimeout = time.Second
	// maxKept is how many answers of one principal are kept, and maxOwners for how
	// many principals. What is beyond is asked anew.
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
	// Revision is the one that judged, in hex.
	Revision string
}

// Reach asks policy and keeps what it says. It is safe for concurrent use.
type Reach struct {
	policy   policyv1.PolicyServiceClient
	revision func() string

	mu sync.Mutex
	by map[owner]map[string]Standing
}

// owner is a principal, whatever token or session it uses.
type owner struct{ tenant, subject string }

// New returns a reach that has asked nothing. The revision is the active one as far
// as is known, empty where none is: what is kept counts for that one alone.
func New(policy policyv1.PolicyServiceClient, revision func() string) (*Reach, error) {
	if policy == nil || revision == nil {
		return nil, errors.New("reach: every dependency is required")
	}
	return &Reach{policy: policy, revision: revision, by: make(map[owner]map[string]Standing)}, nil
}

// Of says what a principal could come by on a server. An error means that policy
// can't be asked, and so that nothing may pass.
func (r *Reach) Of(ctx context.Context, p *identityv1.Principal, server string) (Standing, error) {
	active := r.revision()
	who, key := owner{p.GetTenant(), p.GetSubject()}, Key(p, server)
	if kept, ok := r.kept(who, key); ok && active != "" && kept.Revision == active {
		return kept, nil
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, p), peerTimeout)
	defer cancel()
	resp, err := r.policy.CheckServer(ctx, &policyv1.CheckServerRequest{Server: server})
	if err != nil {
		return Standing{}, err
	}
	said := Standing{Some: resp.GetCouldAllow(), HidesNone: resp.GetHidesNone(), Revision: resp.GetPolicyRevision()}
	r.keep(who, key, said)
	return said, nil
}

func (r *Reach) kept(who owner, key string) (Standing, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said, ok := r.by[who][key]
	return said, ok
}

func (r *Reach) keep(who owner, key string, said Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.by) >= maxOwners && r.by[who] == nil {
		clear(r.by)
	}
	if kept := r.by[who]; kept == nil || len(kept) >= maxKept {
		r.by[who] = make(map[string]Standing)
	}
	r.by[who][key] = said
}

// Key is the same for principals that policy can't tell apart on a server: it sees
// neither tokens nor owners, and what a session or run is called allows nothing.
func Key(p *identityv1.Principal, server string) string {
	var b strings.Builder
	b.Grow(128)
	part := func(s string) {
		b.WriteString(strconv.Itoa(len(s)))
		b.WriteByte(':')
		b.WriteString(s)
	}
	part(server)
	judged(p, part)
	for _, behind := range p.GetChain() {
		judged(behind, part)
	}
	return b.String()
}

// judged passes on the parts of a principal that policy looks at.
func judged(p *identityv1.Principal, part func(string)) {
	part(p.GetTenant())
	part(p.GetSubject())
	part(p.GetAgent())
	part(strconv.Itoa(len(p.GetGroups())))
	for _, g := range p.GetGroups() {
		part(g)
	}
}
