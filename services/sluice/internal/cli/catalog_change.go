package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// plainWord matches words that need no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// shellWords quotes words for a shell and joins them into a command line.
func shellWords(all ...string) string {
	for i, word := range all {
		if !plainWord.MatchString(word) {
			all[i] = "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
		}
	}
	return strings.Join(all, " ")
}

type reviewFlags struct{ digest, reason string }

func (f *reviewFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.digest, "digest", "", "at least 8 digits of the `DIGEST` that catalog diff printed")
	c.Flags().StringVar(&f.reason, "reason", "", "the reason, stored with the decision")
}

// findDigest returns the digest that begins with the digits in --digest. It returns an error unless exactly one of the
// given digests begins with these digits.
func (f *reviewFlags) findDigest(all [][]byte) ([]byte, error) {
	if len(f.digest) < 8 {
		return nil, usageError{errors.New("--digest needs at least 8 digits of the digest")}
	}
	var found []byte
	for _, d := range all {
		if strings.HasPrefix(hex.EncodeToString(d), strings.ToLower(f.digest)) {
			if found != nil {
				return nil, usageError{fmt.Errorf("--digest %s is the beginning of several digests: give more digits", f.digest)}
			}
			found = d
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no definition has a digest that begins with %s: it may have changed; run catalog diff again", f.digest)
	}
	return found, nil
}

func (t *tool) catalogAccept() *cobra.Command {
	f := new(reviewFlags)
	c := &cobra.Command{
		Use: "accept SERVER [TOOL] --digest DIGEST", Short: "Accept a definition that you have read, or all pending definitions of a server",
		Long: `Accept a definition of a tool, so that policy decides on its calls. Without TOOL, accept all
pending definitions of a server except flagged ones. ` + "`catalog diff`" + ` shows the definitions and
the digest. If you accept a definition that was accepted automatically, you confirm what the
catalog says about the tool.`,
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: t.completeCatalog(true),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			req := &policyv1.AcceptPinRequest{Server: given[0], Reason: f.reason}
			var err error
			if len(given) == 2 {
				req.Tool = given[1]
				req.DefinitionDigest, err = t.listedDigest(ctx, client, given, f)
			} else {
				req.DefinitionDigest, err = t.pendingDigest(ctx, client, given[0], f)
			}
			if err != nil {
				return err
			}
			ctx, cancel := requestContext(ctx)
			defer cancel()
			resp, err := client.AcceptPin(ctx, req)
			if err != nil {
				return t.explainError(err)
			}
			if t.json() {
				return t.printJSON(changeResult{Accepted: new(int(resp.GetAccepted())), Revision: resp.GetPolicyRevision()})
			}
			t.printf("%d accepted; revision %s", resp.GetAccepted(), resp.GetPolicyRevision())
			if req.GetTool() == "" {
				t.printPending(ctx, client, given[0])
			}
			return nil
		}),
	}
	f.add(c)
	return c
}

type changeResult struct {
	Accepted *int   `json:"accepted,omitzero"`
	Revision string `json:"revision"`
}

func (t *tool) printChanged(what, revision string) error {
	if t.json() {
		return t.printJSON(changeResult{Revision: revision})
	}
	t.printf("%s; revision %s", what, revision)
	return nil
}

// listedDigest returns the complete digest of the definition that --digest selects. The parameter given contains the
// names of the server and the tool.
func (t *tool) listedDigest(ctx context.Context, client policyv1.CatalogServiceClient, given []string, f *reviewFlags) ([]byte, error) {
	page, err := t.catalogPage(ctx, client, given[0], given[1])
	if err != nil {
		return nil, err
	}
	if f.digest == "" {
		return nil, usageError{fmt.Errorf("--digest is missing: %s shows the definition and prints its digest", t.command(shellWords("catalog", "diff", given[0], given[1])))}
	}
	var all [][]byte
	for _, d := range page.GetHistory() {
		all = append(all, d.GetDefinitionDigest())
	}
	return f.findDigest(all)
}

// pendingDigest returns the combined digest of a server's pending definitions. It returns an error if this digest does
// not begin with the digits in --digest.
func (t *tool) pendingDigest(ctx context.Context, client policyv1.CatalogServiceClient, server string, f *reviewFlags) ([]byte, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetServer(ctx, &policyv1.GetServerRequest{Server: server})
	if err != nil {
		return nil, t.explainError(err)
	}
	waiting := resp.GetServer().GetWaitingDigest()
	if len(waiting) == 0 {
		return nil, fmt.Errorf("server %s has no pending definition to accept", server)
	}
	if f.digest == "" {
		return nil, usageError{fmt.Errorf("--digest is missing: %s shows the definitions and prints their digest", t.command(shellWords("catalog", "diff", server)))}
	}
	return f.findDigest([][]byte{waiting})
}

