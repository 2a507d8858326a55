// Package gallery manages agent templates. Some templates are built in, and callers can add templates for their
// tenants. The wasmagent service uses the package.
package gallery

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

const (
	// maxTemplates limits how many templates a tenant may add, and maxPerPrincipal limits how many a principal may add.
	maxTemplates    = 1000
	maxPerPrincipal = 200
	// maxBytes limits the size of the JSON of all added templates together, maxTenantBytes that of a tenant's
	// templates, and maxBytesPerPrincipal that of a principal's templates. maxTemplate limits the size of the JSON of
	// one template. All sizes are in bytes.
	maxBytes             = 256 << 20
	maxTenantBytes       = 64 << 20
	maxBytesPerPrincipal = 8 << 20
	maxTemplate          = 2 << 20
	// maxActiveTemplates limits for how many principals of a tenant the active template is remembered.
	maxActiveTemplates = 1000
)

// The methods of a gallery return these errors. Compare them with [errors.Is].
var (
	// ErrUnknown means that the tenant has no such template.
	ErrUnknown = errors.New("there is no such template")
	// ErrExists means that a template with this id already exists.
	ErrExists = errors.New("a template with this id exists")
	// ErrFull means that the principal or the tenant has reached the maximum number or size of templates.
	ErrFull = fmt.Errorf("the maximum of templates is reached: %d with %d MiB of one caller, %d with %d MiB of a tenant; remove some",
		maxPerPrincipal, maxBytesPerPrincipal>>20, maxTemplates, maxTenantBytes>>20)
	// ErrInstallationFull means that the templates of all tenants together have reached the maximum size.
	ErrInstallationFull = fmt.Errorf("the templates of all tenants have the maximum of %d MiB", maxBytes>>20)
	// ErrTemplateInvalid means that the template is too large, or that its parameters or schemas are not JSON objects.
	ErrTemplateInvalid = fmt.Errorf("a template has at most %d MiB as JSON, and its parameters and schemas are JSON objects", maxTemplate>>20)
	// ErrBuiltin means that the template is built in and can't be removed.
	ErrBuiltin = errors.New("the template belongs to the installation")
	// ErrOwner means that another principal has added the template, so that the caller can't remove it.
	ErrOwner = errors.New("another principal added the template: only that principal or an operator can remove it")
	// ErrQuarantined means that an operator must accept the template before it can be used.
	ErrQuarantined = errors.New("the template was imported, and an operator has to accept it before agents can be created from it: sluice agents accept")
	// ErrChanged means that the template has changed since the operator read it.
	ErrChanged = errors.New("the template has changed since it was shown: read it again, and accept its present content: sluice agents accept")
	// ErrNoneActive means that the principal has no active template. One reason is that the principal has not created
	// an agent from a template yet. Another reason is that the active template was removed.
	ErrNoneActive = errors.New("no template is active: create an agent from one first")
	// ErrCategory means that the category does not exist.
	ErrCategory = errors.New("there is no such category")
)

//go:embed builtin.json
var builtinJSON []byte

var aliases = map[string]string{"swarm": "swarm-orchestrator"}

// Gallery is a collection of templates. It is safe for concurrent use. Callers must not change the templates that it
// returns.
type Gallery struct {
	builtin []*wasmagentv1.Template
	store   Store

	mu      sync.Mutex
	tenants map[string]*tenant
	bytes   int
	// versions maps a tenant to the version of its templates that was last read from the store.
	versions map[string]int64
	// activeTemplates maps a tenant and the subject of a principal to the principal's active template.
	activeTemplates map[string]*simplelru.LRU[string, activeTemplate]
}

// A Store stores added templates. It is safe for concurrent use.
type Store interface {
	// Tenants returns the tenants that have templates.
	Tenants(ctx context.Context) ([]string, error)
	// Templates returns the templates of a tenant and their version. The version increases with each change. If the
	// version equals the known version, Templates returns no templates. A tenant with version 0 has no templates.
	Templates(ctx context.Context, tenant string, known int64) (version int64, all []*wasmagentv1.Template, err error)
	// AddTemplates stores new templates of a tenant, either all or none. If one of the ids already exists, AddTemplates
	// stores nothing and returns exists = true. If untrusted is true, AddTemplates quarantines each template whose id
	// an operator has accepted before.
	AddTemplates(ctx context.Context, tenant string, untrusted bool, templates []*wasmagentv1.Template) (exists bool, err error)
	// AcceptTemplate calls accept with a template, stores the changed template, and records that the template's id was
	// accepted, all in one transaction. found is false if the tenant has no such template.
	AcceptTemplate(ctx context.Context, tenant, id string, accept func(*wasmagentv1.Template) error) (found bool, err error)
	// RemoveTemplate removes a template.
	RemoveTemplate(ctx context.Context, tenant, id string) error
}

