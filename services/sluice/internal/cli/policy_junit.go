package cli

import (
	"encoding/xml"
	"fmt"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// A junitSuites is the root of a report in JUnit's XML format, which CI systems read.
type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

// A junitSuite contains the tests of one document.
type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	File    string        `xml:"file,attr"`
	Line    int32         `xml:"line,attr"`
	Failure *junitProblem `xml:"failure"`
	Error   *junitProblem `xml:"error"`
}

type junitProblem struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junitReport returns a report with a suite for each document, in the order of the documents. A failed test is a
// failure. A finding that prevents the documents from being loaded is an error, unless it describes a failed test.
func junitReport(documents []*policyv1.Document, results []*policyv1.TestResult, findings []*policyv1.Finding) []byte {
	var out junitSuites
	for _, d := range documents {
		out.suite(d.GetPath())
	}
	for _, r := range results {
		out.suite(r.GetPath()).add(junitTest(r))
	}
	for _, f := range findings {
		failed := func(r *policyv1.TestResult) bool {
			return !r.GetPassed() && r.GetPath() == f.GetPath() && r.GetLine() == f.GetLine() && r.GetColumn() == f.GetColumn()
		}
		if blocksLoading(f) && !slices.ContainsFunc(results, failed) {
			out.suite(f.GetPath()).add(junitError(f))
		}
	}
	for _, s := range out.Suites {
		out.Tests, out.Failures, out.Errors = out.Tests+s.Tests, out.Failures+s.Failures, out.Errors+s.Errors
	}
	text, err := xml.MarshalIndent(out, "", "  ")
	if err != nil {
		panic("cli: a report can't be encoded: " + err.Error()) // can't happen, because the types of a report can always be encoded
	}
	return append([]byte(xml.Header), append(text, '\n')...)
}

// suite returns the suite with the given name. It adds the suite if it does not exist.
func (r *junitSuites) suite(name string) *junitSuite {
	name = safetext.Line(name)
	at := slices.IndexFunc(r.Suites, func(s junitSuite) bool { return s.Name == name })
	if at < 0 {
		at = len(r.Suites)
		r.Suites = append(r.Suites, junitSuite{Name: name})
	}
	return &r.Suites[at]
}

func (s *junitSuite) add(c junitCase) {
	s.Tests++
	if c.Failure != nil {
		s.Failures++
	}
	if c.Error != nil {
		s.Errors++
	}
	s.Cases = append(s.Cases, c)
}

func junitTest(r *policyv1.TestResult) junitCase {
	name := r.GetName()
	if name == "" {
		name = fmt.Sprintf("test in line %d", r.GetLine())
	}
	out := junitCase{Name: safetext.Line(name), Class: safetext.Line(r.GetDocument()), File: safetext.Line(r.GetPath()), Line: r.GetLine()}
	if !r.GetPassed() {
		out.Failure = problemOf(r.GetPath(), r.GetLine(), r.GetColumn(), r.GetMessage())
	}
	return out
}

func junitError(f *policyv1.Finding) junitCase {
	return junitCase{
		Name: safetext.Line(fmt.Sprintf("%s in line %d", f.GetCheck(), f.GetLine())), Class: safetext.Line(f.GetPath()), File: safetext.Line(f.GetPath()), Line: f.GetLine(),
		Error: problemOf(f.GetPath(), f.GetLine(), f.GetColumn(), findingText(f)),
	}
}

func problemOf(path string, line, column int32, message string) *junitProblem {
	message = safetext.Line(message)
	return &junitProblem{Message: message, Text: safetext.Line(fmt.Sprintf("%s:%d:%d: ", path, line, column)) + message}
}
