package dialect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// A translator converts a source policy into the content of a policy document.
type translator struct {
	policy   *policy
	problems []Problem
	// entries contains the entries under `tools`, and rules contains the rules. Both are in order.
	entries []entry
	rules   []outRule
	// hidden contains the names of the hidden tools, and names contains the names of the rules.
	hidden, names map[string]bool
}

// An entry is an entry under `tools` in the translated document.
type entry struct{ tool, action string }

// An outRule is a rule in the translated document. It denies calls unless it has limits or hides a tool.
type outRule struct {
	name, tool, when, reason string
	limits                   []string
	hides                    bool
	// note is a comment above the rule in the document.
	note string
}

func (t *translator) translate(ctx context.Context) error {
	if t.tools(); slices.ContainsFunc(t.rules, func(r outRule) bool { return r.hides }) {
		return nil // all tools are hidden, so no rule matters
	}
	for i := range t.policy.rules {
		if ctx.Err() != nil {
			return fmt.Errorf("translate the policy: %w", context.Cause(ctx))
		}
		if r := &t.policy.rules[i]; !t.hidden[r.tool] {
			t.rule(r)
		}
	}
	return nil
}

// tools adds entries for the hidden tools and the allowed tools to the document.
func (t *translator) tools() {
	for _, one := range t.policy.hidden {
		if one.name == allTools {
			t.rules = append(t.rules, outRule{name: t.name("hide-all", ""), tool: allTools, hides: true})
		} else if !t.hidden[one.name] {
			t.hidden[one.name] = true
			t.entries = append(t.entries, entry{one.name, "hide"})
		}
	}
	for _, one := range t.policy.listed {
		if !t.policy.allows && !t.hidden[one.name] {
			t.entries = append(t.entries, entry{one.name, "allow"})
		}
	}
}

// rule translates a rule in the source policy. It adds up to two rules to the document: one that denies calls, and one
// with the limits.
func (t *translator) rule(r *rule) {
	name := t.name(r.name, r.tool)
	when, err := t.condition(r)
	if err != nil {
		t.deny(r, name, err)
		return
	}
	none := slices.ContainsFunc(r.limits, func(l limit) bool { return l.max < 1 })
	if none || r.kind == refuses || len(r.conditions) > 0 {
		if none {
			when = ""
		}
		t.rules = append(t.rules, outRule{name: name, tool: r.tool, when: when, reason: t.reason(r)})
	}
	if none || len(r.limits) == 0 {
		return
	}
	if len(r.conditions) > 0 {
		name = t.name(r.name+"-limit", r.tool)
	} else if r.message != "" {
		t.add(Info, r.at+".on_deny", "is not shown: a caller reads which limit is reached, and when it may call again", "")
	}
	t.rules = append(t.rules, outRule{name: name, tool: r.tool, limits: t.limits(r)})
}

// deny adds a rule that denies every call to the tool. It replaces a rule that can't be translated.
func (t *translator) deny(r *rule, name string, err error) {
	note := "not translated"
	if u, ok := errors.AsType[*untranslatable](err); ok {
		what := "every call of " + r.tool
		if r.tool == allTools {
			what = "every call"
		}
		t.add(Error, u.at, u.message+": the translation denies "+what, u.suggestion)
		note += ": " + u.message
	}
	t.rules = append(t.rules, outRule{name: name, tool: r.tool, reason: "a rule of the imported policy is not translated", note: note})
}

var errUnclear = errors.New("the rule can't be read") // the problem has already been added

// condition returns the condition under which the translated rule denies calls. If it is empty, the rule denies all
// calls.
func (*translator) condition(r *rule) (string, error) {
	if r.kind == unclear {
		return "", errUnclear
	}
	to := atMost
	if r.kind == refuses {
		to = atLeast
	}
	var parts []string
	for i := range r.conditions {
		part, err := expression(&r.conditions[i], to)
		if err != nil {
			return "", err
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "", nil
	}
	when := strings.Join(parts, " && ")
	if r.kind == requires {
		when = "!(" + when + ")"
	}
	if _, err := condition.Compile(when); err != nil {
		out := &untranslatable{at: r.at, message: "its condition is refused: " + err.Error()}
		if text, ok := errors.AsType[*condition.TextError](err); ok {
			out.message, out.suggestion = "its condition is refused: "+text.Message, text.Suggestion
		}
		return "", out
	}
	return when, nil
}

// limits returns values of the key rate_limit for the limits of a rule. A rule in a document can't have two limits with
// the same window, so limits returns only the smallest limit for each window.
func (*translator) limits(r *rule) (out []string) {
	smallest := make(map[string]int64)
	for _, l := range r.limits {
		if most, found := smallest[l.window]; !found || l.max < most {
			smallest[l.window] = min(l.max, engine.MaxLimit)
		}
	}
	for _, window := range []string{"1m", "1h", "1d"} {
		if most, found := smallest[window]; found {
			out = append(out, fmt.Sprintf("{max: %d, window: %s, per: %s}", most, window, r.per))
		}
	}
	return out
}

// reason returns the reason in the translated rule, which is shown when the rule denies a call.
func (t *translator) reason(r *rule) string {
	if r.message == "" {
		return "denied by the rule " + cut(printable(r.name), engine.MaxNameBytes) + " of the imported policy"
	}
	text := cut(printable(r.message), engine.MaxReasonBytes)
	if text != r.message {
		t.add(Warning, r.at+".on_deny", fmt.Sprintf("is shortened to %d bytes of printable text", engine.MaxReasonBytes), "")
	}
	return text
}

func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c == '\n' || unicode.IsPrint(c) {
			return c
		}
		return -1
	}, text)
}

// cut shortens a string to at most n bytes without splitting a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

func (t *translator) add(severity Severity, at, message, suggestion string) {
	t.problems = append(t.problems, Problem{t.policy.source.Problem(at, message, suggestion), severity})
}

// name returns a unique name for the translated rule for a tool.
func (t *translator) name(name, tool string) string {
	if tool == allTools {
		tool = "all-tools"
	}
	base := slug(tool)
	if part := slug(name); part != "" && base != "" {
		base += "." + part
	} else {
		base += part
	}
	if base == "" || strings.HasPrefix(base, "tools.") {
		base = "rule-" + base
	}
	base = strings.TrimSuffix(cut(base, engine.MaxNameBytes-10), ".otherwise")
	out := base
	for i := 2; t.names[out]; i++ {
		out = fmt.Sprintf("%s-%d", base, i)
	}
	t.names[out] = true
	return out
}

// slug replaces every sequence of characters other than ASCII letters, digits and _ with a single -. It also removes -
// and _ from both ends of the string.
func slug(text string) string {
	out := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' {
			return c
		}
		return '-'
	}, text)
	for strings.Contains(out, "--") {
		out = strings.ReplaceAll(out, "--", "-")
	}
	return strings.Trim(out, "-_")
}

// sorted returns the problems, sorted by their positions in the source policy.
func (t *translator) sorted() []Problem {
	slices.SortStableFunc(t.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return t.problems
}
