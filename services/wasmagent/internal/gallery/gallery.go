// Package gallery keeps templates of agents: those of the installation, and those that
// callers add for their tenants.
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
	// maxTemplates is how many templates a tenant may have added, and maxOwn how many one
	// of its principals.
	maxTemplates = 1000
	maxOwn       = 200
	// maxBytes, maxTenantBytes and maxOwnBytes bound how large they may be together as JSON,
	// in bytes: all, those of a tenant, and those of a principal; and maxTemplate one.
	maxBytes       = 256 << 20
	maxTenantBytes = 64 << 20
	maxOwnBytes    = 8 << 20
	maxTemplate    = 2 << 20
	// maxChoices is of how many principals of a tenant it is known which template is active.
	maxChoices = 1000
)

// Errors of a gallery, for [errors.Is].
var (
	// ErrUnknown: the tenant has no such template.
	ErrUnknown = errors.New("there is no such template")
	// ErrExists: a template has that id already.
	ErrExists = errors.New("there is a template of that id already")
	// ErrFull: there are as many templates as there may be.
	ErrFull = fmt.Errorf("templates are as many as may be: %d and %d MiB of one caller, %d and %d MiB of a tenant; remove some",
		maxOwn, maxOwnBytes>>20, maxTemplates, maxTenantBytes>>20)
	// ErrAllFull: all tenants together have as much as there may be.
	ErrAllFull = fmt.Errorf("the templates of all tenants have %d MiB, and may not have more", maxBytes>>20)
	// ErrTemplate: it is larger than one may be, or a part of it that is to be JSON is none.
	ErrTemplate = fmt.Errorf("a template has at most %d MiB as JSON, and its parameters and schemas are JSON objects", maxTemplate>>20)
	// ErrBuiltin: templates of the installation stay.
	ErrBuiltin = errors.New("the template belongs to the installation")
	// ErrOwner: somebody else added the template.
	ErrOwner = errors.New("somebody else added the template: whoever did, or an operator, removes it")
	// ErrQuarantined: an operator has to accept the template first.
	ErrQuarantined = errors.New("the template was imported, and an operator has to accept it before agents are made of it: sluice agents accept")
	// ErrChanged: the template is not the one that the operator was shown.
	ErrChanged = errors.New("the template is not the one that was shown: read it again, and accept what it is now: sluice agents accept")
	// ErrNoneActive: the principal has made no agent from a template yet.
	ErrNoneActive = errors.New("no template is active: the one is that you made an agent from last")
	// ErrCategory: no template has the category.
	ErrCategory = errors.New("there is no such category")
)

//go:embed builtin.json
var builtinJSON []byte

// aliases are other names of templates.
var aliases = map[string]string{"swarm": "swarm-orchestrator"}

// Gallery is templates. It is safe for concurrent use. Templates that it returns are not to
// be changed.
type Gallery struct {
	builtin []*wasmagentv1.Template
	keeper  Keeper

	mu      sync.Mutex
	tenants map[string]*tenant
	bytes   int
	// versions are of what was read of the keeper's, by tenants.
	versions map[string]int64
	// choices are which templates are active, by tenants: for principals by their subjects.
	choices map[string]*simplelru.LRU[string, choice]
}

// A Keeper keeps templates that were added.
type Keeper interface {
	// Tenants are those that have templates.
	Tenants(ctx context.Context) ([]string, error)
	// Templates are a tenant's, with their version, which rises with each change: none where
	// that is the known one. Version 0 has none.
	Templates(ctx context.Context, tenant string, known int64) (version int64, all []*wasmagentv1.Template, err error)
	// Keep keeps new templates of a tenant: all or none. It reports whether one is there already.
	// With untrusted it quarantines those whose id an operator has accepted before: that was
	// another template.
	Keep(ctx context.Context, tenant string, untrusted bool, templates []*wasmagentv1.Template) (taken bool, err error)
	// Accept replaces a template by what accept makes of it, in one transaction, and remembers
	// that its id was accepted. It returns false when the tenant has no such template.
	Accept(ctx context.Context, tenant, id string, accept func(*wasmagentv1.Template) error) (found bool, err error)
	// Discard forgets one.
	Discard(ctx context.Context, tenant, id string) error
}

// tenant is what was added in a tenant.
type tenant struct {
	templates map[string]*added
	bytes     int
	// own are the shares of principals, by their subjects.
	own map[string]*share
}

type share struct{ templates, bytes int }

// added is a template, how large it is as JSON, and who added it.
type added struct {
	*wasmagentv1.Template

	bytes int
}

// choice is a principal's active template and what it wants to be otherwise there. It does not
// change.
type choice struct {
	id     string
	config *wasmagentv1.TemplateConfig
}

