package condition_test

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

func arguments(t testing.TB, text string) condition.Arguments {
	t.Helper()
	args, err := condition.ParseArguments(`{"name":"t","arguments":` + text + `}`)
	if err != nil {
		t.Fatal(err)
	}
	return args
}

func compile(t testing.TB, text string) *condition.Condition {
	t.Helper()
	c, err := condition.Compile(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

func TestConditions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, args string
		want       string // held, or part of the error
	}{
		{`true`, `{}`, "true"},
		{`args.draft == true`, `{"draft":true}`, "true"},
		{`args.draft == true`, `{"draft":"true"}`, "false"},
		{`args.draft`, `{"draft":true}`, "true"},
		{`args.draft`, `{"draft":"yes"}`, "is string, and neither true nor false"},
		{`args.draft`, `{}`, "no such key: draft"},
		{`args.?force.orValue(false)`, `{}`, "false"},
		{`args.?force.orValue(false)`, `{"force":true}`, "true"},
		{`has(args.to) && args.to.endsWith("@example.com")`, `{"to":"a@example.com"}`, "true"},
		{`args.to.all(x, x.endsWith("@example.com"))`, `{"to":["a@example.com","b@example.org"]}`, "false"},
		{`args["dev/x"].a[1] == null`, `{"dev/x":{"a":[0,null]}}`, "true"},
		{`args.path.matches("^/tmp/[a-z]+$")`, `{"path":"/tmp/x/../etc"}`, "false"},
		{`args.n in [1, 2]`, `{"n":2}`, "true"},
		{`args.n < 100`, `{"n":99}`, "true"},
		{`args.n < 100`, `{"n":99.5}`, "true"},
		{`args.n < 100`, `{"n":"99"}`, "no such overload"}, // types are not coerced
		{`args.n == 99`, `{"n":"99"}`, "false"},
		{`args.n == 1`, `{"n":1.0}`, "true"},
		{`args.n == 9007199254740993`, `{"n":9007199254740993}`, "true"},
		{`args.n == 9007199254740993`, `{"n":9007199254740992}`, "false"},
		{`args.n == 9007199254740993`, `{"n":9007199254740993.0}`, "false"}, // a decimal: no double has its value
		{`decimal(args.n) == decimal(9007199254740993)`, `{"n":9007199254740993.0}`, "true"},
		{`args.n < 100`, `{"n":1e400}`, "no such overload"}, // no double has its value
		{`args.n < 100`, `{"n":9223372036854775808}`, "no such overload"},
		{`decimal(args.n) > decimal(100)`, `{"n":9223372036854775808}`, "true"},
		{`decimal(args.n) > decimal("100")`, `{"n":100.00000000000000000001}`, "true"},
		{`decimal(args.n) > decimal("100")`, `{"n":100.00}`, "false"},
		{`decimal(args.n) >= decimal("100")`, `{"n":1e2}`, "true"},
		{`decimal(args.n) == decimal("0.1")`, `{"n":0.1}`, "true"},
		{`decimal(args.n) != decimal("0.1")`, `{"n":0.1000000000000000055511151231257827}`, "true"},
		{`decimal(args.n) <= decimal("1e100000")`, `{"n":1}`, "true"},
		{`decimal(args.n) < decimal(1)`, `{"n":-1e-300}`, "true"},
		{`decimal(args.n) < decimal(1)`, `{"n":1e-200000}`, "exponent out of range"},
		{`decimal(args.n) < decimal(1)`, `{"n":"12,50"}`, "decimal: the text is no number"},
		{`decimal(args.n) < decimal(100)`, `{"n":"NaN"}`, "decimal: the text is no number"},
		{`decimal(args.n) < decimal(100)`, `{"n":"12.50"}`, "true"},
		{`decimal(args.n) < decimal(100)`, `{"n":null}`, "no such overload"},
		{`decimal(args.n) == decimal(1)`, `{"n":` + strings.Repeat("1", 257) + `}`, "no number of at most 256 bytes"},
		{`args.n == args.m`, `{"n":1` + strings.Repeat("0", 40) + `,"m":1e40}`, "true"},
		{`args.a.all(x, args.b.exists(y, x == y))`, `{"a":[1,2],"b":[2,1.0]}`, "true"},
		{`args.body.matches("^[a-z ]*$")`, `{"body":"` + strings.Repeat("a quiet text ", 3000) + `"}`, "true"},
	} {
		c := compile(t, tt.text)
		held, err := c.Holds(arguments(t, tt.args))
		got := fmt.Sprint(held)
		if err != nil {
			got = err.Error()
		}
		if held && err != nil || !strings.Contains(got, tt.want) {
			t.Errorf("%s for %s: %s; want %s", tt.text, tt.args, got, tt.want)
		}
	}
}

func TestConditionsThatDoNotCompile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		" \n":                     "is empty",
		`args.x = 1`:              "character 8: ",
		"true &&\n arg.x":         "line 2, character 2: undeclared reference to 'arg'",
		`args.x + "a"`:            "is string, and must be true or false",
		`size(args)`:              "is int, and must be true or false",
		`decimal(args.x) > 100`:   "found no matching overload for '_>_' applied to '(sluice.Decimal, int)'",
		`args.x.matches("(")`:     "invalid matches argument",
		`decimal(true) == args.x`: "found no matching overload for 'decimal'",
		strings.Repeat("!", 2049): "is longer than 2048 bytes",
		strings.Repeat("(", 1000): "recursion",
		`request.time > now`:      "undeclared reference",
		`args.all(a, args.all(b, args.all(c, a == b && b == c)))`: "may take too long",
	} {
		if _, err := condition.Compile(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: %v; want %q", text, err, want)
		}
	}
}

