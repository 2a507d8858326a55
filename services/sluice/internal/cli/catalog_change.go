package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func (t *tool) catalogDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff SERVER TOOL", Short: "Show what has changed in a tool's definition since it was accepted",
		Long: `Show each definition of a tool that waits for a person, against the one that was accepted
last, and the commands that accept or refuse it. Nobody can call the tool until then.`,
		Args: args(cobra.ExactArgs(2)), ValidArgsFunction: t.completeCatalog(true),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			page, err := t.catalogPage(ctx, client, given[0], given[1])
			if err != nil {
				return err
			}
			diffs, err := t.diffs(ctx, client, page)
			if err != nil {
				return err
			}
			if t.json() {
				return t.printJSON(toolDiff{page.GetServer(), page.GetName(), diffs})
			}
			if len(diffs) == 0 {
				t.printf("nothing of %s waits on %s", page.GetName(), page.GetServer())
			}
			for _, d := range diffs {
				t.printf("%s of %s on %s: %s%s", d.Digest[:min(16, len(d.Digest))], page.GetName(), page.GetServer(), d.Reason, d.seen())
				for part := range strings.Lines(d.Diff) {
					t.printf("  %s", strings.TrimRight(part, "\n"))
				}
				t.printf("accept it: %s", t.command(shellWords("catalog", "accept", page.GetServer(), page.GetName(), "--digest", d.Digest[:min(16, len(d.Digest))])))
				t.printf("refuse it: %s", t.command(shellWords("catalog", "refuse", page.GetServer(), page.GetName(), "--digest", d.Digest[:min(16, len(d.Digest))])))
			}
			return nil
		}),
	}
}

// plainWord is a word that every shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// shellWords is a command line of these words, as a shell reads it.
func shellWords(all ...string) string {
	for i, word := range all {
		if !plainWord.MatchString(word) {
			all[i] = "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
		}
	}
	return strings.Join(all, " ")
}

// toolDiff is what waits of a tool.
type toolDiff struct {
	Server  string        `json:"server"`
	Name    string        `json:"name"`
	Waiting []waitingDiff `json:"waiting"`
}

// waitingDiff is a definition that waits, against the one that was accepted last.
type waitingDiff struct {
	Digest   string `json:"digest"`
	Accepted string `json:"accepted,omitzero"`
	Reason   string `json:"reason"`
	SeenBy   string `json:"seenBy,omitzero"`
	Diff     string `json:"diff"`
}

func (d waitingDiff) seen() string {
	if d.SeenBy == "" {
		return ""
	}
	return " (it was listed to " + d.SeenBy + ")"
}

// diffs are the definitions that wait.
func (t *tool) diffs(ctx context.Context, client policyv1.CatalogServiceClient, page *policyv1.CatalogTool) ([]waitingDiff, error) {
	out := []waitingDiff{}
	accepted, digest := "", ""
	for _, d := range page.GetHistory() { // the newest first
		if d.GetPin() == policyv1.PinState_PIN_STATE_ACCEPTED {
			text, err := t.definition(ctx, client, page, d)
			if err != nil {
				return nil, err
			}
			accepted, digest = text, hex.EncodeToString(d.GetDefinitionDigest())
			break
		}
	}
	for _, d := range page.GetHistory() {
		if d.GetPin() != policyv1.PinState_PIN_STATE_QUARANTINED {
			continue
		}
		text, err := t.definition(ctx, client, page, d)
		if err != nil {
			return nil, err
		}
		out = append(out, waitingDiff{
			Digest: hex.EncodeToString(d.GetDefinitionDigest()), Accepted: digest, Reason: d.GetReason(), SeenBy: d.GetSeenBy(),
			Diff: udiff.Unified("accepted", "waits", accepted, text),
		})
	}
	return out, nil
}

// definition is the text of a definition, one member a line, in the order of the names.
func (t *tool) definition(ctx context.Context, client policyv1.CatalogServiceClient, page *policyv1.CatalogTool, d *policyv1.SeenDefinition) (string, error) {
	ctx, cancel := ask(ctx)
	defer cancel()
	resp, err := client.GetDefinition(ctx, &policyv1.GetDefinitionRequest{Server: page.GetServer(), Tool: page.GetName(), DefinitionDigest: d.GetDefinitionDigest()})
	if err != nil {
		return "", t.explain(err)
	}
	text := jsontext.Value(resp.GetDefinitionJson())
	if err := text.Format(jsontext.CanonicalizeRawInts(false), jsontext.ReorderRawObjects(true), jsontext.Multiline(true), jsontext.WithIndent("  "), jsontext.EscapeForJS(true)); err != nil {
		return resp.GetDefinitionJson() + "\n", nil // it is shown as it is
	}
	return string(text) + "\n", nil
}

