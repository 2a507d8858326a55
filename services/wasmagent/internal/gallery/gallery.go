// Package gallery stores templates of agents: those of the installation, and those that callers add for their tenants.
// The wasmagent service uses it.
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
	"github.com/sluice-mesh/sluice/services/internal/msgjson"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxTemplates bounds the added templates of a tenant, and maxOwn those of one principal.
	maxTemplates = 1000
	maxOwn       = 200
	// maxBytes, maxTenantBytes and maxOwnBytes bound the JSON of the added templates, in bytes: of all tenants, of a
	// tenant, and of a principal. maxTemplate bounds one template.
	maxBytes       = 256 << 20
	maxTenantBytes = 64 << 20
	maxOwnBytes    = 8 << 20
	maxTemplate    = 2 << 20
	// maxChoices bounds the principals of a tenant whose active template is remembered.
	maxChoices = 1000
)

// Errors of a gallery, for [errors.Is].
var (
	// ErrUnknown means that the tenant does not have the template.
	ErrUnknown = errors.New("there is no such template")
	// ErrExists means that there is a template with this id.
	ErrExists = errors.New("a template with this id exists")
	// ErrFull means that the principal or the tenant has the maximum of templates.
	ErrFull = fmt.Errorf("the maximum of templates is reached: %d with %d MiB of one caller, %d with %d MiB of a tenant; remove some",
		maxOwn, maxOwnBytes>>20, maxTemplates, maxTenantBytes>>20)
	// ErrAllFull means that the templates of all tenants together have the maximum size.
	ErrAllFull = fmt.Errorf("the templates of all tenants have the maximum of %d MiB", maxBytes>>20)
	// ErrTemplate means that the template is too large, or that a part of it that must be JSON is not.
	ErrTemplate = fmt.Errorf("a template has at most %d MiB as JSON, and its parameters and schemas are JSON objects", maxTemplate>>20)
	// ErrBuiltin means that the template belongs to the installation and can't be removed.
	ErrBuiltin = errors.New("the template belongs to the installation")
	// ErrOwner means that another principal added the template.
	ErrOwner = errors.New("another principal added the template: only that principal or an operator can remove it")
	// ErrQuarantined means that an operator has to accept the template first.
	ErrQuarantined = errors.New("the template was imported, and an operator has to accept it before agents can be created from it: sluice agents accept")
	// ErrChanged means that the template has changed since the operator read it.
	ErrChanged = errors.New("the template has changed since it was shown: read it again, and accept its present content: sluice agents accept")
	// ErrNoneActive means that the principal has not created an agent from a template yet.
	ErrNoneActive = errors.New("no template is active: create an agent from one first")
	// ErrCategory means that no template has the category.
	ErrCategory = errors.New("there is no such category")
)

//go:embed builtin.json
var builtinJSON []byte

// aliases map other names of templates to their ids.
var aliases = map[string]string{"swarm": "swarm-orchestrator"}

// Gallery holds templates. It is safe for concurrent use. Callers must not change the templates that it returns.
type Gallery struct {
	builtin []*wasmagentv1.Template
	keeper  Keeper

	mu      sync.Mutex
	tenants map[string]*tenant
	bytes   int
	// versions has, for each tenant, the version of the keeper's templates that was read last.
	versions map[string]int64
	// choices has the active templates, by tenant and by the principal's subject.
	choices map[string]*simplelru.LRU[string, choice]
}

// A Keeper stores added templates.
type Keeper interface {
	// Tenants returns the tenants that have templates.
	Tenants(ctx context.Context) ([]string, error)
	// Templates returns the templates of a tenant and their version, which rises with each change. It returns no
	// templates if the version is the known one. Version 0 has no templates.
	Templates(ctx context.Context, tenant string, known int64) (version int64, all []*wasmagentv1.Template, err error)
	// Keep stores new templates of a tenant, all or none. taken is true if one of them exists already; then none is
	// stored. If untrusted is set, a template is quarantined if an operator has accepted another template of its id
	// before.
	Keep(ctx context.Context, tenant string, untrusted bool, templates []*wasmagentv1.Template) (taken bool, err error)
	// Accept changes a template by accept, in one transaction, and records that its id was accepted. found is false if
	// the tenant does not have the template.
	Accept(ctx context.Context, tenant, id string, accept func(*wasmagentv1.Template) error) (found bool, err error)
	// Discard removes a template.
	Discard(ctx context.Context, tenant, id string) error
}

// tenant has the added templates of a tenant.
type tenant struct {
	templates map[string]*added
	bytes     int
	// own has the quotas of principals, by subject.
	own map[string]*share
}

type share struct{ templates, bytes int }

// added is a template with the size of its JSON.
type added struct {
	*wasmagentv1.Template

	bytes int
}

// choice is a principal's active template with the principal's settings of it. It does not change.
type choice struct {
	id     string
	config *wasmagentv1.TemplateConfig
}

// ownServer is the name of the server of agents in the installation's templates.
const ownServer = "agents"