func (t *tool) catalogRefuse() *cobra.Command {
	f := new(reviewFlags)
	c := &cobra.Command{
		Use: "refuse SERVER TOOL --digest DIGEST", Short: "Refuse a definition; the tool's accepted definitions stay in use",
		Args: args(cobra.ExactArgs(2)), ValidArgsFunction: t.completeCatalog(true),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			digest, err := t.listedDigest(ctx, client, given, f)
			if err != nil {
				return err
			}
			ctx, cancel := requestContext(ctx)
			defer cancel()
			resp, err := client.RefusePin(ctx, &policyv1.RefusePinRequest{Server: given[0], Tool: given[1], DefinitionDigest: digest, Reason: f.reason})
			if err != nil {
				return t.explainError(err)
			}
			return t.printChanged("refused", resp.GetPolicyRevision())
		}),
	}
	f.add(c)
	return c
}

// tagName matches valid tags. See ToolOverride.tags.
var tagName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func (t *tool) catalogOverride() *cobra.Command {
	var category, risk, reason string
	var tags []string
	var remove bool
	c := &cobra.Command{
		Use:   "override SERVER TOOL (--category CATEGORY | --risk RISK | --tag TAG | --remove) --reason REASON",
		Short: "Override what the catalog says about a tool", Args: args(cobra.ExactArgs(2)), ValidArgsFunction: t.completeCatalog(false),
		Example: "  " + t.self + " catalog override files sync_folder --category destructive --risk critical --reason \"it deletes files\"",
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			o, err := overrideOf(category, risk, reason, tags)
			switch {
			case err != nil:
				return err
			case remove:
				o = nil
			case reason == "":
				return usageError{errors.New("a reason is required: set --reason")}
			}
			page, err := t.catalogPage(ctx, client, given[0], given[1])
			if err != nil {
				return err
			}
			ctx, cancel := requestContext(ctx)
			defer cancel()
			resp, err := client.OverrideTool(ctx, &policyv1.OverrideToolRequest{Server: given[0], Tool: given[1], Override: o, Etag: page.GetEtag()})
			if err != nil {
				return t.explainError(err)
			}
			return t.printChanged("done", resp.GetPolicyRevision())
		}),
	}
	flags := c.Flags()
	flags.StringVar(&category, "category", "", "the category: "+strings.Join(categoryNames, ", "))
	flags.StringVar(&risk, "risk", "", "the risk: "+strings.Join(riskNames, ", "))
	flags.StringSliceVar(&tags, "tag", nil, "a `TAG` to add, for match: {tags} in policies")
	flags.StringVar(&reason, "reason", "", "the reason, shown with the tool")
	flags.BoolVar(&remove, "remove", false, "remove the override")
	c.MarkFlagsOneRequired("category", "risk", "tag", "remove")
	for _, name := range []string{"category", "risk", "tag"} {
		c.MarkFlagsMutuallyExclusive("remove", name)
	}
	_ = c.RegisterFlagCompletionFunc("category", cobra.FixedCompletions(categoryNames, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("risk", cobra.FixedCompletions(riskNames, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func overrideOf(category, risk, reason string, tags []string) (*policyv1.ToolOverride, error) {
	o := &policyv1.ToolOverride{Reason: reason, Tags: tags}
	if category != "" {
		n, err := valueOf("category", "CATEGORY_", category, mcpv1.Category_value)
		if err != nil {
			return nil, err
		}
		o.Category = mcpv1.Category(n)
	}
	if risk != "" {
		n, err := valueOf("risk", "RISK_", risk, policyv1.Risk_value)
		if err != nil {
			return nil, err
		}
		o.Risk = policyv1.Risk(n)
	}
	for _, tag := range tags {
		if !tagName.MatchString(tag) {
			return nil, usageError{fmt.Errorf("--tag must be 1 to 64 lower-case letters, digits and hyphens, is %q", tag)}
		}
	}
	return o, nil
}

func (t *tool) catalogQuarantine() *cobra.Command {
	var reason string
	var lift bool
	c := &cobra.Command{
		Use: "quarantine SERVER [TOOL] --reason REASON", Short: "Quarantine a tool or a whole server; with --lift, end the quarantine",
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: t.completeCatalog(false),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			ctx, cancel := requestContext(ctx)
			defer cancel()
			req := &policyv1.SetQuarantineRequest{Server: given[0], Quarantined: !lift, Reason: reason}
			if len(given) == 2 {
				req.Tool = given[1]
			}
			resp, err := client.SetQuarantine(ctx, req)
			if err != nil {
				return t.explainError(err)
			}
			what := "quarantined"
			if lift {
				what = "no longer quarantined"
			}
			return t.printChanged(what, resp.GetPolicyRevision())
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "the reason, shown with the tool (required)")
	c.Flags().BoolVar(&lift, "lift", false, "end the quarantine")
	_ = c.MarkFlagRequired("reason")
	return c
}