// ownServer is what the installation's templates call the server of agents.
const ownServer = "agents"

// New returns a gallery of the installation's templates and of those that are kept. Server is the name of the server of
// agents; if it is empty, templates that need that server are left out.
func New(ctx context.Context, keeper Keeper, server string) (*Gallery, error) {
	if keeper == nil {
		return nil, errors.New("gallery: somebody has to keep templates")
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

// Follow takes in how others have changed a tenant's templates by way of the same keeper: all
// that was acknowledged before the call.
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
		return nil // nothing is new, or somebody else has seen it
	}
	if in := g.tenants[of]; in != nil {
		g.bytes -= in.bytes
		delete(g.tenants, of)
	}
	for _, t := range all {
		if t.GetAcceptedDigest() != "" && t.GetAcceptedDigest() != Digest(t) { // it is not what was accepted
			t.Quarantined = true
		}
		g.put(of, &added{Template: t, bytes: sizeOf(t)})
	}
	g.versions[of] = version
	return nil
}

// sizeOf is how large a template is as JSON; more than one may be where it is that.
func sizeOf(t *wasmagentv1.Template) int {
	text, err := msgjson.Append(nil, t.ProtoReflect(), maxTemplate)
	if err != nil {
		return maxTemplate + 1
	}
	return len(text)
}

// put puts a template into a tenant. It needs the lock.
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

// List are the templates that a tenant sees: the installation's, then its own by id.
func (g *Gallery) List(of string) []*wasmagentv1.Template {
	return append(slices.Clone(g.builtin), g.Added(of)...)
}

// Added are the templates that were added in a tenant, by id.
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

// Get finds a template for a tenant.
func (g *Gallery) Get(of, id string) (*wasmagentv1.Template, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.get(of, id)
}

// get needs the lock.
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

// Source is where templates come from.
type Source int

const (
	// Imported templates make no agents until [Gallery.Accept]. It is the zero value.
	Imported Source = iota
	// Written templates are their author's own. They make agents at once, unless an operator has
	// accepted another template of the same id before.
	Written
	// ByOperator templates make agents at once.
	ByOperator
)

// Add adds templates for a principal's tenant: all or none. Errors: [ErrTemplate], [ErrExists],
// [ErrFull], [ErrAllFull], the keeper's.
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
	case taken: // by way of another process
		return ErrExists
	}
	for _, t := range fresh {
		g.put(by.Tenant, t)
	}
	return nil
}

// Remove removes a template that was added: for who added it, and for operators.
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

// Choose makes a template a principal's active one. What it wanted to be otherwise in another
// is forgotten.
func (g *Gallery) Choose(by principal.Key, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.choices[by.Tenant]
	if of == nil {
		of, _ = simplelru.NewLRU[string, choice](maxChoices, nil) // fails where the number is not positive
		g.choices[by.Tenant] = of
	}
	if now, ok := of.Get(by.Subject); !ok || now.id != id {
		of.Add(by.Subject, choice{id: id, config: new(wasmagentv1.TemplateConfig)})
	}
}

// Configured is what a principal wants to be otherwise in a template; empty where that is
// nothing.
func (g *Gallery) Configured(by principal.Key, id string) *wasmagentv1.TemplateConfig {
	if active, config, err := g.Active(by); err == nil && active == id {
		return config
	}
	return new(wasmagentv1.TemplateConfig)
}

// Active is a principal's active template and what the principal wants to be otherwise
// there.
func (g *Gallery) Active(by principal.Key) (id string, _ *wasmagentv1.TemplateConfig, _ error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := g.active(by)
	return now.id, now.config, err
}

// active needs the lock.
func (g *Gallery) active(by principal.Key) (choice, error) {
	if of := g.choices[by.Tenant]; of != nil {
		if now, ok := of.Get(by.Subject); ok {
			if _, err := g.get(by.Tenant, now.id); err == nil { // else it was removed
				return now, nil
			}
		}
	}
	return choice{}, ErrNoneActive
}

// Configure replaces what a principal wants to be otherwise in its active template, whose
// id it returns.
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

// Categories are how many templates each category has, of those that a tenant sees.
func (g *Gallery) Categories(of string) map[string]int32 {
	out := make(map[string]int32)
	for _, t := range g.List(of) {
		out[t.GetCategory()]++
	}
	return out
}

// InCategory are the templates of a category, by id.
func (g *Gallery) InCategory(of, category string) ([]*wasmagentv1.Template, error) {
	all := slices.DeleteFunc(g.List(of), func(t *wasmagentv1.Template) bool { return t.GetCategory() != category })
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrCategory, category)
	}
	slices.SortStableFunc(all, func(a, b *wasmagentv1.Template) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return all, nil
}

// Skill finds a skill by its name in the templates that a tenant sees.
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
