package dialect_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/sluice-mesh/sluice/services/policy/internal/dialect"
)

// If a policy as a whole is invalid or too large, it has no translation, and the report shows the position of the
// problem.
func TestTranslate_RefusesAPolicyAsAWhole(t *testing.T) {
	t.Parallel()
	const operator, hosted = dialect.OperatorYAML, dialect.HostedJSON
	for _, tt := range []struct {
		name   string
		format dialect.Format
		text   string
		want   string
	}{
		{"empty", operator, "", "1:1: is empty"},
		{"no YAML", operator, "a: [", "is not YAML"},
		{"a key that is not known", operator, "version: \"1\"\napprovals: {}\ntools: {}\n", `2:1: unknown key "approvals"`},
		{"another version", operator, "version: \"2\"\ntools: {}\n", "1:10: version: is not 1"},
		{"no version", operator, "tools: {}\n", "version: is required"},
		{"another default", operator, "version: \"1\"\ndefault: block\ntools: {}\n", "2:10: default: is neither allow nor deny"},
		{"a tool twice", operator, "version: \"1\"\ntools:\n  a: {rules: []}\n  a: {rules: []}\n", "4:3: tools: "},
		{"an anchor", operator, "version: \"1\"\nhide: &a [x]\ntools: {}\n", "anchors and aliases are not supported"},
		{"a list that hides no names", operator, "version: \"1\"\nhide: [{}]\ntools: {}\n", "2:8: hide[0]: wanted text"},
		{"too deep", operator, "version: \"1\"\ntools: " + strings.Repeat("[", 100), "is not YAML"},
		{"too many rules", operator, "version: \"1\"\ntools:\n  a:\n    rules:\n" + strings.Repeat("      - {name: r, action: deny}\n", dialect.MaxRules+1), "has more than 1000 rules"},
		{"too many conditions", operator, "version: \"1\"\ntools:\n  a:\n    rules:\n      - name: r\n        conditions:\n" +
			strings.Repeat("          - {path: args.a, op: exists, value: true}\n", dialect.MaxConditions+1), "has more than 2000 conditions"},
		{"too many problems", operator, "version: \"1\"\ntools:\n  a:\n    rules:\n" + strings.Repeat("      - {nome: r}\n", 101), "unknown key"},
		{"YAML as JSON", hosted, "version: \"1\"\ndefault: deny\n", "is not JSON"},
		{"no default", hosted, `{"version":"1","tools":{}}`, "default: is required"},
		{"a name twice", hosted, `{"version":"1","default":"deny","tools":{"a":{},"a":{}}}`, "is not JSON"},
		{"no object", hosted, `[]`, "wanted a mapping"},
		{"another key", hosted, `{"version":"1","default":"deny","rules":[]}`, `unknown key "rules"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			set, out, problems := translate(t, tt.format, tt.text)
			if set != nil || len(problems) == 0 || !strings.Contains(report(problems), tt.want) || !strings.HasPrefix(report(problems), "error p") {
				t.Errorf("want %q, got the document %q and the report\n%s", tt.want, out, report(problems))
			}
		})
	}
}

// If a part of the policy for a tool can't be read, the translation denies all calls to the tool, and the report
// describes this part.
func TestTranslate_DeniesAToolThatItCannotRead(t *testing.T) {
	t.Parallel()
	operator := func(rule string) string {
		return "version: \"1\"\ntools:\n  other: {rules: []}\n  t:\n    rules:\n      - " + rule + "\n"
	}
	hosted := func(tool string) string {
		return `{"version":"1","default":"allow","tools":{"other":{},"t":` + tool + `}}`
	}
	for _, tt := range []struct{ text, want string }{
		{operator("{name: r, action: require_approval}"), "6:27: tools.t.rules[0].action"},
		{operator("{name: r, action: deny, approval_timeout: 10m}"), `unknown key "approval_timeout"`},
		{operator("{name: r, spend: {daily: 5}}"), `unknown key "spend"`},
		{operator("{name: r, conditions: []}"), "has no conditions"},
		{operator("{name: r, conditions: [{path: args.a, op: like, value: x}]}"), `"like" is not an operator: the translation denies every call of t`},
		{operator("{name: r, conditions: [{path: arg.a, op: eq, value: x}]}"), `"arg.a" is not the path of an argument`},
		{operator("{name: r, conditions: [{path: args.a..b, op: eq, value: x}]}"), `is not the path of an argument`},
		{operator("{name: r, conditions: [{path: args.a, op: eq}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: args.a, op: eq, value: 2026-01-01}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: args.a, op: lt, value: 0x10}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: args.a, op: lt, value: 1e300}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: args.a, op: neq, value: \"5\"}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: args.a, op: regex, value: \"(\"}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: args.a, op: regex, value: \"a{1000}\"}]}"), "its condition is refused"},
		{operator("{name: r, conditions: [{path: args.path, op: regex, value: \"^/app/src/\"}]}"), "use path.within"},
		{operator("{name: r, conditions: [{path: args.a, op: exists, value: \"yes\"}]}"), "exists needs true or false"},
		{operator("{name: r, conditions: [{path: args.a, op: in, value: a}]}"), "can't be translated exactly"},
		{operator("{name: r, conditions: [{path: state.other.n, op: lte, value: 5}]}"), "reads a counter of another rule"},
		{operator("{name: r, rate_limit: 5/week}"), `"5/week" is not a limit`},
		{operator("{name: r, rate_limit: 0/hour}"), `"0/hour" is not a limit`},
		{operator("{name: r, rate_limit: 5/hour, action: deny}"), "deny can't be combined"},
		{operator("{name: r, conditions: [{path: state.t.n, op: lte, value: 5}], state: {counter: n, window: day, increment_from: args.amount}}"), "sums an argument"},
		{operator("{name: r, conditions: [{path: state.t.n, op: gt, value: 5}], state: {counter: n, window: day}}"), "not with lt or lte"},
		{operator("{name: r, conditions: [{path: state.t.n, op: lte, value: 5}], state: {counter: n, window: week}}"), `"week" is not a window`},
		{strings.Replace(operator("{name: r}"), "  t:\n    rules:\n      - {name: r}\n", "  t:\n", 1), "tools.t: has no value"},
		{hosted(`{"require":[{"conditions":[]}]}`), "requires no condition"},
		{hosted(`{"deny_if":[{"on_deny":"no"}]}`), "has no conditions"},
		{hosted(`{"rules":[]}`), "it is a key of the format operator-yaml"},
		{hosted(`{"limits":[{"counter":"a","window":"hour","max":5,"scope":"server"}]}`), `"server" is not a known scope`},
		{hosted(`{"limits":[{"counter":"a","window":"hour","max":-1,"scope":"grant"}]}`), "is not a number of calls"},
		{hosted(`{"limits":[{"counter":"a","window":"hour","max":1,"scope":"grant","by":"x"}]}`), `unknown key "by"`},
		{hosted(`{"limits":[{"counter":"a","window":"hour","max":1,"scope":"grant"},{"counter":"a","window":"day","max":2,"scope":"grant"}]}`), "counter of several limits"},
	} {
		format := dialect.OperatorYAML
		if tt.text[0] == '{' {
			format = dialect.HostedJSON
		}
		set, out, problems := translate(t, format, tt.text)
		if set == nil {
			t.Errorf("%s: there is no translation:\n%s", tt.text, report(problems))
			continue
		}
		if !strings.Contains(report(problems), tt.want) || !strings.Contains(report(problems), "error p:") {
			t.Errorf("%s: %q is missing in\n%s", tt.text, tt.want, report(problems))
		}
		if allows(set, "t", `{"a":"x"}`) || !allows(set, "other", `{}`) {
			t.Errorf("%s: only t must be denied by\n%s", tt.text, out)
		}
	}
}

// If the limits for all tools together can't be read, the translation denies every call.
func TestTranslate_DeniesAllToolsIfTheirLimitsAreUnclear(t *testing.T) {
	t.Parallel()
	for _, all := range []string{`null`, `5`, `{"limits":[{}]}`, `{"limits":[{"counter":"a","window":"hour","max":0,"scope":"grant"}]}`, `{"quota":[]}`} {
		text := `{"version":"1","default":"allow","tools":{"t":{}},"all_tools":` + all + `}`
		if set, out, _ := translate(t, dialect.HostedJSON, text); set == nil || allows(set, "t", `{}`) {
			t.Errorf("%s: t is allowed by\n%s", text, out)
		}
	}
}

func TestTranslate_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller went away"))
	text := "version: \"1\"\ntools: {t: {rules: [{name: r, action: deny}]}}\n"
	_, _, err := dialect.Translate(ctx, &dialect.Source{File: "p", Text: []byte(text), Format: dialect.OperatorYAML, Server: "s"})
	if err == nil || !strings.Contains(err.Error(), "the caller went away") {
		t.Errorf("got %v", err)
	}
}

// Strings in the source policy can't add lines or keys to the translation.
func TestTranslate_QuotesTextsOfThePolicy(t *testing.T) {
	t.Parallel()
	hostile := "x\\n    action: allow\\n\\u202e'\\\" # "
	text := `{"version":"1","default":"allow","tools":{"t":{"deny_if":[{"conditions":[{"path":"args.` + hostile + `","op":"eq","value":"` + hostile + `"}],"on_deny":"` + hostile + `"}]}}}`
	set, out, problems := translate(t, dialect.HostedJSON, text)
	if set == nil || strings.Contains(out, "\n    action: allow") || strings.ContainsFunc(out, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) {
		t.Errorf("the translation is\n%s\n%s", out, report(problems))
	}
}

// FuzzTranslate checks that the translation of any text can be loaded, and that each problem has a position in the text
// and a message of one line.
func FuzzTranslate(f *testing.F) {
	for _, seed := range []string{
		"version: \"1\"\ntools:\n  t:\n    rules:\n      - {name: r, rate_limit: 5/hour, on_deny: wait}\n",
		"version: 1\ndefault: deny\nhide: [a, \"*\"]\ntools: {\"*\": {rules: [{name: x, action: deny}]}}",
		"version: '1'\ntools: {t: {rules: [{name: r, conditions: [{path: state.t.c, op: lt, value: 3}, {path: args.a.b-c, op: not_in, value: [a, 5]}], state: {counter: c, window: day, increment: 2}}]}}",
		`{"version":"1","default":"deny","hide":["x"],"all_tools":{"limits":[{"counter":"c","window":"hour","max":3,"scope":"grant"}]},"tools":{"t":{"require":[{"conditions":[{"path":"args.a","op":"exists","value":true}]}],"deny_if":[{"conditions":[],"on_deny":"no"}],"limits":[]}}}`,
		"version: \"1\"\ntools: {tools: {rules: [{name: \".otherwise\", conditions: [{path: args.x, op: contains, value: \"'\\n\"}]}]}}",
	} {
		for _, format := range dialect.Formats() {
			f.Add(int(format), seed)
		}
	}
	f.Fuzz(func(t *testing.T, format int, text string) {
		if format != int(dialect.HostedJSON) {
			format = int(dialect.OperatorYAML)
		}
		_, _, problems := translate(t, dialect.Format(format), text) // fails if the translation does not load
		lines := strings.Count(text, "\n") + strings.Count(text, "\r") + 2
		for _, p := range problems {
			message := fmt.Sprint(p.Message, p.Suggestion)
			if p.Line < 0 || p.Line > lines || strings.ContainsFunc(message, func(c rune) bool { return c == '\n' || c == '\r' }) {
				t.Errorf("%d:%d: %q", p.Line, p.Column, message)
			}
		}
	})
}
