// Package visibility determines what callers may see and use on servers. It asks the policy service, and caches the
// responses for each caller, server and policy revision.
package visibility

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// policyTimeout is the timeout of one request to the policy service.
	policyTimeout = 2 * time.Second
	// maxCached limits for how many servers responses are cached for one principal and the principals that act for it.
	// maxOwners limits for how many principals responses are cached. If a limit is exceeded, cached responses are
	// removed, and the policy service is asked again when they are needed.
	maxCached = 256
	maxOwners = 10_000
	// maxMethods limits for how many methods responses are cached for one caller on one server. The limit is necessary
	// because a server can send notifications with any method.
	maxMethods = 256
	// retryAfter is how long a method is treated as not allowed after a request to the policy service about the method
	// has failed.
	retryAfter = 5 * time.Second
)

// The methods of [Visibility] return these errors. Compare them with errors.Is.
var (
	// ErrPolicy means that the policy service has given no usable answer. The caller must be treated as if the policy
	// allowed nothing.
	ErrPolicy = errors.New("policy could not be asked what the caller may see")
	// ErrBusy means that too many lists are being filtered for the caller.
	ErrBusy = errors.New("too many lists are being read; wait for some of them")
)

// Access contains the permissions of a caller on a server. The zero value allows nothing.
type Access struct {
	// MayCall is true if the policy could allow at least one call, with or without an approval. If it is false, no
	// request from the caller may reach the server.
	MayCall bool
	// HidesNone is true if the caller may see all tools.
	HidesNone bool
	// PromptNamesIgnored is true if no rule distinguishes prompts by name, so that lists of prompts need no filter.
	// ResourceNamesIgnored is the same for resources.
	PromptNamesIgnored, ResourceNamesIgnored bool
	// Methods contains those methods in [mcp.OfferedMethods] that the policy does not deny to the caller.
	Methods []string
	// Hidden is true if a request to the server must be answered as if the server did not exist. This is the case if
	// the policy allows the caller nothing on the server, hides a part of the server, and no list shows the caller a
	// tool of the server.
	Hidden bool
	// Revision is the policy revision of the response, in hexadecimal digits.
	Revision string

	extra *methods
}

// Has reports whether the caller may use a method in [mcp.OfferedMethods], because the policy does not deny it.
func (a Access) Has(method string) bool { return slices.Contains(a.Methods, method) }

// methods caches whether the policy could allow methods that are not in [mcp.OfferedMethods]. It is safe for concurrent
// use.
type methods struct {
	mu      sync.Mutex
	allowed map[string]bool
}

// Deps are the dependencies of a [Visibility]. Every field is required.
type Deps struct {
	Policy policyv1.PolicyServiceClient
	// Revision returns the active policy revision, or "" if it is not known. Cached responses with other revisions are
	// not used.
	Revision func() string
	Log      *slog.Logger
}

// Visibility asks the policy service what callers may see and use, and caches the responses. It is safe for concurrent
// use.
type Visibility struct {
	deps    Deps
	views   views
	filters *fairqueue.Queue[principal.Key]

	mu     sync.Mutex
	access map[principal.Key]map[string]Access
}

// New returns a Visibility with empty caches, or an error if a dependency is missing.
func New(deps Deps) (*Visibility, error) {
	if deps.Policy == nil || deps.Revision == nil || deps.Log == nil {
		return nil, errors.New("visibility: every dependency is required")
	}
	filters, err := fairqueue.New[principal.Key](maxFilters, maxFiltersEach)
	if err != nil {
		return nil, err
	}
	return &Visibility{deps: deps, views: newViews(), filters: filters, access: make(map[principal.Key]map[string]Access)}, nil
}

// Access returns a principal's permissions on a server. It returns an error if the policy service has not answered. In
// that case, the principal must be treated as if the policy allowed nothing.
func (v *Visibility) Access(ctx context.Context, p *identityv1.Principal, server string) (Access, error) {
	active := v.deps.Revision()
	var space [256]byte
	owner, key := principal.Root(p), AppendKey(space[:0], p, server)
	if cached, ok := v.cached(owner, key); ok && active != "" && cached.Revision == active {
		return cached, nil
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, p), policyTimeout)
	defer cancel()
	resp, err := v.deps.Policy.CheckServer(ctx, &policyv1.CheckServerRequest{Server: server, Methods: mcp.OfferedMethods()})
	if err != nil {
		v.deps.Log.WarnContext(ctx, "policy did not report what a caller may use", "server", server, "error", err)
		return Access{}, err
	}
	access := Access{
		MayCall: resp.GetCouldAllow(), HidesNone: resp.GetHidesNone(), Methods: resp.GetMethods(), Revision: resp.GetPolicyRevision(),
		PromptNamesIgnored: resp.GetPromptsAlike(), ResourceNamesIgnored: resp.GetResourcesAlike(),
	}
	access.Hidden = !access.MayCall && !access.HidesNone && !resp.GetCouldList()
	access.extra = &methods{allowed: make(map[string]bool)}
	v.cache(owner, key, access)
	return access, nil
}

// MayUse reports whether the policy could allow a principal to use a method that is not in [mcp.OfferedMethods] on a
// server. It returns false if the policy service does not answer, or if responses about too many other methods are
// cached.
func (v *Visibility) MayUse(ctx context.Context, p *identityv1.Principal, server, method string) bool {
	access, err := v.Access(ctx, p, server)
	if err != nil || !access.MayCall || access.extra == nil {
		return false
	}
	m := access.extra
	m.mu.Lock()
	may, known := m.allowed[method]
	known = known || len(m.allowed) >= maxMethods
	if !known {
		m.allowed[method] = false // concurrent calls get false instead of waiting for policy
	}
	m.mu.Unlock()
	if known {
		return may
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, p), policyTimeout)
	defer cancel()
	resp, err := v.deps.Policy.CheckServer(ctx, &policyv1.CheckServerRequest{Server: server, Methods: []string{method}})
	if err != nil {
		time.AfterFunc(retryAfter, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.allowed, method)
		})
		return false
	}
	may = resp.GetCouldAllow() && slices.Contains(resp.GetMethods(), method)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed[method] = may
	return may
}

// IsHidden reports whether a request from a principal to a server must be answered as if the server did not exist. If
// stale is true, IsHidden does not ask the policy service. In that case, or if the policy service does not answer,
// IsHidden uses the last response for the principal. It returns false if there is no last response.
func (v *Visibility) IsHidden(ctx context.Context, p *identityv1.Principal, server string, stale bool) bool {
	if !stale {
		if access, err := v.Access(ctx, p, server); err == nil {
			return access.Hidden
		}
	}
	var space [256]byte
	access, _ := v.cached(principal.Root(p), AppendKey(space[:0], p, server))
	return access.Hidden
}

func (v *Visibility) cached(owner principal.Key, key []byte) (Access, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	access, ok := v.access[owner][string(key)]
	return access, ok
}

func (v *Visibility) cache(owner principal.Key, key []byte, access Access) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.access) >= maxOwners && v.access[owner] == nil {
		clear(v.access)
	}
	if of := v.access[owner]; of == nil || len(of) >= maxCached {
		v.access[owner] = make(map[string]Access)
	}
	v.access[owner][string(key)] = access
}
