package document

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// A Test is a test in a document. It contains a call and the required decision on the call.
type Test struct {
	source *strictyaml.Source
	// at is the path to the test in the document.
	at             string
	document, name string
	call           engine.Call
	want           testWant
}

// A TestResult is the result of one test.
type TestResult struct {
	// Document is the name of the document with the test. Name is the test's name, which may be empty.
	Document, Name string
	// Place is the position of the test in the document.
	Place strictyaml.Problem
	// Failure is the reason why the test failed. It is nil if the test passed.
	Failure *strictyaml.Problem
}

// RunTests runs the tests in all documents against the whole set, without observe mode. It returns one problem for each
// test that fails, and stops after 100 problems. If the tests take longer than within, RunTests stops and also returns
// a problem for the document whose tests took the longest. RunTests returns an error if ctx is done.
func (s *Set) RunTests(ctx context.Context, within time.Duration, sessionCap int, times engine.Times) (strictyaml.Errors, error) {
	var failed strictyaml.Errors
	late, err := s.eachTest(ctx, within, engine.Options{SessionCap: sessionCap, Times: times}, func(_ *Test, failure *strictyaml.Problem) bool {
		if failure != nil {
			failed = append(failed, *failure)
		}
		return len(failed) < maxProblems
	})
	if late != nil {
		failed = append(failed, *late)
	}
	return failed, err
}

// TestResults is like [Set.RunTests], but returns the result of each test that it ran. late is a problem if the tests
// took too long, and otherwise nil.
func (s *Set) TestResults(ctx context.Context, within time.Duration, sessionCap int, times engine.Times) (all []TestResult, late *strictyaml.Problem, err error) {
	late, err = s.eachTest(ctx, within, engine.Options{SessionCap: sessionCap, Times: times}, func(t *Test, failure *strictyaml.Problem) bool {
		all = append(all, TestResult{Document: t.document, Name: t.name, Place: t.source.Problem(t.at, "", ""), Failure: failure})
		return true
	})
	return all, late, err
}

// eachTest runs the tests and passes the result of every test to the function report, until report returns false. If
// the tests take longer than within, eachTest stops and returns a problem for the document whose tests took the
// longest.
func (s *Set) eachTest(ctx context.Context, within time.Duration, options engine.Options, report func(*Test, *strictyaml.Problem) bool) (late *strictyaml.Problem, _ error) {
	if len(s.Tests) == 0 {
		return nil, nil
	}
	compiled, err := engine.Compile(s.Documents, options)
	if err != nil {
		return nil, fmt.Errorf("compile the policy for its tests: %w", err)
	}
	watch := stopwatch{spent: make(map[string]time.Duration), last: time.Now()}
	for i := range s.Tests {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("run the tests of the policy: %w", context.Cause(ctx))
		}
		t := &s.Tests[i]
		var failure *strictyaml.Problem
		if !t.passes(compiled.Decide(t.call)) {
			failure = new(t.problem(compiled.Explain(t.call)))
		}
		if !report(t, failure) {
			return nil, nil
		}
		if watch.add(t.document); watch.total > within && i+1 < len(s.Tests) {
			return new(s.tooLong(&watch, within, i+1)), nil
		}
	}
	return nil, nil
}

// stopwatch measures how long the tests in each document take.
type stopwatch struct {
	spent map[string]time.Duration
	total time.Duration
	last  time.Time
}

func (w *stopwatch) add(document string) {
	now := time.Now()
	passed := now.Sub(w.last)
	w.last = now
	w.spent[document] += passed
	w.total += passed
}

// tooLong returns the problem for tests that take too long. It is a problem in the document whose tests took the
// longest. ran is the number of tests that were run.
func (s *Set) tooLong(w *stopwatch, within time.Duration, ran int) strictyaml.Problem {
	slowest := slices.MaxFunc(slices.Sorted(maps.Keys(w.spent)), func(a, b string) int { return cmp.Compare(w.spent[a], w.spent[b]) })
	first := slices.IndexFunc(s.Tests, func(t Test) bool { return t.document == slowest })
	text := fmt.Sprintf("the tests of all documents take longer than %s: %d of %d ran, and the tests of this document took %s",
		within, ran, len(s.Tests), w.spent[slowest].Round(time.Millisecond))
	return s.Tests[first].source.Problem("tests", text, "remove tests, or shorten their arguments and the loops of conditions over them")
}

func (t *Test) passes(d engine.Decision) bool { return len(t.differences(&d)) == 0 }

