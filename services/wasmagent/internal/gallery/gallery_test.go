package gallery_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/gallery"
)

var (
	ana = principal.Key{Tenant: "one", Subject: "ana"}
	ben = principal.Key{Tenant: "one", Subject: "ben"}
	cem = principal.Key{Tenant: "two", Subject: "cem"}
)

func newGallery(t testing.TB) *gallery.Gallery {
	t.Helper()
	g, err := gallery.New(t.Context(), newMemoryStore(), "agents")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func template(id string) *wasmagentv1.Template {
	return &wasmagentv1.Template{Id: id, Name: id, Category: "custom", Prompts: []*wasmagentv1.TemplatePrompt{{Name: "p", SystemPrompt: "Be " + id}}}
}

func ids(all []*wasmagentv1.Template) (out []string) {
	for _, t := range all {
		out = append(out, t.GetId())
	}
	return out
}

func TestList_HasBuiltinTemplates(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	all := g.List("one")
	if got, want := ids(all), []string{"coder", "researcher", "tester", "reviewer", "security", "swarm-orchestrator"}; !slices.Equal(got, want) {
		t.Errorf("the built-in templates are %v, want %v", got, want)
	}
	for _, template := range all {
		if err := protovalidate.Validate(template); err != nil || !template.GetBuiltin() || template.GetAddedBy() != "" {
			t.Errorf("%s: %v, %v", template.GetId(), template, err)
		}
	}
	if got := fmt.Sprint(g.Categories("one")); got != "map[development:2 orchestration:1 research:1 security:1 testing:1]" {
		t.Errorf("the categories are %s", got)
	}
	if got, err := g.Get("one", "swarm"); err != nil || got.GetId() != "swarm-orchestrator" {
		t.Errorf("swarm is %v, %v", got, err)
	}
}

func TestAdd_IsLimitedToTenant(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	if err := g.Add(t.Context(), ana, gallery.FromAuthor, template("mine"), template("also")); err != nil {
		t.Fatal(err)
	}
	if got, want := ids(g.Added("one")), []string{"also", "mine"}; !slices.Equal(got, want) {
		t.Errorf("the tenant has %v, want %v", got, want)
	}
	if got := g.Added("two"); len(got) != 0 {
		t.Errorf("another tenant has %v", got)
	}
	if _, err := g.Get("two", "mine"); !errors.Is(err, gallery.ErrUnknown) {
		t.Errorf("another tenant gets the template: %v", err)
	}
	claims := template("claims")
	claims.Builtin, claims.AddedBy = true, "somebody"
	if err := g.Add(t.Context(), ana, gallery.FromAuthor, claims); err != nil {
		t.Fatal(err)
	}
	if got, _ := g.Get("one", "claims"); got.GetBuiltin() || got.GetAddedBy() != "ana" {
		t.Errorf("a template that claims to be the installation's is stored as %v", got)
	}
	for _, taken := range []string{"mine", "coder", "swarm"} {
		if err := g.Add(t.Context(), ben, gallery.FromAuthor, template("fresh"), template(taken)); !errors.Is(err, gallery.ErrExists) {
			t.Errorf("%s is added again: %v", taken, err)
		}
	}
	if err := g.Add(t.Context(), ben, gallery.FromAuthor, template("fresh"), template("fresh")); !errors.Is(err, gallery.ErrExists) {
		t.Errorf("a template is added twice: %v", err)
	}
	if _, err := g.Get("one", "fresh"); err == nil {
		t.Error("one of two templates was added although the other can't be")
	}
	if err := g.Remove(t.Context(), ben, false, "mine"); !errors.Is(err, gallery.ErrOwner) {
		t.Errorf("another principal removes the template: %v", err)
	}
	if err := g.Remove(t.Context(), cem, true, "mine"); !errors.Is(err, gallery.ErrUnknown) {
		t.Errorf("an operator of another tenant removes the template: %v", err)
	}
	if err := g.Remove(t.Context(), ben, true, "coder"); !errors.Is(err, gallery.ErrBuiltin) {
		t.Errorf("a template of the installation is removed: %v", err)
	}
	if err := errors.Join(g.Remove(t.Context(), ana, false, "mine"), g.Remove(t.Context(), ben, true, "also")); err != nil {
		t.Errorf("the principal that added a template, or an operator, can't remove it: %v", err)
	}
}

func TestConfigure_AppliesToActiveTemplate(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	seven := &wasmagentv1.TemplateConfig{MaxTurns: new(int32(7))}
	if _, err := g.Configure(ana, seven); !errors.Is(err, gallery.ErrNoneActive) {
		t.Errorf("without an active template: %v", err)
	}
	if err := g.Add(t.Context(), ben, gallery.FromAuthor, template("mine")); err != nil {
		t.Fatal(err)
	}
	g.SetActive(ana, "mine")
	if id, err := g.Configure(ana, seven); err != nil || id != "mine" {
		t.Fatalf("configured %q, %v", id, err)
	}
	if got := g.Configured(ana, "mine").GetMaxTurns(); got != 7 {
		t.Errorf("the settings have %d turns", got)
	}
	if got := g.Configured(ana, "coder"); got.MaxTurns != nil {
		t.Errorf("the settings of one template apply to another: %v", got)
	}
	if got := g.Configured(ben, "mine"); got.MaxTurns != nil {
		t.Errorf("the settings of one caller apply to another: %v", got)
	}
	if err := g.Remove(t.Context(), ben, false, "mine"); err != nil {
		t.Fatal(err)
	}
	if id, _, err := g.Active(ana); !errors.Is(err, gallery.ErrNoneActive) {
		t.Errorf("%q, which was removed, is active: %v", id, err)
	}
}

// Case N2. The number and the total size of each caller's templates are limited. After a caller removes a template, it
// can add another template.
func TestAdd_IsBoundedPerCaller(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	for i := range 200 {
		if err := g.Add(t.Context(), ana, gallery.FromAuthor, template(fmt.Sprintf("t%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Add(t.Context(), ana, gallery.FromAuthor, template("more")); !errors.Is(err, gallery.ErrFull) {
		t.Errorf("a template above the caller's bound: %v", err)
	}
	if err := g.Add(t.Context(), ben, gallery.FromAuthor, template("more")); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if err := g.Remove(t.Context(), ana, false, "t0"); err != nil {
		t.Fatal(err)
	}
	large := func(id string) *wasmagentv1.Template {
		out := template(id)
		for i := range 28 {
			out.Skills = append(out.Skills, &wasmagentv1.TemplateSkill{Name: fmt.Sprint(i), Content: strings.Repeat("x", 64<<10)})
		}
		return out
	}
	for i := range 4 {
		if err := g.Add(t.Context(), cem, gallery.FromAuthor, large(fmt.Sprintf("l%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Add(t.Context(), cem, gallery.FromAuthor, large("l4")); !errors.Is(err, gallery.ErrFull) {
		t.Errorf("a template above the caller's bound on bytes: %v", err)
	}
	if err := g.Remove(t.Context(), cem, false, "l1"); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(t.Context(), cem, gallery.FromAuthor, large("l4")); err != nil {
		t.Errorf("after a removal: %v", err)
	}
	whole := large("whole")
	whole.Skills = append(whole.Skills, whole.GetSkills()...)
	broken := template("broken")
	broken.Tools = []*wasmagentv1.TemplateTool{{Name: "t", Parameters: "no JSON"}}
	for _, one := range []*wasmagentv1.Template{whole, broken} {
		if err := g.Add(t.Context(), ben, gallery.FromAuthor, one); !errors.Is(err, gallery.ErrTemplateInvalid) {
			t.Errorf("%s is added: %v", one.GetId(), err)
		}
	}
}

// A gallery contains exactly the templates that were added and not removed, after any sequence of additions and
// removals.
func TestGallery_HasAddedTemplatesAfterAnyChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g, err := gallery.New(t.Context(), newMemoryStore(), "agents")
		if err != nil {
			t.Fatal(err)
		}
		model := make(map[string]principal.Key)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			adder := rapid.SampledFrom([]principal.Key{ana, ben}).Draw(t, "who")
			id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "id")
			_, exists := model[id]
			if rapid.Bool().Draw(t, "add") {
				if err := g.Add(t.Context(), adder, gallery.FromAuthor, template(id)); (err == nil) == exists {
					t.Fatalf("adding %s, which exists: %v, returns %v", id, exists, err)
				} else if err == nil {
					model[id] = adder
				}
			} else if err := g.Remove(t.Context(), adder, false, id); (err == nil) != (exists && model[id] == adder) {
				t.Fatalf("remove %s of %v: %v", id, model[id], err)
			} else if err == nil {
				delete(model, id)
			}
			if got := g.Added("one"); len(got) != len(model) {
				t.Fatalf("there are %v, want %v", ids(got), model)
			}
		}
	})
}

// Two galleries share a store. After a call to Refresh, a gallery contains each change that the other gallery has
// acknowledged.
func TestRefresh_ReadsChangesOfOtherGallery(t *testing.T) {
	t.Parallel()
	store := newMemoryStore()
	var galleries [2]*gallery.Gallery
	for i := range galleries {
		g, err := gallery.New(t.Context(), store, "agents")
		if err != nil {
			t.Fatal(err)
		}
		galleries[i] = g
	}
	one, two := galleries[0], galleries[1]
	follow := func(want ...string) {
		t.Helper()
		for i, g := range galleries {
			if err := g.Refresh(t.Context(), ana.Tenant); err != nil {
				t.Fatal(err)
			}
			if got := ids(g.Added(ana.Tenant)); !slices.Equal(got, want) {
				t.Errorf("gallery %d has %q, want %q", i, got, want)
			}
		}
	}
	if err := one.Add(t.Context(), ana, gallery.FromImport, template("a"), template("b")); err != nil {
		t.Fatal(err)
	}
	follow("a", "b")
	if _, err := two.Accept(t.Context(), ana.Tenant, "a", digestOf(t, two, ana.Tenant, "a")); err != nil {
		t.Fatal(err)
	}
	follow("a", "b")
	if got, err := one.Get(ana.Tenant, "a"); err != nil || got.GetQuarantined() {
		t.Errorf("the template that the other gallery accepted: %v, %v", got, err)
	}
	if err := two.Remove(t.Context(), ana, false, "a"); err != nil {
		t.Fatal(err)
	}
	follow("b")
	if _, err := one.Get(ana.Tenant, "a"); !errors.Is(err, gallery.ErrUnknown) {
		t.Errorf("the template that the other gallery removed: %v", err)
	}
	if err := two.Remove(t.Context(), ana, false, "b"); err != nil {
		t.Fatal(err)
	}
	follow()
}

func TestSearch_RanksByMatchedWords(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	for query, want := range map[string]string{
		"security":       "security 1.0, reviewer 0.8",
		"test":           "tester 0.2",
		"coder":          "coder 1.0",
		"CODER!":         "coder 1.0",
		"zzz":            "",
		"":               "",
		"?!":             "",
		"coder research": "coder 0.5, researcher 0.5",
	} {
		var got []string
		for _, hit := range g.Search("one", query) {
			got = append(got, fmt.Sprintf("%s %.1f", hit.GetId(), hit.GetRelevance()))
		}
		if answer := strings.Join(got, ", "); answer != want {
			t.Errorf("%q finds %q, want %q", query, answer, want)
		}
	}
}

// Containers are byte-for-byte equal to the containers that another implementation created.
func TestContainer_HasBytesOfOtherImplementation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parts gallery.Parts
		want  string
	}{
		"no parts": {gallery.Parts{}, "UlZGAQAAAABRtdnGI3YO3cqp27kPysH9gU98PCKIjX+sbqU+7F3Gqg=="},
		"one prompt": {
			gallery.Parts{Prompts: []*wasmagentv1.TemplatePrompt{{Name: "p", SystemPrompt: "hi", Version: "1.0"}}},
			"UlZGAQEAAAAEBgEzAAAAW3sibmFtZSI6InAiLCJzeXN0ZW1fcHJvbXB0IjoiaGkiLCJ2ZXJzaW9uIjoiMS4wIn1d",
		},
	} {
		packed, err := gallery.Container(c.parts)
		if got := base64.StdEncoding.EncodeToString(packed); err != nil || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}
	}
	var many []*wasmagentv1.TemplateSkill
	for range 64 {
		many = append(many, &wasmagentv1.TemplateSkill{Name: "s", Content: strings.Repeat("x", 64<<10)})
	}
	if _, err := gallery.Container(gallery.Parts{Skills: many}); !errors.Is(err, gallery.ErrLarge) {
		t.Errorf("a container of 4 MiB: %v", err)
	}
}

