package dialect_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/dialect"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// failer is implemented by testing.T and by rapid.T.
type failer interface {
	Context() context.Context
	Helper()
	Fatalf(format string, args ...any)
}

// translate translates a policy, and checks that the translation can be loaded.
func translate(t failer, format dialect.Format, text string) (*engine.Set, string, []dialect.Problem) {
	t.Helper()
	out, problems, err := dialect.Translate(t.Context(), &dialect.Source{File: "p", Text: []byte(text), Format: format, Server: "s"})
	if err != nil {
		t.Fatalf("%v", err)
	}
	if out == nil {
		return nil, "", problems
	}
	return load(t, string(out)), string(out), problems
}

// load compiles a document, and fails the test if the document can't be loaded.
func load(t failer, text string) *engine.Set {
	t.Helper()
	parsed, err := document.ParseSet([]document.File{{Path: "imported.yaml", Text: []byte(text)}}, nil, time.Now())
	if err != nil {
		t.Fatalf("the translation does not load: %v\n%s", err, text)
	}
	set, err := engine.Compile(parsed.Documents, engine.Options{SessionCap: 10, Times: engine.Times{Decide: time.Minute, Execute: time.Minute}})
	if err != nil {
		t.Fatalf("the translation does not compile: %v\n%s", err, text)
	}
	return set
}

// allows reports whether the documents in a set allow a call.
func allows(set *engine.Set, tool, arguments string) bool {
	d := set.Decide(engine.Call{
		Server: "s", Tool: tool, Params: `{"arguments":` + arguments + `}`, Facts: engine.Facts{Status: engine.Callable},
		Subject: engine.Subject{Caller: engine.Principal{Name: "ana", Tenant: "default"}},
	})
	return d.Effect == engine.Allow
}

func encode(t failer, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(text)
}

// A translation never allows a call that its source denies. The calls have arguments of all types, including numbers
// that are equal to the numbers in the policy only after rounding.
func TestTranslate_NeverAllowsWhatTheSourceDenies(t *testing.T) {
	t.Parallel()
	check := func(t *rapid.T, format dialect.Format, text string, source func(tool string, args map[string]any) bool) {
		set, out, _ := translate(t, format, text)
		for range 8 {
			tool, args := rapid.SampledFrom([]string{"t", "t", "t", "u"}).Draw(t, "tool"), drawArguments(t)
			if allows(set, tool, args) && !source(tool, decodeArguments(args)) {
				t.Fatalf("%s(%s) is denied by\n%s\nand allowed by\n%s", tool, args, text, out)
			}
		}
	}
	t.Run("operator-yaml", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			p := drawPolicy(t)
			check(t, dialect.OperatorYAML, encode(t, p), p.allows)
		})
	})
	t.Run("hosted-json", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			p := drawHosted(t)
			check(t, dialect.HostedJSON, encode(t, p), p.allows)
		})
	})
}

// If the arguments have the types that a condition expects, the translation gives the same results as the source.
func TestTranslate_AgreesForArgumentsOfTheExpectedType(t *testing.T) {
	t.Parallel()
	numbers := []string{"-1", "0", "0.25", "0.5", "4", "5", "5.0", "5e0", "5.5", "6", "100", "99.99", "1000000000000000", "-0.5"}
	texts := []string{`""`, `"a"`, `"main"`, `"feat/x"`, `"a-feat/x"`, `"b\nfeat/"`, `"5"`}
	lists := []string{`["a"]`, `["b","a"]`, `["c"]`}
	for _, c := range []struct {
		op     string
		value  any
		values []string
	}{
		{"eq", 5.0, numbers},
		{"eq", 0.5, numbers},
		{"eq", "main", texts},
		{"eq", true, []string{"true", "false"}},
		{"neq", "main", texts},
		{"neq", true, []string{"true", "false"}},
		{"neq", 5.0, []string{"4", "5", "6", "-1"}},
		{"in", []any{"a", "main"}, texts},
		{"in", []any{5.0, 0.5}, numbers},
		{"not_in", []any{"a", "main"}, texts},
		{"not_in", []any{5.0, 7.0}, []string{"4", "5", "6", "7"}},
		{"lt", 5.0, numbers},
		{"lt", 0.5, numbers},
		{"lte", 5.0, numbers},
		{"lte", 0.5, numbers},
		{"gt", 5.0, numbers},
		{"gt", 0.5, numbers},
		{"gte", 5.0, numbers},
		{"gte", 0.5, numbers},
		{"regex", "^feat/", texts},
		{"regex", "feat", texts},
		{"regex", "a|x$", texts},
		{"contains", "a", append(texts, lists...)},
		{"exists", true, append(texts, "null")},
		{"exists", false, append(texts, "null")},
	} {
		condition := modelCondition{"args.x", c.op, c.value}
		operator := &modelPolicy{Version: "1", Default: "allow", Tools: map[string]modelTool{"t": {[]modelRule{{Name: "r", Conditions: []modelCondition{condition}}}}}}
		hosted := &modelHosted{Version: "1", Default: "allow", Tools: map[string]modelHostedTool{"t": {DenyIf: []modelHostedRule{{[]modelCondition{condition}}}}}}
		one, text, _ := translate(t, dialect.OperatorYAML, encode(t, operator))
		other, hostedText, _ := translate(t, dialect.HostedJSON, encode(t, hosted))
		for _, value := range append(c.values, "") {
			args := "{}"
			if value != "" {
				args = `{"x":` + value + `}`
			}
			if want := operator.allows("t", decodeArguments(args)); allows(one, "t", args) != want {
				t.Errorf("%s %v: %s: want %t in\n%s", c.op, c.value, args, want, text)
			}
			isList := value != "" && value[0] == '['
			if want := hosted.allows("t", decodeArguments(args)); !isList && allows(other, "t", args) != want {
				t.Errorf("deny_if %s %v: %s: want %t in\n%s", c.op, c.value, args, want, hostedText)
			}
		}
	}
}
