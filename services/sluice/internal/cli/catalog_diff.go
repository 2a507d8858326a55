package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func (t *tool) catalogDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff SERVER [TOOL]", Short: "Show how pending definitions of tools differ from the accepted definitions",
		Long: `Show how pending definitions of tools differ from the last accepted ones, and print the commands
that accept or refuse them. A tool with a pending definition can't be called. Without TOOL, the
last line of the output is a command that accepts all the definitions shown, except those that are
flagged, for example because they give instructions to the model. Accept or refuse flagged
definitions one by one.`,
		Args: args(cobra.RangeArgs(1, 2)), ValidArgsFunction: t.completeCatalog(true),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			if len(given) == 1 {
				return t.diffServer(ctx, client, given[0])
			}
			page, err := t.catalogPage(ctx, client, given[0], given[1])
			if err != nil {
				return err
			}
			diffs, err := t.diffs(ctx, client, page)
			if err != nil {
				return err
			}
			one := toolDiff{page.GetServer(), page.GetName(), diffs}
			if t.json() {
				return t.printJSON(one)
			}
			if len(diffs) == 0 {
				t.printf("tool %s on %s has no pending definition", page.GetName(), page.GetServer())
			}
			t.printDiff(one)
			return nil
		}),
	}
}

type serverDiff struct {
	Server string     `json:"server"`
	Tools  []toolDiff `json:"tools"`
	// Digest is the combined digest of all shown definitions. With this digest, AcceptPin accepts the definitions
	// together. It is empty if no definition is pending.
	Digest string `json:"digest,omitzero"`
}

func (t *tool) diffServer(ctx context.Context, client policyv1.CatalogServiceClient, server string) error {
	waiting, err := t.allTools(ctx, client, &policyv1.ListToolsRequest{Server: server, Waiting: true, PageSize: maxCatalogPage})
	if err != nil {
		return err
	}
	all := serverDiff{Server: server, Tools: []toolDiff{}}
	for _, one := range waiting {
		page, err := t.catalogPage(ctx, client, server, one.GetName())
		if err != nil {
			return err
		}
		diffs, err := t.diffs(ctx, client, page)
		if err != nil {
			return err
		}
		all.Tools = append(all.Tools, toolDiff{server, page.GetName(), diffs})
	}
	all.Digest = combinedDigest(all.Tools)
	if t.json() {
		return t.printJSON(all)
	}
	flagged, plain := 0, 0
	for _, one := range all.Tools {
		t.printDiff(one)
		for _, d := range one.Pending {
			if d.Flag != "" {
				flagged++
			} else {
				plain++
			}
		}
	}
	if flagged+plain == 0 {
		t.printf("server %s has no pending definition", server)
		return nil
	}
	t.printf("")
	if flagged > 0 {
		t.printf("%d of these definitions are flagged: accept or refuse them one by one", flagged)
	}
	if plain > 0 {
		t.printf("accept the %d definitions that are not flagged: %s", plain, t.command(shellWords("catalog", "accept", server, "--digest", all.Digest[:16])))
	}
	return nil
}

// combinedDigest returns the combined digest of the shown definitions. Like CatalogServer.waiting_digest, it sorts the
// definitions by tool name and then by digest. The result equals waiting_digest only if all pending definitions are
// shown.
func combinedDigest(tools []toolDiff) string {
	tools = slices.SortedFunc(slices.Values(tools), func(a, b toolDiff) int { return cmp.Compare(a.Name, b.Name) })
	h, any := sha256.New(), false
	for _, one := range tools {
		for _, d := range slices.SortedFunc(slices.Values(one.Pending), func(a, b pendingDiff) int { return bytes.Compare(a.sum, b.sum) }) {
			_, _ = h.Write(d.sum) // a hash never returns an error
			any = true
		}
	}
	if !any {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (t *tool) printDiff(one toolDiff) {
	for _, d := range one.Pending {
		short := d.Digest[:min(16, len(d.Digest))]
		t.printf("%s of %s on %s: %s%s", short, one.Name, one.Server, d.Reason, d.listedTo())
		if d.Flag != "" && d.Flag != d.Reason {
			t.printf("flagged: %s", d.Flag)
		}
		for part := range strings.Lines(d.Diff) {
			t.printf("  %s", strings.TrimRight(part, "\n"))
		}
		t.printf("accept it: %s", t.command(shellWords("catalog", "accept", one.Server, one.Name, "--digest", short)))
		t.printf("refuse it: %s", t.command(shellWords("catalog", "refuse", one.Server, one.Name, "--digest", short)))
	}
}

func (t *tool) printPending(ctx context.Context, client policyv1.CatalogServiceClient, server string) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetServer(ctx, &policyv1.GetServerRequest{Server: server})
	if err != nil || resp.GetServer().GetWaiting() == 0 {
		return
	}
	t.printf("%d definitions are still pending: %s shows them", resp.GetServer().GetWaiting(), t.command(shellWords("catalog", "diff", server)))
}

type toolDiff struct {
	Server  string        `json:"server"`
	Name    string        `json:"name"`
	Pending []pendingDiff `json:"waiting"`
}

// pendingDiff compares a pending definition with the last accepted definition of the same tool.
type pendingDiff struct {
	Digest   string `json:"digest"`
	Accepted string `json:"accepted,omitzero"`
	Reason   string `json:"reason"`
	ListedTo string `json:"seenBy,omitzero"`
	// Flag is the reason why the definition must be accepted separately. It is empty if the definition can be accepted
	// together with the server's other pending definitions.
	Flag string `json:"flag,omitzero"`
	Diff string `json:"diff"`

	sum []byte
}

func (d pendingDiff) listedTo() string {
	if d.ListedTo == "" {
		return ""
	}
	return " (the server listed it to " + d.ListedTo + ")"
}

func (t *tool) diffs(ctx context.Context, client policyv1.CatalogServiceClient, page *policyv1.CatalogTool) ([]pendingDiff, error) {
	out := []pendingDiff{}
	accepted, digest := "", ""
	for _, d := range page.GetHistory() { // newest first
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
		out = append(out, pendingDiff{
			Digest: hex.EncodeToString(d.GetDefinitionDigest()), Accepted: digest, Reason: d.GetReason(), ListedTo: d.GetSeenBy(), Flag: d.GetFlag(), sum: d.GetDefinitionDigest(),
			Diff: udiff.Unified("accepted", "waits", accepted, text),
		})
	}
	return out, nil
}

// definition returns a tool's definition as indented JSON. The members of objects are sorted by name.
func (t *tool) definition(ctx context.Context, client policyv1.CatalogServiceClient, page *policyv1.CatalogTool, d *policyv1.SeenDefinition) (string, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetDefinition(ctx, &policyv1.GetDefinitionRequest{Server: page.GetServer(), Tool: page.GetName(), DefinitionDigest: d.GetDefinitionDigest()})
	if err != nil {
		return "", t.explainError(err)
	}
	text := jsontext.Value(resp.GetDefinitionJson())
	if err := text.Format(jsontext.CanonicalizeRawInts(false), jsontext.ReorderRawObjects(true), jsontext.Multiline(true), jsontext.WithIndent("  "), jsontext.EscapeForJS(true)); err != nil {
		return resp.GetDefinitionJson() + "\n", nil // the definition is not JSON
	}
	return string(text) + "\n", nil
}