func TestRead_ErrorNamesPosition(t *testing.T) {
	t.Parallel()
	const good = `{"id":"a","name":"A","category":"c","prompts":[{"name":"p","system_prompt":"x"}]}`
	for text, want := range map[string]string{
		`{"not":"array"}`:            "is not an array",
		`[]`:                         "empty",
		`[` + good + `,{"id":"b"}]`:  "/1/name: is missing",
		`[` + good + `]x`:            "follows",
		`[` + good + `,`:             "/1",
		`[{"id":"a","mcpTools":[]}]`: "/0/mcpTools: is not known",
		`[{"id":"A B","name":"A"}]`:  "/0/category: is missing",
		strings.Replace("["+good+"]", `"id":"a"`, `"id":"A B"`, 1): "/0: ",
		strings.Replace("["+good+"]", `"x"`, `5`, 1):               "/0/prompts/0/system_prompt: must be a string",
		"[" + strings.Repeat(good+",", 1000) + good + "]":          "it has more than 1000",
	} {
		if all, err := gallery.Read([]byte(text)); !errors.Is(err, gallery.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, %v, want %q", text, ids(all), err, want)
		}
	}
	if all, err := gallery.Read([]byte("[" + good + "]")); err != nil || all[0].GetPrompts()[0].GetSystemPrompt() != "x" {
		t.Errorf("a valid text: %v, %v", all, err)
	}
}

