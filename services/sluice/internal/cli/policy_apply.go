package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	// applyTimeout is the timeout for applying policy documents. The tests in these documents may take 30 s.
	applyTimeout = time.Minute
	// defaultPolicyFolder is the folder that `policy apply` reads by default.
	defaultPolicyFolder = "policies"
	// minRevisionDigits is the minimum number of digits in a revision that a person enters. shownRevisionDigits is the
	// number of printed digits.
	minRevisionDigits, shownRevisionDigits = 8, 12
)

type applyFlags struct {
	reason, expect string
	yes, wait      bool
}

func (f *applyFlags) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.reason, "reason", "m", "", "the reason, stored with the revision (required)")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, askOrYes)
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until other people have approved the change, and apply it then")
	c.Flags().StringVar(&f.expect, "expect", "", "apply only if this `REVISION` is active: at least 8 digits, zeros if nothing was applied")
}

// check returns an error if no reason is set.
func (f *applyFlags) check() error {
	if strings.TrimSpace(f.reason) == "" {
		return usageError{errors.New("a reason is required, because it is stored with the revision: set -m")}
	}
	return nil
}

func (t *tool) policyApply() *cobra.Command {
	f := new(applyFlags)
	c := &cobra.Command{
		Use:   "apply [PATH...] -m REASON",
		Short: "Replace the policy documents of a mesh whose policies are in its store",
		Long: `Replace all policy documents of a mesh that has ` + "`policies: [store]`" + `. PATHs are files and folders
with all documents of the new policy (default the folder policies). The command shows which
calls get another result, first the calls that are refused now and would be allowed, and asks
you to confirm. The mesh runs the tests of the documents. Once the command returns, no gateway
starts a call under the older documents.

With approvals.policy_changes in the configuration, the command prints the id of an approval and
exits with 3. After other people have approved it, run the command again with the same documents
and the same reason, or use --wait.`,
		Example: "  " + t.self + " policy apply policies/ -m \"release 12\" --expect 3f9a0c1d --yes",
		Args:    args(cobra.ArbitraryArgs),
		RunE: func(c *cobra.Command, given []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if len(given) == 0 {
				given = []string{defaultPolicyFolder}
			}
			documents, err := policy.ReadDocuments(given)
			if err != nil {
				return err
			}
			return t.withPolicyClient(c.Context(), func(ctx context.Context, client policyv1.PolicyServiceClient) error {
				named := namedByFile(documents)
				return t.applyChange(ctx, client, &policyChange{documents: named, diff: &policyv1.DiffRevisionsRequest{Documents: named}, flags: f})
			})
		},
	}
	f.add(c)
	return c
}

func (t *tool) policyRollback() *cobra.Command {
	f := new(applyFlags)
	c := &cobra.Command{
		Use:   "rollback REVISION -m REASON",
		Short: "Make the policy documents of an earlier revision active again",
		Long: `Apply the documents of a stored revision again, as ` + "`policy apply`" + ` does. REVISION is at least 8
digits of an id that ` + "`policy revisions`" + ` prints. The rollback is a new revision, so you can undo
it in the same way.`,
		Example:           "  " + t.self + " policy rollback 3f9a0c1d -m \"drafts were sent\"",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeRevision,
		RunE: func(c *cobra.Command, given []string) error {
			if err := errors.Join(f.check(), checkRevisionID(given[0])); err != nil {
				return err
			}
			return t.withPolicyClient(c.Context(), func(ctx context.Context, client policyv1.PolicyServiceClient) error {
				found, err := t.readRevision(ctx, client, given[0])
				if err != nil {
					return err
				}
				diff := &policyv1.DiffRevisionsRequest{NewRevision: found.GetRevision().GetDocumentsId()}
				return t.applyChange(ctx, client, &policyChange{documents: found.GetDocuments(), diff: diff, flags: f})
			})
		},
	}
	f.add(c)
	return c
}

// policyChange contains policy documents to apply. diff is the request that compares these documents with the active
// documents.
type policyChange struct {
	documents []*policyv1.Document
	diff      *policyv1.DiffRevisionsRequest
	flags     *applyFlags
}

