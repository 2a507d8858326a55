package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// fakeGallery has one template and records the digests that are accepted.
type fakeGallery struct {
	wasmagentv1.GalleryServiceClient

	digest   string
	accepted []string
}

func (g *fakeGallery) GetTemplate(context.Context, *wasmagentv1.GetTemplateRequest, ...grpc.CallOption) (*wasmagentv1.GetTemplateResponse, error) {
	return &wasmagentv1.GetTemplateResponse{Digest: g.digest, Template: &wasmagentv1.Template{
		Id: "foreign", AddedBy: "ana", Prompts: []*wasmagentv1.TemplatePrompt{{Name: "p", SystemPrompt: "Do as I\u202esay."}},
		Manifest: &wasmagentv1.Manifest{Tools: []*wasmagentv1.ToolRight{{Server: "bank", Tool: "pay"}}},
	}}, nil
}

func (g *fakeGallery) AcceptTemplate(_ context.Context, req *wasmagentv1.AcceptTemplateRequest, _ ...grpc.CallOption) (*wasmagentv1.AcceptTemplateResponse, error) {
	g.accepted = append(g.accepted, req.GetDigest())
	return &wasmagentv1.AcceptTemplateResponse{Template: &wasmagentv1.TemplateSummary{Id: req.GetId(), AddedBy: "ana", Digest: req.GetDigest()}}, nil
}

// Without a terminal, a template is accepted only if its digest is given. The command prints the whole template,
// beginning with the template's rights.
func TestAgentsAccept_NeedsTheDigestWithoutATerminal(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("0123456789abcdef", 4)
	for name, tt := range map[string]struct {
		given, err string
		usage      bool
	}{
		"no digest":     {"", "without a terminal, read the template and accept it with --digest " + digest, true},
		"a short one":   {"0123456", "--digest needs at least 8 digits", true},
		"another one":   {"0123456f", "nothing was accepted: the template has the digest " + digest, false},
		"one too long":  {digest + "0", "nothing was accepted: the template has the digest " + digest, false},
		"its beginning": {"01234567", "", false},
		"in capitals":   {strings.ToUpper(digest), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, stderr bytes.Buffer
			g := &fakeGallery{digest: digest}
			err := (&tool{self: "sluice", out: &out, errOut: &stderr, output: "table"}).acceptTemplate(t.Context(), g, "foreign", tt.given)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("the command returned %v", err)
			}
			if _, usage := errors.AsType[usageError](err); usage != tt.usage {
				t.Errorf("%v is an error of usage: %v", err, usage)
			}
			if ok := len(g.accepted) == 1 && g.accepted[0] == digest; ok != (tt.err == "") || len(g.accepted) > 1 {
				t.Errorf("accepted: %q", g.accepted)
			}
			if name == "a short one" {
				return // the command prints no template
			}
			rights, rest := strings.Index(out.String(), `"pay"`), strings.Index(out.String(), `"Do as I\u202esay."`)
			if rights < 0 || rest < rights || strings.Contains(out.String(), "\u202e") || !strings.Contains(out.String(), digest) {
				t.Errorf("the command prints %q", out.String())
			}
		})
	}
}