// differences describes how the decision on the test's call differs from the required decision.
func (t *Test) differences(d *engine.Decision) []string {
	var out []string
	if got := actionOf(d); got != t.want.Action {
		out = append(out, fmt.Sprintf("wanted the action %s, got %s", t.want.Action, got))
	}
	if t.want.Rule != "" && t.wantedRule() != d.Rule.String() {
		got := "but no rule decided"
		if !d.Rule.IsZero() {
			got = "got " + d.Rule.String()
		}
		out = append(out, fmt.Sprintf("wanted the rule %s, %s", t.wantedRule(), got))
	}
	if t.want.Code != "" && t.want.Code != string(d.Code) {
		out = append(out, fmt.Sprintf("wanted the code %s, got %s", t.want.Code, orNone(string(d.Code))))
	}
	if t.want.Reason != nil && *t.want.Reason != d.Message {
		out = append(out, fmt.Sprintf("wanted the reason %s, got %s", strconv.Quote(*t.want.Reason), strconv.Quote(d.Message)))
	}
	return out
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// actionOf returns the name of the action that results in the given decision.
func actionOf(d *engine.Decision) string {
	switch {
	case d.Effect == engine.Allow:
		return engine.ActionAllow.String()
	case d.Effect == engine.RequireApproval:
		return engine.ActionRequireApproval.String()
	case d.Hidden:
		return engine.ActionHide.String()
	default:
		return engine.ActionDeny.String()
	}
}

// wantedRule returns the rule that the test requires, with its document. If the test does not name a document, the rule
// is in the test's own document. A slash normally separates the document from the rule. But in "tools.x/y", it belongs
// to the name of an entry, because no document has a name such as "tools.x".
func (t *Test) wantedRule() string {
	if strings.Contains(t.want.Rule, "/") && !strings.HasPrefix(t.want.Rule, "tools.") {
		return t.want.Rule
	}
	return t.document + "/" + t.want.Rule
}

// problem returns the problem that describes why the test fails.
func (t *Test) problem(e engine.Explanation) strictyaml.Problem {
	d := &e.Decision
	name := ""
	if t.name != "" {
		name = " " + strconv.Quote(t.name)
	}
	text := "the test" + name + " fails: " + strings.Join(t.differences(d), "; ") + ". " + strings.TrimSuffix(e.Why, ".")
	decided := conditionOf(e.Rules, d.Rule.String(), d.ChainIndex)
	if decided != nil {
		text += ". " + describeCondition(d.Rule.String(), decided)
	}
	suggestion := ""
	if t.want.Rule != "" && t.wantedRule() != d.Rule.String() {
		why, fix := t.whyNot(e.Rules, decided)
		if why != "" {
			text += ". " + why
		}
		suggestion = fix
	}
	if suggestion == "" && !d.Rule.IsZero() && d.Rule.Document != t.document {
		suggestion = "the rule is in the document " + d.Rule.Document + ": a test is decided by all documents that are loaded together"
	}
	return t.source.Problem(t.at, text, suggestion)
}

// conditionOf returns the check of a rule's condition for the principal with the given index in the chain. It returns
// nil if the rule was not evaluated or has no condition.
func conditionOf(rules []engine.ConsideredRule, name string, chain int) *engine.Check {
	at := slices.IndexFunc(rules, func(r engine.ConsideredRule) bool { return r.Rule.String() == name && r.ChainIndex == chain })
	if at < 0 {
		return nil
	}
	for i := range rules[at].Checks {
		if c := &rules[at].Checks[i]; c.Name == "when" || c.Name == "otherwise" {
			return c
		}
	}
	return nil
}

func describeCondition(rule string, c *engine.Check) string {
	is := "is " + c.Got
	if strings.HasPrefix(c.Got, "can't") {
		is = c.Got
	}
	return fmt.Sprintf("The condition of %s, `%s`, %s", rule, c.Want, is)
}

// whyNot returns the reason why the rule that the test requires did not make the decision. It omits the result of the
// condition in decided, because the test's message already contains that result. If the required rule does not exist,
// whyNot also returns a suggestion.
func (t *Test) whyNot(rules []engine.ConsideredRule, decided *engine.Check) (why, suggestion string) {
	if len(rules) == 0 { // the call was refused before rules were evaluated
		return "", ""
	}
	name := t.wantedRule()
	at := slices.IndexFunc(rules, func(r engine.ConsideredRule) bool { return r.Rule.String() == name && r.ChainIndex == 0 })
	if at < 0 {
		var known []string
		for _, r := range rules {
			known = append(known, r.Rule.String())
		}
		if best, ok := strictyaml.Closest(name, known); ok {
			suggestion = fmt.Sprintf("did you mean %q?", strings.TrimPrefix(best, t.document+"/"))
		}
		return "There is no rule " + name, suggestion
	}
	r := rules[at]
	failed := slices.IndexFunc(r.Checks, func(c engine.Check) bool { return !c.Held })
	if failed < 0 {
		return "", ""
	}
	if c := conditionOf(rules, name, 0); c != nil {
		if decided != nil && decided.Want == c.Want && decided.Got == c.Got {
			return "", ""
		}
		return describeCondition(name, c), ""
	}
	c := r.Checks[failed]
	return fmt.Sprintf("Rule %s does not match: its %s is %s, and the call has %s", name, c.Name, c.Want, orNone(c.Got)), ""
}