// tenant contains the templates that were added in a tenant. bytes is the total size of their JSON, in bytes.
type tenant struct {
	templates map[string]*added
	bytes     int
	// usageBy maps the subject of a principal to the principal's usage.
	usageBy map[string]*usage
}

type usage struct{ templates, bytes int }

// added is an added template and the size of its JSON, in bytes.
type added struct {
	*wasmagentv1.Template

	bytes int
}

// activeTemplate contains the id of a principal's active template, and the principal's settings for that template. It
// is immutable.
type activeTemplate struct {
	id     string
	config *wasmagentv1.TemplateConfig
}

// serverPlaceholder is the name of the wasmagent server in the built-in templates. [New] replaces it with the
// configured name.
const serverPlaceholder = "agents"

// New returns a gallery with the built-in templates and the templates in the given store. server is the name of the MCP
// server through which agents reach the wasmagent service. If it is empty, New omits the templates that need this
// server.
func New(ctx context.Context, keeper Store, server string) (*Gallery, error) {
	if keeper == nil {
		return nil, errors.New("gallery: a keeper is required")
	}
	builtin, err := Read(builtinJSON)
	if err != nil {
		return nil, fmt.Errorf("read the built-in templates: %w", err)
	}
	if server == "" {
		builtin = slices.DeleteFunc(builtin, func(t *wasmagentv1.Template) bool { return len(t.GetManifest().GetTools()) > 0 })
	}
	for _, t := range builtin {
		t.Builtin = true
		for _, right := range t.GetManifest().GetTools() {
			if right.GetServer() == serverPlaceholder {
				right.Server = server
			}
		}
	}
	g := &Gallery{
		builtin: builtin, store: keeper, tenants: make(map[string]*tenant), versions: make(map[string]int64),
		activeTemplates: make(map[string]*simplelru.LRU[string, activeTemplate]),
	}
	tenants, err := keeper.Tenants(ctx)
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	for _, tenantID := range tenants {
		if err := g.Refresh(ctx, tenantID); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Refresh reads the changes that other processes have made to the templates of a tenant. After that, the gallery
// contains all changes that were acknowledged before the call.
func (g *Gallery) Refresh(ctx context.Context, tenantID string) error {
	g.mu.Lock()
	known := g.versions[tenantID]
	g.mu.Unlock()
	version, all, err := g.store.Templates(ctx, tenantID, known)
	if err != nil {
		return fmt.Errorf("read templates: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if version <= g.versions[tenantID] {
		return nil // there is no change, or another call has already read it
	}
	if in := g.tenants[tenantID]; in != nil {
		g.bytes -= in.bytes
		delete(g.tenants, tenantID)
	}
	for _, t := range all {
		if t.GetAcceptedDigest() != "" && t.GetAcceptedDigest() != Digest(t) { // an operator has accepted other content
			t.Quarantined = true
		}
		g.putTemplate(tenantID, &added{Template: t, bytes: sizeOf(t)})
	}
	g.versions[tenantID] = version
	return nil
}

// sizeOf returns the size of a template's JSON, in bytes. If the size exceeds maxTemplate, sizeOf returns
// maxTemplate+1.
func sizeOf(t *wasmagentv1.Template) int {
	text, err := strictprotojson.Append(nil, t.ProtoReflect(), maxTemplate)
	if err != nil {
		return maxTemplate + 1
	}
	return len(text)
}

// putTemplate adds a template to a tenant. The caller must hold mu.
func (g *Gallery) putTemplate(tenantID string, t *added) {
	in := g.tenants[tenantID]
	if in == nil {
		in = &tenant{templates: make(map[string]*added), usageBy: make(map[string]*usage)}
		g.tenants[tenantID] = in
	}
	own := in.usageBy[t.GetAddedBy()]
	if own == nil {
		own = new(usage)
		in.usageBy[t.GetAddedBy()] = own
	}
	in.templates[t.GetId()] = t
	own.templates, own.bytes = own.templates+1, own.bytes+t.bytes
	in.bytes, g.bytes = in.bytes+t.bytes, g.bytes+t.bytes
}

// List returns the templates that a tenant can see. The built-in templates come first, followed by the added templates,
// sorted by id.
func (g *Gallery) List(tenantID string) []*wasmagentv1.Template {
	return append(slices.Clone(g.builtin), g.Added(tenantID)...)
}

// Added returns the templates that were added in a tenant, sorted by id.
func (g *Gallery) Added(tenantID string) []*wasmagentv1.Template {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.tenants[tenantID]
	if in == nil {
		return nil
	}
	out := make([]*wasmagentv1.Template, 0, len(in.templates))
	for _, t := range in.templates {
		out = append(out, t.Template)
	}
	slices.SortFunc(out, func(a, b *wasmagentv1.Template) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out
}

// Get returns a template that a tenant can see, or [ErrUnknown] if there is none with this id.
func (g *Gallery) Get(tenantID, id string) (*wasmagentv1.Template, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.get(tenantID, id)
}

// get does the same as Get. The caller must hold mu.
func (g *Gallery) get(tenantID, id string) (*wasmagentv1.Template, error) {
	id = cmp.Or(aliases[id], id)
	for _, t := range g.builtin {
		if t.GetId() == id {
			return t, nil
		}
	}
	if in := g.tenants[tenantID]; in != nil && in.templates[id] != nil {
		return in.templates[id].Template, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrUnknown, id)
}

// Source states who has added a template, and how.
type Source int

const (
	// FromImport means that the template was imported. The template is quarantined until an operator accepts it with
	// [Gallery.Accept]. FromImport is the zero value.
	FromImport Source = iota
	// FromAuthor means that the template's author has added it. The template can be used immediately, unless an
	// operator has accepted a different template with this id before.
	FromAuthor
	// FromOperator means that an operator has added the template. The template can be used immediately.
	FromOperator
)

// Add adds templates to the tenant of a principal, either all or none. It returns [ErrTemplateInvalid], [ErrExists],
// [ErrFull], [ErrInstallationFull], or an error from the store.
func (g *Gallery) Add(ctx context.Context, caller principal.Key, from Source, templates ...*wasmagentv1.Template) error {
	bytes := 0
	entries := make(map[string]*added)
	var all []*wasmagentv1.Template
	for _, t := range templates {
		entry := &added{Template: proto.CloneOf(t)}
		entry.Builtin, entry.AddedBy, entry.Quarantined, entry.AcceptedDigest = false, caller.Subject, from == FromImport, ""
		if entry.bytes = sizeOf(entry.Template); entry.bytes > maxTemplate {
			return fmt.Errorf("%w: %s", ErrTemplateInvalid, t.GetId())
		}
		if entries[t.GetId()] != nil || aliases[t.GetId()] != "" {
			return fmt.Errorf("%w: %s", ErrExists, t.GetId())
		}
		entries[t.GetId()] = entry
		all = append(all, entry.Template)
		bytes += entry.bytes
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range entries {
		if _, err := g.get(caller.Tenant, id); err == nil {
			return fmt.Errorf("%w: %s", ErrExists, id)
		}
	}
	in := g.tenants[caller.Tenant]
	if in == nil {
		in = &tenant{templates: make(map[string]*added), usageBy: make(map[string]*usage)}
	}
	own := in.usageBy[caller.Subject]
	if own == nil {
		own = new(usage)
	}
	switch {
	case len(in.templates)+len(entries) > maxTemplates, own.templates+len(entries) > maxPerPrincipal, in.bytes+bytes > maxTenantBytes, own.bytes+bytes > maxBytesPerPrincipal:
		return ErrFull
	case g.bytes+bytes > maxBytes:
		return ErrInstallationFull
	}
	switch exists, err := g.store.AddTemplates(ctx, caller.Tenant, from != FromOperator, all); {
	case err != nil:
		return err
	case exists: // another process has added a template with one of these ids
		return ErrExists
	}
	for _, t := range entries {
		g.putTemplate(caller.Tenant, t)
	}
	return nil
}

// Remove removes an added template. Only operators and the principal that has added the template may remove it. Remove
// returns [ErrUnknown], [ErrBuiltin], [ErrOwner], or an error from the store.
func (g *Gallery) Remove(ctx context.Context, caller principal.Key, operator bool, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, err := g.get(caller.Tenant, id)
	switch {
	case err != nil:
		return err
	case t.GetBuiltin():
		return fmt.Errorf("%w: %s", ErrBuiltin, t.GetId())
	case !operator && t.GetAddedBy() != caller.Subject:
		return ErrOwner
	}
	if err := g.store.RemoveTemplate(ctx, caller.Tenant, t.GetId()); err != nil {
		return err
	}
	in := g.tenants[caller.Tenant]
	bytes := in.templates[t.GetId()].bytes
	delete(in.templates, t.GetId())
	own := in.usageBy[t.GetAddedBy()]
	own.templates, own.bytes = own.templates-1, own.bytes-bytes
	in.bytes, g.bytes = in.bytes-bytes, g.bytes-bytes
	if own.templates == 0 {
		delete(in.usageBy, t.GetAddedBy())
	}
	if len(in.templates) == 0 {
		delete(g.tenants, caller.Tenant)
	}
	return nil
}

// SetActive makes a template the active template of a principal. If another template was active, the principal's
// settings for that template are dropped.
func (g *Gallery) SetActive(caller principal.Key, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	active := g.activeTemplates[caller.Tenant]
	if active == nil {
		active, _ = simplelru.NewLRU[string, activeTemplate](maxActiveTemplates, nil) // fails only for sizes below 1
		g.activeTemplates[caller.Tenant] = active
	}
	if now, ok := active.Get(caller.Subject); !ok || now.id != id {
		active.Add(caller.Subject, activeTemplate{id: id, config: new(wasmagentv1.TemplateConfig)})
	}
}

// Configured returns a principal's settings for a template. The settings are empty unless the template is the
// principal's active template.
func (g *Gallery) Configured(caller principal.Key, id string) *wasmagentv1.TemplateConfig {
	if active, config, err := g.Active(caller); err == nil && active == id {
		return config
	}
	return new(wasmagentv1.TemplateConfig)
}

// Active returns the id of a principal's active template, and the principal's settings for that template. It returns
// [ErrNoneActive] if there is no active template.
func (g *Gallery) Active(caller principal.Key) (id string, _ *wasmagentv1.TemplateConfig, _ error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	active, err := g.active(caller)
	return active.id, active.config, err
}

// active does the same as Active. The caller must hold mu.
func (g *Gallery) active(caller principal.Key) (activeTemplate, error) {
	if active := g.activeTemplates[caller.Tenant]; active != nil {
		if now, ok := active.Get(caller.Subject); ok {
			if _, err := g.get(caller.Tenant, now.id); err == nil { // if this fails, the template was removed
				return now, nil
			}
		}
	}
	return activeTemplate{}, ErrNoneActive
}

// Configure replaces a principal's settings for the active template, and returns the template's id. It returns
// [ErrNoneActive] if there is no active template.
func (g *Gallery) Configure(caller principal.Key, config *wasmagentv1.TemplateConfig) (id string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	active, err := g.active(caller)
	if err != nil {
		return "", err
	}
	g.activeTemplates[caller.Tenant].Add(caller.Subject, activeTemplate{id: active.id, config: proto.CloneOf(config)})
	return active.id, nil
}

// Categories returns, for each category, how many templates a tenant can see.
func (g *Gallery) Categories(tenantID string) map[string]int32 {
	out := make(map[string]int32)
	for _, t := range g.List(tenantID) {
		out[t.GetCategory()]++
	}
	return out
}

// InCategory returns the templates of a category that a tenant can see, sorted by id. It returns [ErrCategory] if there
// are none.
func (g *Gallery) InCategory(tenantID, category string) ([]*wasmagentv1.Template, error) {
	all := slices.DeleteFunc(g.List(tenantID), func(t *wasmagentv1.Template) bool { return t.GetCategory() != category })
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrCategory, category)
	}
	slices.SortStableFunc(all, func(a, b *wasmagentv1.Template) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return all, nil
}

// Skill returns the skill with the given name from the templates that a tenant can see and that are not quarantined. It
// returns nil if there is no such skill.
func (g *Gallery) Skill(tenantID, name string) *wasmagentv1.TemplateSkill {
	for _, t := range g.List(tenantID) {
		if t.GetQuarantined() {
			continue
		}
		for _, s := range t.GetSkills() {
			if s.GetName() == name {
				return s
			}
		}
	}
	return nil
}
