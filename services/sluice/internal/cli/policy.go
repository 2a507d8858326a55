package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) policy() *cobra.Command {
	return group("policy", "Check policy documents, apply them, and explain their decisions", t.policyLint(), t.policyTest(), t.policyExplain(), t.policyAccess(),
		t.policyDiff(), t.policyReplay(), t.policyApply(), t.policyRevisions(), t.policyRevision(), t.policyRollback(), t.policySuggest(), t.policyPropose(), t.policyImport(), t.policySchema())
}

func (t *tool) policyLint() *cobra.Command {
	live := false
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check policy documents, offline or against the tools of the running mesh",
		Long: `Check that documents load together and pass their tests, and find rules without effect. With
--config, also check that there are people for each approval, and compare the documents with the
tools of the mesh's last run, to find unknown names, conditions that don't fit the arguments,
and dangerous tools that no rule mentions. With --live, the running mesh checks the documents
with its current tools; otherwise nothing is sent over the network. The command exits with 1 if
a document would not load, or if a condition reads an argument that not every call has.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			check := t.checkDocuments
			if live {
				check = t.checkLive
			}
			findings, documents, err := check(c.Context(), given)
			if err != nil {
				return err
			}
			summary := fmt.Sprintf("%d document(s) load", len(documents))
			if tests := policy.CountTests(documents); tests > 0 {
				summary += fmt.Sprintf(", %d test(s) pass", tests)
			}
			return t.printFindings(findings, summary)
		},
	}
	c.Flags().BoolVar(&live, "live", false, "let the running mesh check the documents")
	return c
}

// checkLive reads documents and lets the policy service of the running mesh check them.
func (t *tool) checkLive(ctx context.Context, paths []string) ([]*policyv1.Finding, []*policyv1.Document, error) {
	documents, err := policy.ReadDocuments(paths)
	if err != nil {
		return nil, nil, err
	}
	client, done, err := t.policyClient()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.LintDocuments(ctx, &policyv1.LintDocumentsRequest{Documents: documents})
	if err != nil {
		return nil, nil, t.explainError(err)
	}
	return resp.GetFindings(), documents, nil
}

// policyClient connects to the policy service of the running mesh. The caller must call the returned function to close
// the connection.
func (t *tool) policyClient() (_ policyv1.PolicyServiceClient, done func(), _ error) {
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil, nil, err
	}
	return policyv1.NewPolicyServiceClient(conn), func() { _ = conn.Close() }, nil
}

// checkDocuments reads and checks documents. Without a configuration, it does not check approvers and servers, because
// they are not known.
func (t *tool) checkDocuments(ctx context.Context, paths []string) ([]*policyv1.Finding, []*policyv1.Document, error) {
	documents, err := policy.ReadDocuments(paths)
	if err != nil {
		return nil, nil, err
	}
	if t.config == "" {
		return policy.Lint(documents), documents, nil
	}
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	compared := policy.LintLists(documents, toolListsOf(ctx, f))
	return append(policy.LintFor(withGeneratedTokens(f), documents), compared...), documents, nil
}

type finding struct {
	Severity   string `json:"severity"`
	Path       string `json:"path"`
	Line       int32  `json:"line"`
	Column     int32  `json:"column"`
	Message    string `json:"message"`
	Suggestion string `json:"suggestion,omitzero"`
}

// printFindings prints findings about documents. If the documents can be loaded, it also prints the summary.
func (t *tool) printFindings(findings []*policyv1.Finding, summary string) error {
	out := findingsForJSON(findings)
	if t.json() {
		if err := t.printJSON(out); err != nil {
			return err
		}
	} else {
		for i, f := range out {
			t.printf("%s%s: %s", findingPosition(findings[i]), f.Severity, findingText(findings[i]))
		}
	}
	if slices.ContainsFunc(findings, blocksLoading) {
		return errSilent
	}
	if !t.json() {
		t.printf("%s", summary)
	}
	return nil
}

func findingsForJSON(findings []*policyv1.Finding) []finding {
	out := make([]finding, len(findings))
	for i, f := range findings {
		out[i] = finding{
			Severity: enum.Name(f.GetSeverity()),
			Path:     f.GetPath(), Line: f.GetLine(), Column: f.GetColumn(), Message: f.GetMessage(), Suggestion: f.GetSuggestion(),
		}
	}
	return out
}

// blocksLoading reports whether this finding prevents the document from being loaded.
func blocksLoading(f *policyv1.Finding) bool {
	s := f.GetSeverity()
	return s != policyv1.Severity_SEVERITY_WARNING && s != policyv1.Severity_SEVERITY_INFO
}

// findingPosition returns the position of a finding as a prefix for its message, or "" if the finding has no position.
func findingPosition(f *policyv1.Finding) string {
	if f.GetPath() == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d: ", f.GetPath(), f.GetLine(), f.GetColumn())
}

func findingText(f *policyv1.Finding) string {
	if f.GetSuggestion() == "" {
		return f.GetMessage()
	}
	return f.GetMessage() + "; " + f.GetSuggestion()
}

func (t *tool) policySuggest() *cobra.Command {
	var used bool
	var since string
	c := withOptionalToolList(&cobra.Command{
		Use:   "suggest --server NAME [--used [--since TIME] | --file FILE | --run -- COMMAND...]",
		Short: "Write a first policy for a server, from the definitions of its tools",
		Long: `Write a first policy document for a server to standard output, with a rule for each tool and the
reason for it. Tools that read are allowed. Tools that write or run something have a rate limit.
Tools that delete or overwrite something, move money, or don't say what they do need approval.
All other calls are denied. Read the document before you use it.

Without --file and --run, the tools come from the catalog of the running mesh. With --used, only
tools that agents of your tenant have called have rules, with limits that permit this use; the
other tools are comments. Calls that only 'mode: observe' allowed are included.`,
		Example: "  " + t.self + " policy suggest --server files > files.yaml",
	}, func(ctx context.Context, server string, tools []policy.ClassifiedTool) error {
		var use map[string]policy.Use
		if used {
			filter := new(gatewayv1.DecisionFilter)
			err := setTimes(filter, since, "", time.Now())
			if err != nil {
				return usageError{err}
			}
			if use, err = t.readToolUses(ctx, server, filter.GetSince()); err != nil {
				return err
			}
		}
		text, err := policy.Suggest(server, tools, use)
		if err != nil {
			return err
		}
		if t.json() {
			return t.printJSON(map[string]string{"server": server, "document": string(text)})
		}
		_, err = t.out.Write(text)
		return err
	}, t.catalogTools)
	c.Flags().BoolVar(&used, "used", false, "only tools that were called, according to the journal")
	c.Flags().StringVar(&since, "since", "", "with --used, only calls since this time: 15m, 2h or 7d ago, or RFC 3339")
	c.MarkFlagsMutuallyExclusive("used", "file")
	c.MarkFlagsMutuallyExclusive("used", "run")
	c.MarkFlagsMutuallyExclusive("since", "file")
	c.MarkFlagsMutuallyExclusive("since", "run")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	return c
}

// catalogTools returns a server's tools and their classifications from the catalog of the running mesh.
func (t *tool) catalogTools(ctx context.Context, server string) ([]policy.ClassifiedTool, error) {
	client, done, err := t.catalogClient()
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := t.readCatalog(ctx, client, server)
	if err != nil {
		return nil, err
	}
	out := make([]policy.ClassifiedTool, 0, len(all.Tools))
	for _, page := range all.Tools {
		if page.GetListedNow() {
			out = append(out, policy.ClassifiedTool{Name: page.GetName(), Classification: page.GetClassification()})
		}
	}
	return out, nil
}

// termsText describes in one line who must approve a call, in what time, and what the approval covers.
func termsText(terms *policyv1.ApprovalTerms) string {
	parts := []string{"by " + safetext.Approvers(terms)}
	if d := terms.GetDecideWithin(); d != nil {
		parts = append(parts, "decided within "+d.AsDuration().String())
	}
	if d := terms.GetExecuteWithin(); d != nil {
		parts = append(parts, "executed within "+d.AsDuration().String())
	}
	if g := terms.GetGrant(); g != nil {
		text := fmt.Sprintf("for up to %d calls within %s", g.GetCalls(), g.GetWithin().AsDuration())
		if len(g.GetWhere()) > 0 {
			text += " where " + strings.Join(g.GetWhere(), " && ")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}