// settleFlags say which definition a person has looked at, and why.
type settleFlags struct{ digest, reason string }

func (f *settleFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.digest, "digest", "", "the start of the digest of what you looked at, as `catalog diff` prints it; at least 8 digits")
	c.Flags().StringVar(&f.reason, "reason", "", "why; kept with it")
}

// find is the digest of the list that the flag names the start of.
func (f *settleFlags) find(all [][]byte) ([]byte, error) {
	if len(f.digest) < 8 {
		return nil, usageError{errors.New("--digest needs at least 8 digits of the digest")}
	}
	var found []byte
	for _, d := range all {
		if strings.HasPrefix(hex.EncodeToString(d), strings.ToLower(f.digest)) {
			if found != nil {
				return nil, usageError{fmt.Errorf("--digest %s is the start of more than one: give more digits", f.digest)}
			}
			found = d
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no definition that was seen has a digest that starts with %s: look again, it may have changed", f.digest)
	}
	return found, nil
}

func (t *tool) catalogAccept() *cobra.Command {
	f := new(settleFlags)
	c := &cobra.Command{
		Use: "accept SERVER [TOOL] --digest DIGEST", Short: "Accept a definition that you have looked at, or all of a server that wait",
		Long: `Accept a definition of a tool, so that calls with it are judged; or, without TOOL, all that
wait on a server, whose digest ` + "`catalog servers -o json`" + ` has. To accept one that was accepted by
itself says that a person vouches for what the catalogue holds the tool to be.`,
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: t.completeCatalog(true),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			req := &policyv1.AcceptPinRequest{Server: given[0], Reason: f.reason}
			var err error
			if len(given) == 2 {
				req.Tool = given[1]
				req.DefinitionDigest, err = t.seenDigest(ctx, client, given, f)
			} else {
				req.DefinitionDigest, err = t.waitingDigest(ctx, client, given[0], f)
			}
			if err != nil {
				return err
			}
			ctx, cancel := ask(ctx)
			defer cancel()
			resp, err := client.AcceptPin(ctx, req)
			if err != nil {
				return t.explain(err)
			}
			if t.json() {
				return t.printJSON(changed{Accepted: new(int(resp.GetAccepted())), Revision: resp.GetPolicyRevision()})
			}
			t.printf("%d accepted; revision %s", resp.GetAccepted(), resp.GetPolicyRevision())
			return nil
		}),
	}
	f.add(c)
	return c
}

// changed is what a change has made, as JSON.
type changed struct {
	Accepted *int   `json:"accepted,omitzero"`
	Revision string `json:"revision"`
}

// printChanged prints that a change is made.
func (t *tool) printChanged(what, revision string) error {
	if t.json() {
		return t.printJSON(changed{Revision: revision})
	}
	t.printf("%s; revision %s", what, revision)
	return nil
}

// seenDigest is the digest of the definition that the person has looked at.
func (t *tool) seenDigest(ctx context.Context, client policyv1.CatalogServiceClient, given []string, f *settleFlags) ([]byte, error) {
	page, err := t.catalogPage(ctx, client, given[0], given[1])
	if err != nil {
		return nil, err
	}
	if f.digest == "" {
		return nil, usageError{fmt.Errorf("look at it first: %s prints the digest to give with --digest", t.command(shellWords("catalog", "diff", given[0], given[1])))}
	}
	var all [][]byte
	for _, d := range page.GetHistory() {
		all = append(all, d.GetDefinitionDigest())
	}
	return f.find(all)
}

// waitingDigest is the digest of all that waits on a server, as the person has seen it.
func (t *tool) waitingDigest(ctx context.Context, client policyv1.CatalogServiceClient, server string, f *settleFlags) ([]byte, error) {
	asking, cancel := ask(ctx)
	defer cancel()
	resp, err := client.GetServer(asking, &policyv1.GetServerRequest{Server: server})
	if err != nil {
		return nil, t.explain(err)
	}
	waiting := resp.GetServer().GetWaitingDigest()
	if len(waiting) == 0 {
		return nil, fmt.Errorf("nothing waits on %s", server)
	}
	if f.digest == "" {
		tools, err := t.allTools(ctx, client, &policyv1.ListToolsRequest{Server: server, Waiting: true, PageSize: maxCatalogPage})
		if err != nil {
			return nil, err
		}
		for _, one := range tools {
			t.printf("waits: %s", one.GetName())
		}
		return nil, usageError{fmt.Errorf("these would be accepted: %s", t.command(shellWords("catalog", "accept", server, "--digest", short(waiting))))}
	}
	return f.find([][]byte{waiting})
}

