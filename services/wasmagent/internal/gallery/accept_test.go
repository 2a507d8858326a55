package gallery_test

import (
	"errors"
	"testing"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/gallery"
)

func digestOf(t *testing.T, g *gallery.Gallery, tenant, id string) string {
	t.Helper()
	found, err := g.Get(tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	return gallery.Digest(found)
}

func openGallery(t *testing.T, keeper gallery.Store) *gallery.Gallery {
	t.Helper()
	g, err := gallery.New(t.Context(), keeper, "agents")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func templateWithPrompt(id, prompt string) *wasmagentv1.Template {
	t := template(id)
	t.Prompts = []*wasmagentv1.TemplatePrompt{{Name: "p", SystemPrompt: prompt}}
	return t
}

func addTemplate(t *testing.T, g *gallery.Gallery, caller principal.Key, from gallery.Source, template *wasmagentv1.Template) bool {
	t.Helper()
	if err := g.Add(t.Context(), caller, from, template); err != nil {
		t.Fatal(err)
	}
	found, err := g.Get(caller.Tenant, template.GetId())
	if err != nil {
		t.Fatal(err)
	}
	return found.GetQuarantined()
}

func acceptTemplate(t *testing.T, g *gallery.Gallery, tenant, id, digest string) {
	t.Helper()
	if got, err := g.Accept(t.Context(), tenant, id, digest); err != nil || got.GetQuarantined() {
		t.Fatalf("accepted: %v, %v", got, err)
	}
}

func TestAccept_RefusesOtherDigests(t *testing.T) {
	t.Parallel()
	g := openGallery(t, newMemoryStore())
	if !addTemplate(t, g, ana, gallery.FromImport, templateWithPrompt("foreign", "Help.")) {
		t.Fatal("the imported template is not quarantined")
	}
	shown := digestOf(t, g, ana.Tenant, "foreign")
	// The last digest is computed from the same template, but without the principal that added it.
	for _, digest := range []string{"", "0", shown[1:] + "0", gallery.Digest(templateWithPrompt("foreign", "Help."))} {
		if _, err := g.Accept(t.Context(), ana.Tenant, "foreign", digest); !errors.Is(err, gallery.ErrChanged) {
			t.Errorf("accepted with the digest %q: %v", digest, err)
		}
	}
	if _, err := g.Accept(t.Context(), "elsewhere", "foreign", shown); !errors.Is(err, gallery.ErrUnknown) {
		t.Errorf("accepted in another tenant: %v", err)
	}
	if found, _ := g.Get(ana.Tenant, "foreign"); !found.GetQuarantined() {
		t.Error("a refused acceptance admits the template")
	}
	acceptTemplate(t, g, ana.Tenant, "foreign", shown)
	acceptTemplate(t, g, ana.Tenant, "foreign", shown) // accepting twice is not an error
}

// An operator accepts a template. A template with the same id but different content is quarantined, whether it is
// imported or added by its author.
func TestAdd_QuarantinesOtherContentOfAcceptedID(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]gallery.Source{"imported": gallery.FromImport, "added": gallery.FromAuthor} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keeper := newMemoryStore()
			g := openGallery(t, keeper)
			addTemplate(t, g, ana, gallery.FromImport, templateWithPrompt("foreign", "Help."))
			shown := digestOf(t, g, ana.Tenant, "foreign")
			acceptTemplate(t, g, ana.Tenant, "foreign", shown)
			if err := g.Remove(t.Context(), ana, false, "foreign"); err != nil {
				t.Fatal(err)
			}
			if !addTemplate(t, g, ana, from, templateWithPrompt("foreign", "Steal.")) {
				t.Error("other content of the accepted id is not quarantined")
			}
			if _, err := g.Accept(t.Context(), ana.Tenant, "foreign", shown); !errors.Is(err, gallery.ErrChanged) {
				t.Errorf("the new content is accepted with the digest of the earlier content: %v", err)
			}
			if found, err := openGallery(t, keeper).Get(ana.Tenant, "foreign"); err != nil || !found.GetQuarantined() {
				t.Errorf("after a restart: %v, %v", found, err)
			}
			if err := g.Remove(t.Context(), ana, true, "foreign"); err != nil {
				t.Fatal(err)
			}
			if addTemplate(t, g, ana, gallery.FromOperator, templateWithPrompt("foreign", "Help more.")) {
				t.Error("the template of an operator is quarantined")
			}
			other := principal.Key{Tenant: "elsewhere", Subject: "eve"}
			if addTemplate(t, g, other, gallery.FromAuthor, templateWithPrompt("foreign", "Mine.")) {
				t.Error("the acceptance of one tenant is valid in another")
			}
		})
	}
}

// If the stored content differs from the accepted content, the template is quarantined.
func TestRefresh_QuarantinesChangedRow(t *testing.T) {
	t.Parallel()
	keeper := newMemoryStore()
	g := openGallery(t, keeper)
	addTemplate(t, g, ana, gallery.FromImport, templateWithPrompt("foreign", "Help."))
	acceptTemplate(t, g, ana.Tenant, "foreign", digestOf(t, g, ana.Tenant, "foreign"))
	keeper.templates[[2]string{ana.Tenant, "foreign"}].Prompts[0].SystemPrompt = "Steal."
	keeper.version++
	if found, err := openGallery(t, keeper).Get(ana.Tenant, "foreign"); err != nil || !found.GetQuarantined() {
		t.Errorf("the changed row: %v, %v", found, err)
	}
}

// Another replica removes or replaces a template. A replica that has not read this change yet does not accept the old
// template.
func TestAccept_RefusesWhenOtherReplicaReplacedTemplate(t *testing.T) {
	t.Parallel()
	keeper := newMemoryStore()
	one := openGallery(t, keeper)
	addTemplate(t, one, ana, gallery.FromImport, templateWithPrompt("foreign", "Help."))
	shown := digestOf(t, one, ana.Tenant, "foreign")
	two := openGallery(t, keeper)
	if err := two.Remove(t.Context(), ana, false, "foreign"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Accept(t.Context(), ana.Tenant, "foreign", shown); !errors.Is(err, gallery.ErrUnknown) {
		t.Errorf("a template that another replica removed is accepted: %v", err)
	}
	addTemplate(t, two, ana, gallery.FromImport, templateWithPrompt("foreign", "Steal."))
	if _, err := one.Accept(t.Context(), ana.Tenant, "foreign", shown); !errors.Is(err, gallery.ErrChanged) {
		t.Errorf("a template that another replica replaced is accepted: %v", err)
	}
	if found, _ := openGallery(t, keeper).Get(ana.Tenant, "foreign"); !found.GetQuarantined() || found.GetPrompts()[0].GetSystemPrompt() != "Steal." {
		t.Errorf("the store has %v", found)
	}
}
