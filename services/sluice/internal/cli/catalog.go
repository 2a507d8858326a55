package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

func (t *tool) catalog() *cobra.Command {
	return group("catalog", "Show what tools do, and decide on changed definitions", t.catalogServers(), t.catalogList(), t.catalogShow(), t.catalogDiff(),
		t.catalogAccept(), t.catalogRefuse(), t.catalogOverride(), t.catalogQuarantine(), t.catalogExport(), t.catalogClassify())
}

type listFlags struct {
	server  string
	file    string
	run     bool
	trusted bool
}

// withToolList adds flags to a command that select a list of tools. The list comes from a file, or from a server that
// the command starts. The command calls do with the tools in this list.
func withToolList(c *cobra.Command, do func(ctx context.Context, server string, tools []policy.ClassifiedTool) error) *cobra.Command {
	c = withOptionalToolList(c, do, nil)
	c.MarkFlagsOneRequired("file", "run")
	return c
}

// withOptionalToolList is like withToolList, but the flags are optional. If neither flag is set, the tools come from
// the function elsewhere.
func withOptionalToolList(
	c *cobra.Command, do func(ctx context.Context, server string, tools []policy.ClassifiedTool) error, elsewhere func(ctx context.Context, server string) ([]policy.ClassifiedTool, error),
) *cobra.Command {
	var f listFlags
	c.Args = func(_ *cobra.Command, given []string) error {
		switch {
		case f.run && len(given) == 0:
			return usageError{errors.New("--run needs the command that starts the server: write it after --")}
		case !f.run && len(given) > 0:
			return usageError{fmt.Errorf("%q is only allowed with --run", given[0])}
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, given []string) error {
		if f.file == "" && !f.run {
			tools, err := elsewhere(c.Context(), f.server)
			if err != nil {
				return err
			}
			return do(c.Context(), f.server, tools)
		}
		list, err := f.read(c.Context(), given)
		if err != nil {
			return err
		}
		tools, err := policy.ClassifyList(list, f.trusted)
		if err != nil {
			return fmt.Errorf("%s: %w", cmp.Or(f.source(), f.server), err)
		}
		return do(c.Context(), f.server, tools)
	}
	flags := c.Flags()
	flags.StringVar(&f.server, "server", "", "the server's name")
	flags.StringVar(&f.file, "file", "", "a file with a tools/list response, its result, or the array of tools; - reads standard input")
	flags.BoolVar(&f.run, "run", false, "start the stdio server with the command after --, with this environment, and read its tools")
	flags.BoolVar(&f.trusted, "trusted", false, "let the server's annotations lower the risk of a tool")
	_ = c.MarkFlagRequired("server")
	c.MarkFlagsMutuallyExclusive("file", "run")
	_ = c.MarkFlagFilename("file", "json")
	return c
}

func (t *tool) catalogClassify() *cobra.Command {
	return withToolList(&cobra.Command{
		Use:   "classify --server NAME (--file FILE | --run -- COMMAND...)",
		Short: "Classify each tool of a server by its definition",
		Long: `Print what each tool of a server does, how much harm a wrong call can do, how certain this is,
and the words of the definition that show it. The command uses no model and sends nothing over
the network.`,
		Example: "  " + t.self + " catalog classify --server files --run -- npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /tmp",
	}, t.printClasses)
}

// source returns the name of the file with the list, or "" if there is none.
func (f listFlags) source() string {
	if f.file == "-" {
		return "standard input"
	}
	return f.file
}

func (f listFlags) read(ctx context.Context, command []string) ([]byte, error) {
	if f.run {
		return listToolsOfCommand(ctx, command)
	}
	in := os.Stdin
	if f.file != "-" {
		var err error
		if in, err = os.Open(f.file); err != nil {
			return nil, err
		}
		defer in.Close() //nolint:errcheck // the file is only read
	}
	list, err := io.ReadAll(io.LimitReader(in, policy.MaxList+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.source(), err)
	}
	return list, nil
}

type classifiedTool struct {
	Name       string          `json:"name"`
	Category   string          `json:"category"`
	Risk       string          `json:"risk"`
	Confidence float64         `json:"confidence"`
	Evidence   []classEvidence `json:"evidence"`
	DependsOn  string          `json:"dependsOnArgument,omitzero"`
	Axes       classAxes       `json:"axes"`
	Tags       []string        `json:"tags,omitempty"`
}

// classEvidence is a quote from a definition, and the conclusion from this quote.
type classEvidence struct {
	Path     string  `json:"path"`
	InKey    bool    `json:"inKey,omitzero"`
	Offset   int32   `json:"offset"`
	Quote    string  `json:"quote"`
	Meaning  string  `json:"meaning"`
	Category string  `json:"category,omitzero"`
	Weight   float64 `json:"weight"`
}

type classAxes struct {
	Sensitivity     string `json:"sensitivity"`
	OpenWorld       string `json:"openWorld"`
	Irreversibility string `json:"irreversibility"`
	BlastRadius     string `json:"blastRadius"`
}

func (t *tool) printClasses(_ context.Context, _ string, tools []policy.ClassifiedTool) error {
	if !t.json() {
		rows := make([][]string, 0, len(tools))
		for _, tool := range tools {
			why := "the definition does not say what the tool does"
			for _, e := range slices.Backward(tool.GetEvidence()) { // the loop ends with the first evidence, which has the highest weight
				if e.GetCategory() == tool.GetCategory() {
					why = e.GetMeaning() + ": " + strconv.Quote(e.GetQuote())
				}
			}
			if len(tool.GetTags()) > 0 {
				why += " (" + strings.Join(tool.GetTags(), ", ") + ")"
			}
			rows = append(rows, []string{
				tool.Name, capitalize(enum.Name(tool.GetCategory())), capitalize(enum.Name(tool.GetRisk())), strconv.FormatFloat(tool.GetConfidence(), 'f', 2, 64), why,
			})
		}
		return t.table([]string{"TOOL", "CATEGORY", "RISK", "SURE", "WHY"}, rows)
	}
	out := make([]classifiedTool, 0, len(tools))
	for _, tool := range tools {
		one := classifiedTool{
			Name: tool.Name, Category: capitalize(enum.Name(tool.GetCategory())), Risk: capitalize(enum.Name(tool.GetRisk())), Confidence: catalogpages.Rounded(tool.GetConfidence()),
			Evidence: []classEvidence{}, DependsOn: tool.GetDependsOnArgument(), Tags: tool.GetTags(),
			Axes: classAxes{
				Sensitivity: enum.Name(tool.GetSensitivity()), OpenWorld: enum.Name(tool.GetOpenWorld()),
				Irreversibility: enum.Name(tool.GetIrreversibility()), BlastRadius: enum.Name(tool.GetBlastRadius()),
			},
		}
		for _, e := range tool.GetEvidence() {
			one.Evidence = append(one.Evidence, classEvidence{
				Path: e.GetPath(), InKey: e.GetInKey(), Offset: e.GetOffset(), Quote: e.GetQuote(), Meaning: e.GetMeaning(),
				Category: capitalize(enum.NameOrEmpty(e.GetCategory())), Weight: catalogpages.Rounded(e.GetWeight()),
			})
		}
		out = append(out, one)
	}
	return t.printJSON(out)
}

func capitalize(name string) string {
	first, n := utf8.DecodeRuneInString(name)
	if n == 0 {
		return ""
	}
	return string(unicode.ToUpper(first)) + name[n:]
}
