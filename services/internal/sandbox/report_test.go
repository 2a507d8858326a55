package sandbox_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

func TestGroupByReport_GroupsEqualReports(t *testing.T) {
	t.Parallel()
	weak := sandbox.Report{By: "Landlock", Enforced: []string{"programs"}, NotEnforced: []string{"the list of processes"}, Why: "no namespaces: EPERM"}
	off := sandbox.Report{Why: "it is off"}
	whole := sandbox.Report{By: "namespaces", Enforced: []string{"files"}}
	got := sandbox.GroupByReport(map[string]sandbox.Report{"d": weak, "a": off, "b": weak, "c": whole})
	want := []sandbox.ReportGroup{{Names: []string{"a"}, Report: off}, {Names: []string{"b", "d"}, Report: weak}, {Names: []string{"c"}, Report: whole}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		report sandbox.Report
		advice bool
	}{"weak": {weak, true}, "off": {off, false}, "whole": {whole, false}, "nothing": {sandbox.Report{NotEnforced: []string{"files"}, Why: "no Landlock"}, true}} {
		if (c.report.Advice() != "") != c.advice {
			t.Errorf("%s: advice %q", name, c.report.Advice())
		}
	}
}
