package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) policyTest() *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE...",
		Short: "Run the tests of policy documents, offline",
		Long: `Run the tests of documents. A test is decided by all documents that are given, so give all
documents of the mesh. The command makes the checks of lint, too, and sends nothing over the
network. It exits with 1 if a test fails or lint finds an error.`,
		Example: "  " + t.self + " policy test policies",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			findings, documents, err := t.checkDocuments(c.Context(), given)
			if err != nil {
				return err
			}
			summary := fmt.Sprintf("no tests in %d document(s)", len(documents))
			if tests := policy.CountTests(documents); tests > 0 {
				summary = fmt.Sprintf("ok: %d test(s) in %d document(s)", tests, len(documents))
			}
			return t.printFindings(findings, summary)
		},
	}
}

func (t *tool) policySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy documents, for editors",
		Long: `Print the JSON Schema (draft 7) of policy documents. Editors with the YAML language server
complete and check the keys of a document that begins with a comment with the path of the
schema, relative to the document. Don't store the schema in a folder that is named under
` + "`policies`" + `, because every JSON file in it is a policy.`,
		Example: "  " + t.self + " policy schema > policy.schema.json\n" +
			"  # yaml-language-server: $schema=../policy.schema.json   (the first line of policies/files.yaml)",
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := t.out.Write(policy.Schema())
			return err
		},
	}
}
