package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func (t *tool) json() bool { return t.output == "json" }

// printJSON prints a value as indented JSON.
func (t *tool) printJSON(v any) error {
	if err := json.MarshalWrite(t.out, v, json.Deterministic(true), jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

// printLine prints a value as one line of JSON.
func (t *tool) printLine(v any) error {
	if err := json.MarshalWrite(t.out, v, json.Deterministic(true)); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

// table prints rows under a head, in columns.
func (t *tool) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(t.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// printable escapes what could forge lines or steer a terminal: names and texts
// in tables come from agents and servers.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '�'
	}, s)
}

// printableLines does the same to each line of a text.
func printableLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		text, ended := strings.CutSuffix(line, "\n")
		b.WriteString(printable(strings.ReplaceAll(text, "\t", "    ")))
		if ended {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
