package cli

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A report has a suite for each document. It has a case for each test, and for each error that is not a failed test.
func TestJunitReport_HasACaseForEachTestAndError(t *testing.T) {
	t.Parallel()
	documents := []*policyv1.Document{{Path: "p/a.yaml"}, {Path: "p/b.yaml"}}
	results := []*policyv1.TestResult{
		{Path: "p/a.yaml", Document: "a", Line: 7, Column: 5, Name: "reading", Passed: true},
		{Path: "p/a.yaml", Document: "a", Line: 9, Column: 5, Message: "tests[1]: the test fails"},
	}
	findings := []*policyv1.Finding{
		{Severity: policyv1.Severity_SEVERITY_ERROR, Path: "p/a.yaml", Line: 9, Column: 5, Message: "tests[1]: the test fails", Check: "load"},
		{Severity: policyv1.Severity_SEVERITY_ERROR, Path: "p/b.yaml", Line: 2, Column: 3, Message: "args.x", Suggestion: "write args.?x", Check: "optional-arguments"},
		{Severity: policyv1.Severity_SEVERITY_WARNING, Path: "p/b.yaml", Line: 3, Column: 3, Message: "a warning", Check: "load"},
	}
	want := `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="3" failures="1" errors="1">
  <testsuite name="p/a.yaml" tests="2" failures="1" errors="0">
    <testcase name="reading" classname="a" file="p/a.yaml" line="7"></testcase>
    <testcase name="test in line 9" classname="a" file="p/a.yaml" line="9">
      <failure message="tests[1]: the test fails">p/a.yaml:9:5: tests[1]: the test fails</failure>
    </testcase>
  </testsuite>
  <testsuite name="p/b.yaml" tests="1" failures="0" errors="1">
    <testcase name="optional-arguments in line 2" classname="p/b.yaml" file="p/b.yaml" line="2">
      <error message="args.x; write args.?x">p/b.yaml:2:3: args.x; write args.?x</error>
    </testcase>
  </testsuite>
</testsuites>
`
	if diff := cmp.Diff(want, string(junitReport(documents, results, findings))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzJunitReport checks that the report is valid XML for any names and messages, and that they can't add elements.
func FuzzJunitReport(f *testing.F) {
	for _, seed := range []string{"", "a", "]]><x>&\"'", "\x00\x01\ufffe\uffff", "\xff\xfe", "\u202e\u2028\n\r\t", "<!--", "&#0;"} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, name, message string) {
		report := junitReport([]*policyv1.Document{{Path: name}}, []*policyv1.TestResult{{Path: name, Document: message, Name: message, Message: message}},
			[]*policyv1.Finding{{Path: message, Line: 1, Message: name, Check: "load"}})
		if !utf8.Valid(report) {
			t.Fatalf("the report is not UTF-8: %q", report)
		}
		elements := 0
		for decoder := xml.NewDecoder(strings.NewReader(string(report))); ; {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, report)
			}
			if _, start := token.(xml.StartElement); start {
				elements++
			}
		}
		if suites := 1 + strings.Count(string(report), "<testsuite name="); elements != suites+4 {
			t.Errorf("%d elements in\n%s", elements, report)
		}
	})
}