func (t *tool) catalogRefuse() *cobra.Command {
	f := new(settleFlags)
	c := &cobra.Command{
		Use: "refuse SERVER TOOL --digest DIGEST", Short: "Refuse a definition, so that the tool goes on with those that were accepted",
		Args: args(cobra.ExactArgs(2)), ValidArgsFunction: t.completeCatalog(true),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			digest, err := t.seenDigest(ctx, client, given, f)
			if err != nil {
				return err
			}
			ctx, cancel := ask(ctx)
			defer cancel()
			resp, err := client.RefusePin(ctx, &policyv1.RefusePinRequest{Server: given[0], Tool: given[1], DefinitionDigest: digest, Reason: f.reason})
			if err != nil {
				return t.explain(err)
			}
			return t.printChanged("refused", resp.GetPolicyRevision())
		}),
	}
	f.add(c)
	return c
}

// tagName is a tag as the catalogue takes it (ToolOverride.tags).
var tagName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func (t *tool) catalogOverride() *cobra.Command {
	var category, risk, reason string
	var tags []string
	var remove bool
	c := &cobra.Command{
		Use:   "override SERVER TOOL (--category CATEGORY | --risk RISK | --tag TAG | --remove) --reason REASON",
		Short: "Say what a tool is, in place of the catalogue", Args: args(cobra.ExactArgs(2)), ValidArgsFunction: t.completeCatalog(false),
		Example: "  " + t.self + " catalog override files sync_folder --category destructive --risk critical --reason \"it removes what the other side has not\"",
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			o := &policyv1.ToolOverride{Reason: reason, Tags: tags}
			if category != "" {
				n, err := valueOf("category", "CATEGORY_", category, mcpv1.Category_value)
				if err != nil {
					return err
				}
				o.Category = mcpv1.Category(n)
			}
			if risk != "" {
				n, err := valueOf("risk", "RISK_", risk, policyv1.Risk_value)
				if err != nil {
					return err
				}
				o.Risk = policyv1.Risk(n)
			}
			for _, tag := range tags {
				if !tagName.MatchString(tag) {
					return usageError{fmt.Errorf("--tag %q is no tag: tags are of 1 to 64 lower-case letters, digits and -", tag)}
				}
			}
			if remove {
				o = nil
			} else if reason == "" {
				return usageError{errors.New("say why: --reason")}
			}
			page, err := t.catalogPage(ctx, client, given[0], given[1])
			if err != nil {
				return err
			}
			ctx, cancel := ask(ctx)
			defer cancel()
			resp, err := client.OverrideTool(ctx, &policyv1.OverrideToolRequest{Server: given[0], Tool: given[1], Override: o, Etag: page.GetEtag()})
			if err != nil {
				return t.explain(err)
			}
			return t.printChanged("done", resp.GetPolicyRevision())
		}),
	}
	flags := c.Flags()
	flags.StringVar(&category, "category", "", strings.Join(categoryNames, ", "))
	flags.StringVar(&risk, "risk", "", strings.Join(riskNames, ", "))
	flags.StringSliceVar(&tags, "tag", nil, "tags to add, for `match: {tags}` in policies")
	flags.StringVar(&reason, "reason", "", "why; shown with it")
	flags.BoolVar(&remove, "remove", false, "take back what a person has said")
	c.MarkFlagsOneRequired("category", "risk", "tag", "remove")
	for _, name := range []string{"category", "risk", "tag"} {
		c.MarkFlagsMutuallyExclusive("remove", name)
	}
	_ = c.RegisterFlagCompletionFunc("category", cobra.FixedCompletions(categoryNames, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("risk", cobra.FixedCompletions(riskNames, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (t *tool) catalogQuarantine() *cobra.Command {
	var reason string
	var lift bool
	c := &cobra.Command{
		Use: "quarantine SERVER [TOOL] --reason REASON", Short: "Stop a tool or a whole server, or with --lift let it go on",
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: t.completeCatalog(false),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			ctx, cancel := ask(ctx)
			defer cancel()
			req := &policyv1.SetQuarantineRequest{Server: given[0], Quarantined: !lift, Reason: reason}
			if len(given) == 2 {
				req.Tool = given[1]
			}
			resp, err := client.SetQuarantine(ctx, req)
			if err != nil {
				return t.explain(err)
			}
			what := "stopped"
			if lift {
				what = "it goes on"
			}
			return t.printChanged(what, resp.GetPolicyRevision())
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "why; shown with it")
	c.Flags().BoolVar(&lift, "lift", false, "let it go on")
	_ = c.MarkFlagRequired("reason")
	return c
}
