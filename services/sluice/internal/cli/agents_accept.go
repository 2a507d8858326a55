package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// minDigest is the minimum number of hexadecimal digits in a digest that a person enters.
const minDigest = 8

func (t *tool) agentsAccept() *cobra.Command {
	var digest string
	c := &cobra.Command{
		Use: "accept TEMPLATE", Short: "Accept an imported template, so that agents can be created from it",
		Long: `Accept an imported template, so that agents can be created from it. The command prints the whole
template, beginning with its rights, and asks you to confirm. Without a terminal, set --digest.
A template with the same name and other content is quarantined.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			conn, err := t.dial(f, authv1.Role_ROLE_WASMAGENT)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			return t.acceptTemplate(c.Context(), wasmagentv1.NewGalleryServiceClient(conn), given[0], digest)
		},
	}
	c.Flags().StringVar(&digest, "digest", "", fmt.Sprintf("at least %d digits of the digest that you have read; the command then does not ask", minDigest))
	return c
}

// acceptTemplate shows a template, asks the person for confirmation, and accepts the digest of this template.
func (t *tool) acceptTemplate(ctx context.Context, client wasmagentv1.GalleryServiceClient, id, digest string) error {
	if digest != "" && len(digest) < minDigest {
		return usageError{fmt.Errorf("--digest needs at least %d digits of the digest", minDigest)}
	}
	requestCtx, cancel := requestContext(ctx)
	defer cancel()
	shown, err := client.GetTemplate(requestCtx, &wasmagentv1.GetTemplateRequest{Id: id})
	if err != nil {
		return t.explainError(err)
	}
	to := t.out
	if t.json() {
		to = t.errOut
	}
	printTemplate(to, shown)
	fullDigest := shown.GetDigest()
	switch named := len(digest) <= len(fullDigest) && strings.EqualFold(fullDigest[:len(digest)], digest); {
	case digest != "" && !named:
		return fmt.Errorf("nothing was accepted: the template has the digest %s, which is not the digest in --digest; read the template again", fullDigest)
	case digest == "" && !isInteractive(false):
		return usageError{errors.New("nothing was accepted: without a terminal, read the template and accept it with --digest " + fullDigest)}
	}
	if err := t.confirm(ctx, digest != "", "Let agents be created from this template?"); err != nil {
		return fmt.Errorf("%w: the template was not accepted", err)
	}
	requestCtx, cancel = requestContext(ctx)
	defer cancel()
	resp, err := client.AcceptTemplate(requestCtx, &wasmagentv1.AcceptTemplateRequest{Id: shown.GetTemplate().GetId(), Digest: fullDigest})
	if err != nil {
		return t.explainError(err)
	}
	if t.json() {
		return t.printJSON(struct {
			ID      string `json:"id"`
			AddedBy string `json:"addedBy"`
			Digest  string `json:"digest"`
		}{resp.GetTemplate().GetId(), resp.GetTemplate().GetAddedBy(), resp.GetTemplate().GetDigest()})
	}
	t.printf("agents can be created from %s, which %s added, as long as its digest is %s", resp.GetTemplate().GetId(), resp.GetTemplate().GetAddedBy(), resp.GetTemplate().GetDigest())
	return nil
}

func printTemplate(w io.Writer, shown *wasmagentv1.GetTemplateResponse) {
	t := proto.CloneOf(shown.GetTemplate())
	_ = oneLine(w, "%-14s %s", "template", t.GetId())
	_ = oneLine(w, "%-14s %s", "added by", orDash(t.GetAddedBy()))
	_ = oneLine(w, "%-14s %s", "digest", shown.GetDigest())
	rights := "its own files and todos, nothing else"
	if t.GetManifest() != nil {
		rights = "limited by the rights of the principal that creates an agent from it:\n" + indented(t.GetManifest())
	}
	fmt.Fprint(w, safetext.Lines(fmt.Sprintf("%-14s %s\n", "its rights", rights)))
	t.Manifest = nil
	fmt.Fprint(w, safetext.Lines("the rest of the template:\n"+indented(t)+"\n"))
}

func indented(m proto.Message) string {
	text := protoJSON(m)
	if err := text.Indent(jsontext.WithIndent("  ")); err != nil {
		return string(protoJSON(m))
	}
	return string(text)
}
