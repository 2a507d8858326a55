package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// The summary of a decision fits on a terminal with 80 columns and 24 lines, even if all fields are set, hostile, long
// and repeated.
func TestPrintSummary_FitsATerminal(t *testing.T) {
	t.Parallel()
	full := readSample(t)
	long := proto.CloneOf(full)
	long.Message = strings.Repeat("long\nand wide 語 ", 500)
	long.Tool = strings.Repeat("x", 128)
	for range 30 {
		long.Votes = append(long.Votes, full.GetVotes()...)
		long.Limits = append(long.Limits, full.GetLimits()...)
		long.Principal.Chain = append(long.Principal.Chain, full.GetPrincipal().GetChain()...)
	}
	for name, records := range map[string][]*gatewayv1.Record{
		"one": {full}, "an intent and an outcome": {full, full}, "long ones": {long, full, long}, "many": {full, full, full, full, full, full, full},
	} {
		var out bytes.Buffer
		if err := (&tool{self: "sluice", out: &out}).printSummary(records); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) > 22 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		if name == "one" && !strings.Contains(out.String(), ": at most 10 in 60.5s") {
			t.Errorf("the limit is not in\n%s", out.String())
		}
		if !strings.Contains(out.String(), "decision  ") || !strings.Contains(out.String(), "--all prints every field") || !strings.Contains(out.String(), full.GetRule().GetDocument()) {
			t.Errorf("%s:\n%s", name, out.String())
		}
	}
}
