package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// catalogDiffFlags contains the flags of `policy diff` that describe changes to the catalog.
type catalogDiffFlags struct {
	all                    bool
	overrides, definitions []string
}

func (f *catalogDiffFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.all, "catalog", false, "compare as if all pending definitions of tools were accepted")
	c.Flags().StringArrayVar(&f.definitions, "definition", nil, "compare as if the pending definitions of `SERVER/TOOL` were accepted; SERVER/TOOL=DIGEST selects one by at least 8 digits")
	c.Flags().StringArrayVar(&f.overrides, "override", nil, "compare as if a tool had this `OVERRIDE`: SERVER/TOOL=[CATEGORY][:[RISK][:TAG,TAG]], or none if nothing follows =")
	for _, name := range []string{"catalog", "definition", "override"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
		c.MarkFlagsMutuallyExclusive("since", name)
	}
}

// given reports whether one of the flags is set.
func (f *catalogDiffFlags) given() bool { return f.all || len(f.overrides)+len(f.definitions) > 0 }

// args returns an error unless the command has either documents or changes to the catalog.
func (f *catalogDiffFlags) args(c *cobra.Command, given []string) error {
	switch {
	case !f.given():
		return cobra.RangeArgs(1, 2)(c, given)
	case len(given) > 0:
		return errors.New("--catalog, --definition and --override compare with the active documents: leave out OLD and NEW")
	}
	return nil
}

// runCatalogDiff lets the running mesh evaluate calls before and after changes to the catalog, and prints the
// differences.
func (t *tool) runCatalogDiff(ctx context.Context, flags *catalogDiffFlags) error {
	req, err := flags.request()
	if err != nil {
		return err
	}
	f, err := t.load()
	if err != nil {
		return err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answers matter
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	if err := t.completeDigests(ctx, policyv1.NewCatalogServiceClient(conn), req, flags.definitions); err != nil {
		return err
	}
	stream, err := policyv1.NewPolicyServiceClient(conn).DiffCatalog(ctx, req)
	if err != nil {
		return t.explainError(err)
	}
	diff, err := readDiff(stream)
	if err != nil {
		return t.explainError(err)
	}
	return t.printCatalogDiff(diff)
}

// request returns the request that the flags describe, without digests.
func (f *catalogDiffFlags) request() (*policyv1.DiffCatalogRequest, error) {
	req := &policyv1.DiffCatalogRequest{AllWaiting: f.all}
	for _, text := range f.overrides {
		change, err := overrideChange(text)
		if err != nil {
			return nil, err
		}
		req.Overrides = append(req.Overrides, change)
	}
	for _, text := range f.definitions {
		name, _, _ := strings.Cut(text, "=")
		server, tool, ok := strings.Cut(name, "/")
		if !ok || server == "" || tool == "" {
			return nil, usageError{fmt.Errorf("--definition must be SERVER/TOOL or SERVER/TOOL=DIGEST, is %q", text)}
		}
		req.Definitions = append(req.Definitions, &policyv1.DefinitionChange{Server: server, Tool: tool})
	}
	return req, nil
}

// overrideChange parses a value of --override.
func overrideChange(text string) (*policyv1.OverrideChange, error) {
	at := strings.LastIndex(text, "=")
	server, tool, ok := strings.Cut(text[:max(at, 0)], "/")
	if !ok || server == "" || tool == "" {
		return nil, usageError{fmt.Errorf("--override must be SERVER/TOOL=CATEGORY:RISK, SERVER/TOOL=CATEGORY or SERVER/TOOL=, is %q", text)}
	}
	category, rest, _ := strings.Cut(text[at+1:], ":")
	risk, list, _ := strings.Cut(rest, ":")
	var tags []string
	if list != "" {
		tags = strings.Split(list, ",")
	}
	o, err := overrideOf(category, risk, "", tags)
	if err != nil {
		return nil, err
	}
	return &policyv1.OverrideChange{Server: server, Tool: tool, Category: o.GetCategory(), Risk: o.GetRisk(), Tags: tags}, nil
}

// completeDigests sets the digests in the request to the complete digests of the definitions that --definition selects.
// A value of --definition can contain a prefix of a digest.
func (t *tool) completeDigests(ctx context.Context, client policyv1.CatalogServiceClient, req *policyv1.DiffCatalogRequest, texts []string) error {
	for i, change := range req.GetDefinitions() {
		_, digest, ok := strings.Cut(texts[i], "=")
		if !ok {
			continue
		}
		var err error
		if change.DefinitionDigest, err = t.listedDigest(ctx, client, []string{change.GetServer(), change.GetTool()}, &reviewFlags{digest: digest}); err != nil {
			return err
		}
	}
	return nil
}

// printCatalogDiff prints a comparison. It returns an error if a change would make calls less restricted, or if not all
// calls were compared.
func (t *tool) printCatalogDiff(diff *policyv1.DiffRevisionsResponse) error {
	totals := diff.GetTotals()
	if t.json() {
		if err := t.printMessage(diff); err != nil {
			return err
		}
	} else {
		if err := t.printFlips(diff, false); err != nil {
			return err
		}
		t.printf("%s", howCompared(totals))
	}
	switch names := ruleNames(totals.GetMayOpen()); {
	case totals.GetOpened() > 0:
		return errSilent
	case totals.GetEndedEarly():
		return incompleteError("the comparison is incomplete: there are too many callers, or it took too long; compare fewer changes")
	case totals.GetUncertain() > 0:
		return incompleteError("the comparison is incomplete: %s depend on too many conditions", countOfCalls(totals.GetUncertain()))
	case len(names) > 0:
		return incompleteError("the comparison is incomplete: it found no call that is opened, but %s may open calls of callers that were not compared, for example those of callers that many rules name; "+
			"check such a call with `sluice policy explain` after the change", strings.Join(names, ", "))
	}
	return nil
}

// howCompared says what was compared symbolically and with generated calls.
func howCompared(totals *policyv1.DiffTotals) string {
	if totals.GetTools() == 0 {
		return "The changes concern no tool: no definition is pending, and no override differs."
	}
	noun := "tools"
	if totals.GetTools() == 1 {
		noun = "tool"
	}
	return fmt.Sprintf("Compared symbolically: all arguments of %d %s. Compared by generated calls: callers without a configured token (%s).",
		totals.GetTools(), noun, countOfCalls(totals.GetGenerated()))
}

// definitionsOf returns the tools that occur with several definitions in the changed calls. The keys are SERVER/TOOL.
func definitionsOf(flips []*policyv1.Flip) map[string]bool {
	first, several := make(map[string]string), make(map[string]bool)
	for _, f := range flips {
		name, digest := f.GetCall().GetServer()+"/"+f.GetCall().GetName(), string(f.GetCall().GetDefinitionDigest())
		if known, ok := first[name]; ok && known != digest {
			several[name] = true
		}
		first[name] = digest
	}
	return several
}

// withDefinition adds the digest of the tool's definition to the description of a call's target.
func withDefinition(target string, f *policyv1.Flip) string {
	if digest := f.GetCall().GetDefinitionDigest(); len(digest) > 0 {
		return target + " (definition " + hex.EncodeToString(digest)[:8] + ")"
	}
	return target + " (other definitions)"
}

// refusedByCatalog returns why the catalog refuses a call, or "" if rules or defaults make the decision.
func refusedByCatalog(d *policyv1.Decision) string {
	if d.GetCode() == commonv1.Code_CODE_TOOL_CHANGED {
		return "pending definition"
	}
	return ""
}
