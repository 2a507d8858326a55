// Package telemetrytest reads docs/telemetry.md, so that tests can compare it with the code.
package telemetrytest

import (
	"os"
	"strings"
	"testing"
)

// Documented returns the rows of the tables below a heading in a file, without the header rows. Each row begins with a
// name in backquotes. The backquotes are removed from the first cell.
func Documented(t testing.TB, file, heading string) [][]string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		cells[0] = strings.Trim(cells[0], "`")
		rows = append(rows, cells)
	}
	if len(rows) == 0 {
		t.Fatalf("%s names nothing below %q", file, heading)
	}
	return rows
}