// New returns a gallery with the templates of the installation and those of the keeper. server is the name of the
// server of agents; if it is empty, templates that need that server are left out.
func New(ctx context.Context, keeper Keeper, server string) (*Gallery, error) {
	if keeper == nil {
		return nil, errors.New("gallery: a keeper is required")
	}
	builtin, err := Read(builtinJSON)
	if err != nil {
		return nil, fmt.Errorf("read the installation's templates: %w", err)
	}
	if server == "" {
		builtin = slices.DeleteFunc(builtin, func(t *wasmagentv1.Template) bool { return len(t.GetManifest().GetTools()) > 0 })
	}
	for _, t := range builtin {
		t.Builtin = true
		for _, right := range t.GetManifest().GetTools() {
			if right.GetServer() == ownServer {
				right.Server = server
			}
		}
	}
	g := &Gallery{
		builtin: builtin, keeper: keeper, tenants: make(map[string]*tenant), versions: make(map[string]int64),
		choices: make(map[string]*simplelru.LRU[string, choice]),
	}
	tenants, err := keeper.Tenants(ctx)
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	for _, of := range tenants {
		if err := g.Follow(ctx, of); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Follow reads the changes that other processes made to a tenant's templates: all that were acknowledged before the
// call.
func (g *Gallery) Follow(ctx context.Context, of string) error {
	g.mu.Lock()
	known := g.versions[of]
	g.mu.Unlock()
	version, all, err := g.keeper.Templates(ctx, of, known)
	if err != nil {
		return fmt.Errorf("read templates: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if version <= g.versions[of] {
		return nil // nothing is new, or another call has read it
	}
	if in := g.tenants[of]; in != nil {
		g.bytes -= in.bytes
		delete(g.tenants, of)
	}
	for _, t := range all {
		if t.GetAcceptedDigest() != "" && t.GetAcceptedDigest() != Digest(t) { // it is not the accepted content
			t.Quarantined = true
		}
		g.put(of, &added{Template: t, bytes: sizeOf(t)})
	}
	g.versions[of] = version
	return nil
}

// sizeOf returns the size of a template's JSON, or maxTemplate+1 if it exceeds maxTemplate.
func sizeOf(t *wasmagentv1.Template) int {
	text, err := msgjson.Append(nil, t.ProtoReflect(), maxTemplate)
	if err != nil {
		return maxTemplate + 1
	}
	return len(text)
}

// put adds a template to a tenant. The caller holds mu.
func (g *Gallery) put(of string, t *added) {
	in := g.tenants[of]
	if in == nil {
		in = &tenant{templates: make(map[string]*added), own: make(map[string]*share)}
		g.tenants[of] = in
	}
	own := in.own[t.GetAddedBy()]
	if own == nil {
		own = new(share)
		in.own[t.GetAddedBy()] = own
	}
	in.templates[t.GetId()] = t
	own.templates, own.bytes = own.templates+1, own.bytes+t.bytes
	in.bytes, g.bytes = in.bytes+t.bytes, g.bytes+t.bytes
}

// List returns the templates that a tenant sees: the installation's, then the added ones by id.
func (g *Gallery) List(of string) []*wasmagentv1.Template {
	return append(slices.Clone(g.builtin), g.Added(of)...)
}

// Added returns the templates that were added in a tenant, by id.
func (g *Gallery) Added(of string) []*wasmagentv1.Template {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.tenants[of]
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

// Get returns a template that a tenant sees. Errors: [ErrUnknown].
func (g *Gallery) Get(of, id string) (*wasmagentv1.Template, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.get(of, id)
}

// get is like Get. The caller holds mu.
func (g *Gallery) get(of, id string) (*wasmagentv1.Template, error) {
	id = cmp.Or(aliases[id], id)
	for _, t := range g.builtin {
		if t.GetId() == id {
			return t, nil
		}
	}
	if in := g.tenants[of]; in != nil && in.templates[id] != nil {
		return in.templates[id].Template, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrUnknown, id)
}

// Source is the origin of added templates.
type Source int

const (
	// Imported templates are in quarantine until [Gallery.Accept]. It is the zero value.
	Imported Source = iota
	// Written templates are written by their author. They can be used at once, unless an operator has accepted another
	// template of the same id before.
	Written
	// ByOperator templates can be used at once.
	ByOperator
)

// Add adds templates to a principal's tenant, all or none. Errors: [ErrTemplate], [ErrExists], [ErrFull], [ErrAllFull],
// the keeper's.
func (g *Gallery) Add(ctx context.Context, by principal.Key, from Source, templates ...*wasmagentv1.Template) error {
	bytes := 0
	fresh := make(map[string]*added)
	var all []*wasmagentv1.Template
	for _, t := range templates {
		kept := &added{Template: proto.CloneOf(t)}
		kept.Builtin, kept.AddedBy, kept.Quarantined, kept.AcceptedDigest = false, by.Subject, from == Imported, ""
		if kept.bytes = sizeOf(kept.Template); kept.bytes > maxTemplate {
			return fmt.Errorf("%w: %s", ErrTemplate, t.GetId())
		}
		if fresh[t.GetId()] != nil || aliases[t.GetId()] != "" {
			return fmt.Errorf("%w: %s", ErrExists, t.GetId())
		}
		fresh[t.GetId()] = kept
		all = append(all, kept.Template)
		bytes += kept.bytes
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range fresh {
		if _, err := g.get(by.Tenant, id); err == nil {
			return fmt.Errorf("%w: %s", ErrExists, id)
		}
	}
	in := g.tenants[by.Tenant]
	if in == nil {
		in = &tenant{templates: make(map[string]*added), own: make(map[string]*share)}
	}
	own := in.own[by.Subject]
	if own == nil {
		own = new(share)
	}
	switch {
	case len(in.templates)+len(fresh) > maxTemplates, own.templates+len(fresh) > maxOwn, in.bytes+bytes > maxTenantBytes, own.bytes+bytes > maxOwnBytes:
		return ErrFull
	case g.bytes+bytes > maxBytes:
		return ErrAllFull
	}
	switch taken, err := g.keeper.Keep(ctx, by.Tenant, from != ByOperator, all); {
	case err != nil:
		return err
	case taken: // another process has added one
		return ErrExists
	}
	for _, t := range fresh {
		g.put(by.Tenant, t)
	}
	return nil
}

// Remove removes an added template. Only the principal that added it and operators may. Errors: [ErrUnknown],
// [ErrBuiltin], [ErrOwner], the keeper's.
func (g *Gallery) Remove(ctx context.Context, by principal.Key, operator bool, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, err := g.get(by.Tenant, id)
	switch {
	case err != nil:
		return err
	case t.GetBuiltin():
		return fmt.Errorf("%w: %s", ErrBuiltin, t.GetId())
	case !operator && t.GetAddedBy() != by.Subject:
		return ErrOwner
	}
	if err := g.keeper.Discard(ctx, by.Tenant, t.GetId()); err != nil {
		return err
	}
	in := g.tenants[by.Tenant]
	bytes := in.templates[t.GetId()].bytes
	delete(in.templates, t.GetId())
	own := in.own[t.GetAddedBy()]
	own.templates, own.bytes = own.templates-1, own.bytes-bytes
	in.bytes, g.bytes = in.bytes-bytes, g.bytes-bytes
	if own.templates == 0 {
		delete(in.own, t.GetAddedBy())
	}
	if len(in.templates) == 0 {
		delete(g.tenants, by.Tenant)
	}
	return nil
}

// Choose makes a template the active one of a principal. The principal's settings of another template are dropped.
func (g *Gallery) Choose(by principal.Key, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.choices[by.Tenant]
	if of == nil {
		of, _ = simplelru.NewLRU[string, choice](maxChoices, nil) // fails only if the size is not positive
		g.choices[by.Tenant] = of
	}
	if now, ok := of.Get(by.Subject); !ok || now.id != id {
		of.Add(by.Subject, choice{id: id, config: new(wasmagentv1.TemplateConfig)})
	}
}

// Configured returns a principal's settings of a template; empty if there are none.
func (g *Gallery) Configured(by principal.Key, id string) *wasmagentv1.TemplateConfig {
	if active, config, err := g.Active(by); err == nil && active == id {
		return config
	}
	return new(wasmagentv1.TemplateConfig)
}

// Active returns a principal's active template and the settings of it. Errors: [ErrNoneActive].
func (g *Gallery) Active(by principal.Key) (id string, _ *wasmagentv1.TemplateConfig, _ error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := g.active(by)
	return now.id, now.config, err
}

// active is like Active. The caller holds mu.
func (g *Gallery) active(by principal.Key) (choice, error) {
	if of := g.choices[by.Tenant]; of != nil {
		if now, ok := of.Get(by.Subject); ok {
			if _, err := g.get(by.Tenant, now.id); err == nil { // otherwise it was removed
				return now, nil
			}
		}
	}
	return choice{}, ErrNoneActive
}

// Configure replaces a principal's settings of its active template, and returns the template's id. Errors:
// [ErrNoneActive].
func (g *Gallery) Configure(by principal.Key, config *wasmagentv1.TemplateConfig) (id string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := g.active(by)
	if err != nil {
		return "", err
	}
	g.choices[by.Tenant].Add(by.Subject, choice{id: now.id, config: proto.CloneOf(config)})
	return now.id, nil
}

// Categories returns the number of templates in each category, of those that a tenant sees.
func (g *Gallery) Categories(of string) map[string]int32 {
	out := make(map[string]int32)
	for _, t := range g.List(of) {
		out[t.GetCategory()]++
	}
	return out
}

// InCategory returns the templates of a category, by id. Errors: [ErrCategory].
func (g *Gallery) InCategory(of, category string) ([]*wasmagentv1.Template, error) {
	all := slices.DeleteFunc(g.List(of), func(t *wasmagentv1.Template) bool { return t.GetCategory() != category })
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrCategory, category)
	}
	slices.SortStableFunc(all, func(a, b *wasmagentv1.Template) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return all, nil
}

// Skill returns a skill by its name, from the templates that a tenant sees and that are not in quarantine; nil if there
// is none.
func (g *Gallery) Skill(of, name string) *wasmagentv1.TemplateSkill {
	for _, t := range g.List(of) {
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
