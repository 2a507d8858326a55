package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

func (t *tool) json() bool { return t.output == "json" }

func (t *tool) printJSON(v any) error {
	if err := json.MarshalWrite(t.out, v, json.Deterministic(true), jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

func (t *tool) printLine(v any) error {
	if err := json.MarshalWrite(t.out, v, json.Deterministic(true)); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

// printf prints one line on standard output. It escapes line breaks in the arguments.
func (t *tool) printf(format string, args ...any) { _ = oneLine(t.out, format, args...) }

// oneLine writes one line. It escapes line breaks in the arguments.
func oneLine(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintln(w, safetext.Line(fmt.Sprintf(format, args...)))
	return err
}

func (t *tool) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(t.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = safetext.Line(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
