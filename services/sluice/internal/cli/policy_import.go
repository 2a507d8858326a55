package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/policy"
)

// maxImportBytes is the maximum size in bytes of a policy to import.
const maxImportBytes = 4 << 20

func (t *tool) policyImport() *cobra.Command {
	var server, from string
	c := &cobra.Command{
		Use:   "import --server SERVER FILE",
		Short: "Translate a policy of another gateway",
		Long: `Translate a policy of another gateway into a policy document on standard output. FILE has one of
two formats:

  hosted-json    JSON with the keys require, deny_if, limits, hide and all_tools (PolicyLayer)
  operator-yaml  YAML with rules, conditions, state and rate_limit (Intercept)

The document denies at least what FILE denies. For a rule that can't be translated, it denies
every call of the tool, and the command exits with 1. Standard error lists what was not
translated, with the lines.`,
		Example: "  " + t.self + " policy import --server github github.yaml > policies/github.yaml",
		Args:    args(cobra.ExactArgs(1)),
		RunE:    func(c *cobra.Command, given []string) error { return t.runImport(c.Context(), given[0], server, from) },
	}
	c.Flags().StringVar(&server, "server", "", "the server of the policy: a name, or a pattern such as *")
	c.Flags().StringVar(&from, "from", "", "the format of FILE: hosted-json or operator-yaml (default by its extension)")
	_ = c.MarkFlagRequired("server")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	_ = c.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(dialectNames(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

func dialectNames() []string { return slices.Sorted(maps.Keys(policy.Dialects())) }

func (t *tool) runImport(ctx context.Context, file, server, from string) error {
	if from == "" {
		switch strings.ToLower(filepath.Ext(file)) {
		case ".json":
			from = "hosted-json"
		case ".yaml", ".yml":
			from = "operator-yaml"
		}
	}
	dialect, known := policy.Dialects()[from]
	if !known {
		return usageError{fmt.Errorf("set --from to %s", strings.Join(dialectNames(), " or "))}
	}
	if !serverPattern(server) {
		return usageError{errors.New("--server must be the name of a server, or a pattern: 1 to 64 lower-case letters, digits, - * and ?")}
	}
	text, err := readImport(file)
	if err != nil {
		return err
	}
	resp, err := policy.Import(ctx, &policyv1.ImportDocumentRequest{Dialect: dialect, Text: string(text), Server: server, Path: file})
	if err != nil {
		return err
	}
	return t.printImport(resp)
}

func serverPattern(text string) bool {
	other := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("-*?", c)
	}
	return text != "" && len(text) <= 64 && !strings.ContainsFunc(text, other)
}

func readImport(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	text, err := io.ReadAll(io.LimitReader(f, maxImportBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	if len(text) > maxImportBytes {
		return nil, fmt.Errorf("read the policy: %s is larger than %d bytes", file, maxImportBytes)
	}
	return text, nil
}

func (t *tool) printImport(resp *policyv1.ImportDocumentResponse) error {
	if t.json() {
		out := struct {
			Document string    `json:"document"`
			Findings []finding `json:"findings"`
		}{resp.GetDocument().GetText(), findingsForJSON(resp.GetFindings())}
		if err := t.printJSON(out); err != nil {
			return err
		}
	} else {
		for _, f := range resp.GetFindings() {
			fmt.Fprintln(t.errOut, safetext.Line(fmt.Sprintf("%s%s: %s", findingPosition(f), enum.Name(f.GetSeverity()), findingText(f))))
		}
		if _, err := io.WriteString(t.out, resp.GetDocument().GetText()); err != nil {
			return err
		}
	}
	if resp.GetDocument() == nil || slices.ContainsFunc(resp.GetFindings(), blocksLoading) {
		return errSilent
	}
	return nil
}