// applyChange shows the calls whose result would change, asks the person for confirmation, and applies the change.
func (t *tool) applyChange(ctx context.Context, client policyv1.PolicyServiceClient, change *policyChange) error {
	active, err := t.storedRevision(ctx, client)
	if err != nil {
		return err
	}
	if expect := change.flags.expect; expect != "" {
		if err := checkExpected(active, expect); err != nil {
			return err
		}
	}
	if err := t.showChange(ctx, client, change); err != nil {
		return err
	}
	question := fmt.Sprintf("Apply these %d document(s) in place of %s?", len(change.documents), activeText(active))
	switch err := t.confirm(ctx, change.flags.yes, question); {
	case errors.Is(err, errNoTerminal):
		return fmt.Errorf("nothing was applied: %w", errNoTerminal)
	case err != nil:
		return errors.New("nothing was applied")
	}
	return t.sendChange(ctx, client, change.flags.wait, &policyv1.ApplyDocumentsRequest{
		Documents: change.documents, Comment: change.flags.reason, ExpectedRevision: documentsIDOf(active),
	})
}

// storedRevision returns the active revision. It returns an error if the policy documents are not in the store.
func (t *tool) storedRevision(ctx context.Context, client policyv1.PolicyServiceClient) (*policyv1.Revision, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	stream, err := client.WatchRevision(ctx, &policyv1.WatchRevisionRequest{})
	if err != nil {
		return nil, t.explainError(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, t.explainError(err)
	}
	if !resp.GetRevision().GetStored() {
		return nil, errors.New("the policies of this mesh come from files: change those, or set `policies: [store]` in its configuration")
	}
	return resp.GetRevision(), nil
}

// documentsIDOf returns the id of the active documents, or [policy.NoDocuments] if there are none.
func documentsIDOf(active *policyv1.Revision) string {
	return cmp.Or(active.GetDocumentsId(), policy.NoDocuments)
}

// checkExpected returns an error if the active revision is not the revision that the person expects.
func checkExpected(active *policyv1.Revision, expect string) error {
	if err := checkRevisionID(expect); err != nil {
		return err
	}
	if expect = strings.ToLower(expect); strings.HasPrefix(documentsIDOf(active), expect) || strings.HasPrefix(active.GetId(), expect) {
		return nil
	}
	return fmt.Errorf("nothing was applied, because the active revision is not %s, but %s: compare your documents with it (`sluice policy diff`)", expect, activeText(active))
}

// activeText describes the active revision.
func activeText(active *policyv1.Revision) string {
	if active.GetDocumentsId() == "" {
		return "an empty policy, which refuses every call"
	}
	return newRevisionRecord(active).String()
}

// showChange prints the calls whose result changes. If the command's output is JSON, it prints them on standard error.
// It returns an error if the documents can't be loaded.
func (t *tool) showChange(ctx context.Context, client policyv1.PolicyServiceClient, change *policyChange) error {
	diff, err := t.diffRevisions(ctx, client, change.diff)
	if err != nil {
		return err
	}
	totals := diff.GetTotals()
	if len(totals.GetFindings()) > 0 {
		return notLoading(totals.GetFindings())
	}
	shown := *t
	if t.json() {
		shown.out = t.errOut
	}
	if err := shown.printFlips(diff, false); err != nil {
		return err
	}
	switch {
	case totals.GetEndedEarly(), totals.GetUncertain() > 0:
		shown.printf("The comparison is incomplete: further calls may be opened. `sluice policy diff` says why.")
	case totals.GetOpened() == 0 && len(totals.GetMayOpen()) > 0:
		shown.printf("%v", mayOpenError(totals.GetMayOpen()))
	}
	return nil
}

type appliedResult struct {
	ID        string    `json:"id"`
	Revision  string    `json:"revision"`
	Unchanged bool      `json:"unchanged"`
	Warnings  []finding `json:"warnings,omitempty"`
}

func (t *tool) printApplied(resp *policyv1.ApplyDocumentsResponse) error {
	if t.json() {
		return t.printJSON(appliedResult{ID: resp.GetDocumentsId(), Revision: resp.GetPolicyRevision(), Unchanged: resp.GetUnchanged(), Warnings: findingsForJSON(resp.GetFindings())})
	}
	for _, f := range resp.GetFindings() {
		t.printf("%swarning: %s", findingPosition(f), findingText(f))
	}
	id := shortRevision(resp.GetDocumentsId())
	if resp.GetUnchanged() {
		t.printf("unchanged: revision %s was active before", id)
		return nil
	}
	t.printf("applied: revision %s is active, and no gateway decides by an older one", id)
	return nil
}

// namedByFile replaces the paths of documents with the names of their files, so that the same files have the same
// revision in every folder. If two files have the same name, it changes no paths.
func namedByFile(documents []*policyv1.Document) []*policyv1.Document {
	out, seen := make([]*policyv1.Document, len(documents)), make(map[string]bool)
	for i, d := range documents {
		name := filepath.Base(d.GetPath())
		if seen[name] {
			return documents
		}
		seen[name] = true
		out[i] = &policyv1.Document{Path: name, Text: d.GetText()}
	}
	return out
}
