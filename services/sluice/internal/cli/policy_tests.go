package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
)

type testFlags struct {
	live  bool
	junit string
}

func (t *tool) policyTest() *cobra.Command {
	var f testFlags
	c := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run the tests of policy documents, offline or in the running mesh",
		Long: `Run the tests of documents. Give all documents of the mesh, because each test is evaluated with
all of them. The command also makes the checks of lint, and exits with 1 if a test fails or lint
finds an error. With --live, the running mesh runs only the tests.`,
		Example: "  " + t.self + " policy test policies --junit report.xml",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE:    func(c *cobra.Command, given []string) error { return t.runPolicyTests(c.Context(), given, f) },
	}
	c.Flags().BoolVar(&f.live, "live", false, "let the running mesh run the tests")
	c.Flags().StringVar(&f.junit, "junit", "", "also write the results to this file as JUnit XML")
	return c
}

func (t *tool) runPolicyTests(ctx context.Context, paths []string, flags testFlags) error {
	run := t.testOffline
	if flags.live {
		run = t.testLive
	}
	documents, findings, results, err := run(ctx, paths, flags.junit != "")
	if err != nil {
		return err
	}
	if flags.junit != "" {
		report := junitReport(documents, results, findings)
		if err := os.WriteFile(flags.junit, report, 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	summary := fmt.Sprintf("no tests in %d document(s)", len(documents))
	if tests := policy.CountTests(documents); tests > 0 {
		summary = fmt.Sprintf("ok: %d test(s) in %d document(s)", tests, len(documents))
	}
	return t.printFindings(findings, summary)
}

// testOffline checks documents and runs their tests. It returns the test results only if needed is true, because it
// must run the tests again to get them.
func (t *tool) testOffline(ctx context.Context, paths []string, needed bool) ([]*policyv1.Document, []*policyv1.Finding, []*policyv1.TestResult, error) {
	findings, documents, err := t.checkDocuments(ctx, paths)
	if err != nil || !needed {
		return documents, findings, nil, err
	}
	var f *config.File
	if t.config != "" {
		if f, err = t.load(); err != nil {
			return nil, nil, nil, err
		}
		f = withGeneratedTokens(f)
	}
	resp, err := policy.RunTests(ctx, f, documents)
	return documents, findings, resp.GetResults(), err
}

// testLive lets the running mesh run the tests in documents.
func (t *tool) testLive(ctx context.Context, paths []string, _ bool) ([]*policyv1.Document, []*policyv1.Finding, []*policyv1.TestResult, error) {
	documents, err := policy.ReadDocuments(paths)
	if err != nil {
		return nil, nil, nil, err
	}
	client, done, err := t.policyClient()
	if err != nil {
		return nil, nil, nil, err
	}
	defer done()
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.TestDocuments(ctx, &policyv1.TestDocumentsRequest{Documents: documents})
	if err != nil {
		return nil, nil, nil, t.explainError(err)
	}
	findings := resp.GetFindings()
	for _, r := range resp.GetResults() {
		if !r.GetPassed() {
			findings = append(findings, &policyv1.Finding{
				Severity: policyv1.Severity_SEVERITY_ERROR, Path: r.GetPath(), Line: r.GetLine(), Column: r.GetColumn(), Message: r.GetMessage(), Check: "load",
			})
		}
	}
	return documents, findings, resp.GetResults(), nil
}

func (t *tool) policySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy documents, for editors",
		Long: `Print the JSON Schema (draft 7) of policy documents. Editors with the YAML language server use
it for documents that begin with a comment with its relative path. Store it outside the folders
in ` + "`policies`" + `, because every JSON file there is a policy.`,
		Example: "  " + t.self + " policy schema > policy.schema.json\n" +
			"  # yaml-language-server: $schema=../policy.schema.json   (the first line of policies/files.yaml)",
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := t.out.Write(policy.Schema())
			return err
		},
	}
}