// Whatever numbers are written like, their exact values are compared: with decimals
// always, and without where CEL can; else that is an error.
func TestNumbersAreComparedExactly(t *testing.T) {
	t.Parallel()
	less := compile(t, `decimal(args.a) < decimal(args.b)`)
	same := compile(t, `decimal(args.a) == decimal(args.b)`)
	plainLess, plainSame := compile(t, `args.a < args.b`), compile(t, `args.a == args.b`)
	number := rapid.OneOf(
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})([.][0-9]{1,3})?([eE][+-]?[0-9])?`),
		rapid.StringMatching(`-?(900719925474099[0-9]|1844674407370955161[0-9]|922337203685477580[0-9])([.]0)?`),
	)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		args, err := condition.ParseArguments(`{"arguments":{"a":` + a + `,"b":` + b + `}}`)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name      string
			condition *condition.Condition
			want, may bool
		}{
			{"decimal <", less, x.Cmp(y) < 0, false},
			{"decimal ==", same, x.Cmp(y) == 0, false},
			{"<", plainLess, x.Cmp(y) < 0, true},
			{"==", plainSame, x.Cmp(y) == 0, false},
		} {
			held, err := c.condition.Holds(args)
			if err != nil && !c.may || err == nil && held != c.want {
				t.Fatalf("%s %s %s: %v, %v", a, c.name, b, held, err)
			}
		}
	})
}

// Neither an expression nor arguments make it panic, and what can't be told does not
// hold.
func FuzzHolds(f *testing.F) {
	f.Add(`decimal(args.a) < decimal("1.5")`, `{"arguments":{"a":1e-7}}`)
	f.Add(`args.?a.orValue([]).exists(x, x == "y")`, `{"arguments":{"a":["x",{"y":null}]}}`)
	f.Add(`args == {"a": 1.0}`, `{"arguments":{"a":100000000000000000001}}`)
	f.Fuzz(func(t *testing.T, text, params string) {
		c, err := condition.Compile(text)
		if err != nil {
			return
		}
		args, err := condition.ParseArguments(params)
		held, evalErr := c.Holds(args)
		if held && (err != nil || evalErr != nil) {
			t.Errorf("%q for %q: %v, %v, %v", text, params, held, err, evalErr)
		}
	})
}

// What is fast for ordinary arguments is given up on for others.
func TestAConditionThatTakesTooLongDoesNotHold(t *testing.T) {
	t.Parallel()
	c := compile(t, `args.list.all(x, x.contains("a"))`)
	many := `{"list":["` + strings.Repeat(`a","`, 50_000) + `a"]}`
	if held, err := c.Holds(arguments(t, many)); held || err == nil || !strings.Contains(err.Error(), "cost") {
		t.Errorf("%v, %v", held, err)
	}
}

func TestWhatAreNoArguments(t *testing.T) {
	t.Parallel()
	for _, params := range []string{`[]`, `1`, `{`, `{} {}`, `{"arguments":1}`, `{"arguments":null}`, `{"arguments":{"a":1,"\u0061":2}}`, `{"arguments":{},"arguments":{}}`, "{\"arguments\":{\"a\":\"\xff\"}}"} {
		if _, err := condition.ParseArguments(params); err == nil {
			t.Errorf("%s is read", params)
		}
	}
	if _, err := condition.ParseArguments(`{"arguments":{"a":"` + strings.Repeat("x", condition.MaxParamsBytes) + `"}}`); err == nil {
		t.Error("arguments of any length are read")
	}
	for _, params := range []string{``, `{}`, `{"name":"t"}`, `{"name":"t","arguments":{}}`} {
		args, err := condition.ParseArguments(params)
		if err != nil {
			t.Errorf("%s: %v", params, err)
		}
		if held, err := compile(t, `size(args) == 0`).Holds(args); !held || err != nil {
			t.Errorf("%s: %v, %v", params, held, err)
		}
	}
	if held, err := compile(t, `true`).Holds(condition.Arguments{}); held || err == nil {
		t.Errorf("no arguments: %v, %v", held, err)
	}
	if held, err := new(condition.Condition).Holds(arguments(t, `{}`)); held || err == nil {
		t.Errorf("no condition: %v, %v", held, err)
	}
}

func BenchmarkHolds(b *testing.B) {
	c := compile(b, `decimal(args.amount) <= decimal("100") && args.to.endsWith("@example.com")`)
	const params = `{"name":"t","arguments":{"amount":99.95,"to":"ana@example.com","items":[{"id":1,"text":"a"},{"id":2,"text":"b"}]}}`
	b.ReportAllocs()
	for b.Loop() {
		args, err := condition.ParseArguments(params)
		if held, _ := c.Holds(args); !held || err != nil {
			b.Fatal(held, err)
		}
	}
}

// The most that arguments can make a condition take.
func BenchmarkWorst(b *testing.B) {
	c := compile(b, `args.list.all(x, x)`)
	args := arguments(b, `{"list":[`+strings.Repeat("true,", 40_000)+`true]}`)
	for b.Loop() {
		if held, err := c.Holds(args); held || err == nil {
			b.Fatal(held, err)
		}
	}
}