// FuzzRead checks that each input is either refused with [gallery.ErrInvalid] or contains only templates that are valid
// according to the API contract.
func FuzzRead(f *testing.F) {
	f.Add(`[{"id":"a","name":"A","category":"c","prompts":[{"name":"p","system_prompt":"x"}],"tools":[{"name":"t","parameters":{}}]}]`)
	f.Add(`[{"id":"a","id":"b"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		all, err := gallery.Read([]byte(text))
		if err != nil {
			if !errors.Is(err, gallery.ErrInvalid) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, one := range all {
			if err := protovalidate.Validate(one); err != nil {
				t.Errorf("%v: %v", one, err)
			}
		}
	})
}

type memoryStore struct {
	templates map[[2]string]*wasmagentv1.Template
	accepted  map[[2]string]bool
	version   int64 // shared by all tenants
}

func newMemoryStore() *memoryStore {
	return &memoryStore{templates: make(map[[2]string]*wasmagentv1.Template), accepted: make(map[[2]string]bool)}
}

func (m *memoryStore) Tenants(context.Context) (all []string, _ error) {
	for key := range m.templates {
		all = append(all, key[0])
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func (m *memoryStore) Templates(_ context.Context, tenant string, known int64) (int64, []*wasmagentv1.Template, error) {
	var all []*wasmagentv1.Template
	for key, t := range m.templates {
		if key[0] == tenant && known != m.version {
			all = append(all, proto.CloneOf(t))
		}
	}
	return m.version, all, nil
}

func (m *memoryStore) AddTemplates(_ context.Context, tenant string, untrusted bool, templates []*wasmagentv1.Template) (bool, error) {
	m.version++
	for _, t := range templates {
		key := [2]string{tenant, t.GetId()}
		t.Quarantined = t.GetQuarantined() || untrusted && m.accepted[key]
		m.templates[key] = proto.CloneOf(t)
	}
	return false, nil
}

func (m *memoryStore) AcceptTemplate(_ context.Context, tenant, id string, accept func(*wasmagentv1.Template) error) (bool, error) {
	key := [2]string{tenant, id}
	if m.templates[key] == nil {
		return false, nil
	}
	t := proto.CloneOf(m.templates[key])
	if err := accept(t); err != nil {
		return false, err
	}
	m.version++
	m.templates[key], m.accepted[key] = t, true
	return true, nil
}

func (m *memoryStore) RemoveTemplate(_ context.Context, tenant, id string) error {
	m.version++
	delete(m.templates, [2]string{tenant, id})
	return nil
}
