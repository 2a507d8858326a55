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

// holds reports whether a condition is true for the given arguments.
func holds(c *condition.Condition, args condition.Arguments) (bool, error) {
	result, err := c.Evaluate(&condition.Input{Args: args})
	return result == condition.True, err
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0", 260) + "1"
	for _, tt := range []struct {
		text, args string
		want       string // the result, or a part of the error
	}{
		{`true`, `{}`, "true"},
		{`args.draft == true`, `{"draft":true}`, "true"},
		{`args.draft == true`, `{"draft":"true"}`, "false"},
		{`args.draft == true`, `{}`, "no such key: draft"},
		{`args.?force.orValue(false) == false`, `{}`, "true"},
		{`args.?force.orValue(false) == true`, `{"force":true}`, "true"},
		{`has(args.to) && args.to.endsWith("example.com")`, `{"to":"a@example.com"}`, "true"},
		{`args.to.all(x, x.endsWith("example.com"))`, `{"to":["a@example.com","b@example.org"]}`, "false"},
		{`args["dev/x"].a[1] == null`, `{"dev/x":{"a":[0,null]}}`, "true"},
		{`args.path.matches("^/tmp/[a-z]+$")`, `{"path":"/tmp/x/../etc"}`, "false"},
		{`args.path.matches("^/tmp/[a-z]+$")`, `{"path":7}`, "no such overload"},
		{`args.body.matches("^[a-z ]*$")`, `{"body":"` + strings.Repeat("a quiet text ", 600) + `"}`, "true"},
		{`args.body.matches("^[a-z ]*$")`, `{"body":"` + strings.Repeat("a quiet text ", 700) + `"}`, "the text is longer than 8192 bytes"},
		{`args.all(k, k in ["to", "cc"])`, `{"to":"a","bcc":"b"}`, "false"},
		{`args.a.all(x, args.b.exists(y, x == y))`, `{"a":[1,2],"b":[2,1.0]}`, "true"},
		{`size(args.to) <= 2 && args.to.size() == 2`, `{"to":["a","b"]}`, "true"},
		{`args.b ? args.n == 1 : args.n == 2`, `{"b":false,"n":2}`, "true"},
		{`args.n == -5 && !(args.n > 0)`, `{"n":-5}`, "true"},

		// Values are not converted to another type before they are compared.
		{`args.n < 100`, `{"n":"99"}`, "no such overload"},
		{`args.n == 99`, `{"n":"99"}`, "false"},

		// A whole number has the same value in every notation.
		{`args.n == 1`, `{"n":1.0}`, "true"},
		{`args.n in [9007199254740993]`, `{"n":9.007199254740993e15}`, "true"},
		{`args.n != 9007199254740993`, `{"n":9007199254740993.0}`, "false"},
		{`args.n == 9007199254740993`, `{"n":9007199254740992}`, "false"},
		{`args.n == 18446744073709551615u`, `{"n":18446744073709551615}`, "true"},
		{`args.n < 100`, `{"n":9223372036854775808}`, "false"},
		{`args.n < 100`, `{"n":-9223372036854775808}`, "true"},
		{`args.n < 100`, `{"n":18446744073709551616}`, "false"}, // a decimal
		{`args.n == args.m`, `{"n":1` + strings.Repeat("0", 40) + `,"m":1e40}`, "true"},

		// A number that is not whole is a decimal.
		{`args.n <= 100`, `{"n":99.5}`, "true"},
		{`args.n <= 100`, `{"n":100.00000000000000000001}`, "false"},
		{`args.n <= 0`, `{"n":1e-400}`, "false"},
		{`100 >= args.n`, `{"n":99.5}`, "no such overload"},
		{`decimal(args.n) <= 100`, `{"n":100.00}`, "true"},
		{`decimal(args.n) > decimal("100")`, `{"n":100.00000000000000000001}`, "true"},
		{`decimal(args.n) >= decimal("100")`, `{"n":1e2}`, "true"},
		{`decimal(args.n) == decimal("0.1")`, `{"n":0.1}`, "true"},
		{`decimal(args.n) in [decimal("0.1"), decimal("0.2")]`, `{"n":2e-1}`, "true"},
		{`decimal(args.n) != decimal("0.1")`, `{"n":0.1000000000000000055511151231257827}`, "true"},
		{`decimal(args.n) == decimal(18446744073709551615u)`, `{"n":18446744073709551615}`, "true"},
		{`decimal(args.n) <= decimal("1e100000")`, `{"n":1}`, "true"},
		{`decimal(args.n) < decimal(1)`, `{"n":-1e-300}`, "true"},
		{`decimal(args.n) < decimal(1)`, `{"n":"12,50"}`, "is not a number"},
		{`decimal(args.n) < decimal(100)`, `{"n":"NaN"}`, "is not a number"},
		{`decimal(args.n) < decimal(100)`, `{"n":"12.50"}`, "true"},
		{`decimal(args.n) < decimal(100)`, `{"n":null}`, "no such overload"},

		// A number that can't be parsed is not equal to anything.
		{`args == {"n": 10}`, `{"n":1000000.` + long + `}`, "read the params: "},
		{`args.l == ["a"]`, `{"l":[1e9999999999]}`, "read the params: "},
		{`args.l == ["a"]`, `{"l":[1e-200000]}`, "read the params: "},
		{`args.l in [["a"]]`, `{"l":[` + strings.Repeat("1", 257) + `]}`, "read the params: "},
	} {
		c := compile(t, tt.text)
		args, err := condition.ParseArguments(`{"name":"t","arguments":` + tt.args + `}`)
		got := fmt.Sprint(err)
		if err == nil {
			held, err := holds(c, args)
			if got = fmt.Sprint(held); err != nil {
				got = err.Error()
			}
			if held && err != nil {
				t.Errorf("%s for %.80s is true, and the error is %v", tt.text, tt.args, err)
			}
		}
		if !strings.Contains(got, tt.want) || len(got) > 400 {
			t.Errorf("%s for %.80s: %s; want %s", tt.text, tt.args, got, tt.want)
		}
	}
}

func TestCompile_FailsForInvalidConditions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		" \n":                                          "is empty",
		strings.Repeat("!", 2049):                      "is longer than 2048 bytes",
		strings.Repeat("(", 1000):                      "recursion",
		"args.x = 1":                                   "character 8: Syntax error: token recognition error at: '= '; write == to compare",
		"args.x == 1 and args.y == 2":                  "write &&",
		"args.x == 1 or args.y == 2":                   "write ||",
		"true &&\n arg.x == 1":                         "line 2, character 2: undeclared reference to 'arg'; arguments are in args, for example args.amount",
		`request.time > now`:                           "undeclared reference",
		`args.x`:                                       "is not known to be true or false; compare it",
		`size(args)`:                                   "is not known to be true or false",
		`args.x + 1 == 2`:                              "character 8: undeclared reference to '_+_'; conditions compare and don't calculate",
		`args.x / args.y > 2`:                          "conditions compare and don't calculate",
		`args.to.map(x, x) == ["a"]`:                   "undeclared reference",
		`double(args.x) > 1`:                           "undeclared reference",
		`int(args.x) > 1`:                              "undeclared reference",
		`args.x <= 0.3`:                                `character 11: numbers with a point or an exponent are rounded; write decimal("0.3"), and decimal(…) on the other side too`,
		`args.x == 1e16`:                               `write decimal("10000000000000000")`,
		`args.x != decimal("100")`:                     "compares a decimal with something else, to which no decimal is equal; make both sides decimals",
		`args.x in [decimal("100")]`:                   "compares a decimal with something else",
		`[decimal("1")] == args.x`:                     "compares a decimal with something else",
		`decimal(args.x) == 100`:                       "make both sides decimals, for example decimal(100)",
		`100 >= decimal(args.x)`:                       "make both sides decimals, for example decimal(100)",
		`decimal(true) == decimal(1)`:                  "found no matching overload for 'decimal'",
		`decimal("1,000") >= decimal(args.x)`:          `"1,000" is not a number`,
		`args.x.matches("(")`:                          `character 16: the pattern "(": error parsing regexp`,
		`args.x.matches("(a?){1000}b")`:                "is too large",
		`args.x.matches(args.p)`:                       "the pattern is not a constant; write the pattern out",
		`!(args.amount in [decimal("5"), "all"])`:      "can be a decimal or a value of another type; make all of them decimals",
		`!(decimal(args.a) in {decimal("100"): true})`: "a decimal can't be a key",
		`{"a": decimal(args.a), "to": args.to} != {"a": 5, "to": "x"}`:  "can be a decimal",
		`args.?zz.orValue(decimal("0")) != args.c`:                      "can be a decimal",
		`(args.f ? decimal(args.a) : args.b) != args.c`:                 "can be a decimal",
		`args.?a.optMap(v, decimal(v)).orValue(args.zz) != args.c`:      "",
		`optional.ofNonZeroValue(args.x).hasValue()`:                    "conditions do not have ",
		`args.l.all(i, [?args.?k] == [])`:                               "has an optional element",
		`{?"a": args.?k} == {}`:                                         "has an optional entry",
		`args.l[?0].orValue(0) == 1`:                                    "conditions do not have _[?_]",
		"args.a.matches(\"(" + strings.Repeat("a", 1900) + "){1000}\")": "is too large",
		`google.protobuf.Value{} == args.x`:                             "",
		`args.x == timestamp("2030-01-01")`:                             `"2030-01-01" is not a time; write timestamp("2030-01-31T00:00:00Z")`,
		`args.all(a, args.all(b, args.all(c, a == b && b == c)))`:       "may take too long",
	} {
		if _, err := condition.Compile(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: %v; want %q", text, err, want)
		}
	}
}

// TestEvaluate_IteratesMapsInOrder checks that equal arguments give equal results, although Go iterates over maps in
// random order.
func TestEvaluate_IteratesMapsInOrder(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for n := range 8000 {
		fmt.Fprintf(&many, `"k%d":1,`, n)
	}
	args := arguments(t, "{"+many.String()+`"confirm":1}`)
	c := compile(t, `args.exists(k, k == "confirm")`)
	held, err := holds(c, args)
	for range 20 {
		if second, _ := holds(c, args); second != held {
			t.Fatalf("%v, %v, and then %v", held, err, second)
		}
	}
	if !held || err != nil {
		t.Errorf("%v, %v", held, err)
	}
}

// TestEvaluate_ComparesNumbersExactly checks that conditions compare numbers exactly, whatever their spelling.
// Comparing a whole number with a decimal on its right is an error.
func TestEvaluate_ComparesNumbersExactly(t *testing.T) {
	t.Parallel()
	less, same := compile(t, `decimal(args.a) < decimal(args.b)`), compile(t, `decimal(args.a) == decimal(args.b)`)
	plainLess, plainSame := compile(t, `args.a < args.b`), compile(t, `args.a == args.b`)
	unlike, within := compile(t, `args.a != args.b`), compile(t, `args.a in [args.b]`)
	number := rapid.OneOf(
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})([.][0-9]{1,3})?([eE][+-]?[0-9])?`),
		rapid.StringMatching(`-?(900719925474099[0-9]|1844674407370955161[0-9]|922337203685477580[0-9])([.]0|e0)?`),
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
			{"!=", unlike, x.Cmp(y) != 0, false},
			{"in", within, x.Cmp(y) == 0, false},
		} {
			held, err := holds(c.condition, args)
			if err != nil && !c.may || err == nil && held != c.want {
				t.Fatalf("%s %s %s: %v, %v", a, c.name, b, held, err)
			}
		}
	})
}

// FuzzEvaluate checks that no expression and no arguments cause a panic, and that a condition that can't be evaluated is
// false.
func FuzzEvaluate(f *testing.F) {
	f.Add(`decimal(args.a) < decimal("1.5")`, `{"arguments":{"a":1e-7}}`)
	f.Add(`args.a.matches("a{3}") || args.a.size() in [1]`, `{"arguments":{"a":"aaa"}}`)
	f.Add(`args.?a.orValue([]).exists(x, x == "y")`, `{"arguments":{"a":["x",{"y":null}]}}`)
	f.Add(`args == {"a": 1}`, `{"arguments":{"a":100000000000000000001}}`)
	f.Fuzz(func(t *testing.T, text, params string) {
		c, err := condition.Compile(text)
		if err != nil {
			return
		}
		args, err := condition.ParseArguments(params)
		held, evalErr := holds(c, args)
		if second, _ := holds(c, args); second != held {
			t.Errorf("%q for %q: %v, and then %v", text, params, held, second)
		}
		if explained := c.Explain(&condition.Input{Args: args}); (explained.Result == condition.True) != held {
			t.Errorf("%q for %q: %v, and the explanation is %v", text, params, held, explained)
		}
		if held && (err != nil || evalErr != nil) {
			t.Errorf("%q for %q: %v, %v, %v", text, params, held, err, evalErr)
		}
	})
}

// TestEvaluate_FailsWhenTheCostIsTooHigh checks that the evaluation of a condition is stopped if the arguments make it
// slow. BenchmarkWorst measures the time.
func TestEvaluate_FailsWhenTheCostIsTooHigh(t *testing.T) {
	t.Parallel()
	for _, tt := range slowConditions() {
		if held, err := holds(compile(t, tt.text), arguments(t, tt.args)); held || err == nil || !strings.Contains(err.Error(), "would take too long") {
			t.Errorf("%s: %v, %v", tt.text, held, err)
		}
	}
}

// Policies limit the length of texts in arguments. A condition that checks the size of a string can be evaluated for
// every string that fits in the params.
func TestEvaluate_ReadsTheSizeOfLongStrings(t *testing.T) {
	t.Parallel()
	c := compile(t, `size(args.message) <= 2000 || size(args.title) <= 20`)
	for _, tt := range []struct {
		message string
		want    bool
	}{{strings.Repeat("会議", 10_000), false}, {strings.Repeat("a", 200<<10), false}, {"会議", true}} {
		args := arguments(t, `{"message":"`+tt.message+`","title":"`+strings.Repeat("é", 10_000)+`"}`)
		if held, err := holds(c, args); held != tt.want || err != nil {
			t.Errorf("a string of %d bytes: %v, %v", len(tt.message), held, err)
		}
	}
}

// If a long string in an explanation is shortened, it is never cut within a character.
func TestExplain_CutsStringsBetweenCharacters(t *testing.T) {
	t.Parallel()
	c := compile(t, `args.a == "x"`)
	for before := range 4 {
		args := arguments(t, `{"a":"`+strings.Repeat("a", before)+strings.Repeat("会", 100)+`"}`)
		if got := fmt.Sprint(c.Explain(&condition.Input{Args: args})); strings.Contains(got, "\uFFFD") || !strings.Contains(got, `会…"`) {
			t.Errorf("the explanation is %s", got)
		}
	}
}

// slowConditions returns conditions, each with arguments that make its evaluation slow.
func slowConditions() []struct{ text, args string } {
	numbers := "[" + strings.Repeat("1,", 60_000) + "1]"
	texts := "[" + strings.Repeat(`"a",`, 50_000) + `"a"]`
	return []struct{ text, args string }{
		{`args.list.all(x, x == true)`, `{"list":[` + strings.Repeat("true,", 40_000) + `true]}`},
		{`args.list.all(x, x.contains("a"))`, `{"list":` + texts + `}`},
		{`args.cc.all(x, !(x in args.to))`, `{"cc":[` + strings.Repeat("2,", 30_000) + `2],"to":[` + strings.Repeat("1,", 30_000) + `1]}`},
		{`args.l.all(i, i.qty <= i.max)`, `{"l":[` + strings.Repeat("1,", 8000) + `1]}`}, // each step fails
		{`args.l.all(i, i.id in args.ids)`, `{"l":[` + strings.Repeat("1,", 8000) + `1],"ids":[1]}`},
		{`args.l.all(i, i.a == 1 == true == true == true)`, `{"l":[` + strings.Repeat("1,", 8000) + `1]}`},
		{`args.to.all(x, args.cc.all(y, !(x in ["b"])))`, `{"to":["` + strings.Repeat("a", 200_000) + `"],"cc":[` + strings.Repeat("1,", 7500) + `1]}`},
		{`args.l.all(x, args.a == args.b)`, `{"l":[1,2,3],"a":[` + numbers + `],"b":[` + numbers + `]}`},
		{`args.cc.all(x, x != args.to)`, `{"cc":[` + strings.Repeat(`"éé",`, 500) + `"é"],"to":"` + strings.Repeat("é", 60_000) + `"}`},
		{`args.l.all(x, args.s.size() > 5)`, `{"l":[` + strings.Repeat("1,", 500) + `1],"s":"` + strings.Repeat("é", 60_000) + `"}`},
		{`args.l.all(x, args.s.matches("^(a?){30}b$") == false)`, `{"l":[1,2,3,4],"s":"` + strings.Repeat("a", 8_000) + `"}`},
		{strings.TrimSuffix(strings.Repeat(`args.s.matches("^(a?){30}b$") || `, 60), " || "), `{"s":"` + strings.Repeat("a", 3_900) + `"}`}, // no loops
		{`args.l.all(x, args.?a == args.?a)`, `{"l":[1,2,3,4],"a":` + numbers + `}`},
		{`args.exists(x, args.exists(y, y == "none"))`, `{` + keys(5000) + `}`},
	}
}

// BenchmarkWorstWithoutLoops measures the slowest conditions without loops, for params of at most 4 KiB.
func BenchmarkWorstWithoutLoops(b *testing.B) {
	numbers := "[" + strings.Repeat("1,", 1900) + "2]"
	for name, tt := range map[string]struct{ term, args string }{
		"lists":    {`args.a == args.b || `, `{"a":` + numbers[:1901] + `1],"b":` + numbers[:1901] + `2]}`},
		"in":       {`args.a in args.l || `, `{"a":3,"l":` + numbers + `}`},
		"contains": {`args.s.contains(args.t) || `, `{"s":"` + strings.Repeat("a", 3500) + `","t":"` + strings.Repeat("a", 200) + `b"}`},
		"decimals": {`decimal(args.a) < decimal(args.b) || `, `{"a":"1e100000","b":"1.` + strings.Repeat("3", 200) + `"}`},
		"paths":    {`path.within(args.p, "/a") || `, `{"p":"/` + strings.Repeat("b/", 1900) + `"}`},
	} {
		b.Run(name, func(b *testing.B) {
			text := strings.TrimSuffix(strings.Repeat(tt.term, condition.MaxBytes/len(tt.term)), " || ")
			c, err := condition.Compile(text)
			if err != nil {
				b.Skip(err)
			}
			args := arguments(b, tt.args)
			for b.Loop() {
				_, _ = c.Evaluate(&condition.Input{Args: args})
			}
		})
	}
}

// keys returns the text of n JSON object members.
func keys(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`"k%d":1`, i))
	}
	return strings.Join(out, ",")
}

func TestParseArguments_FailsForInvalidParams(t *testing.T) {
	t.Parallel()
	for _, params := range []string{`[]`, `1`, `{`, `{} {}`, `{"arguments":1}`, `{"arguments":[]}`, `{"arguments":{"a":1,"\u0061":2}}`, `{"arguments":{},"arguments":{}}`, "{\"arguments\":{\"a\":\"\xff\"}}"} {
		if _, err := condition.ParseArguments(params); err == nil {
			t.Errorf("%s is read", params)
		}
	}
	if _, err := condition.ParseArguments(`{"arguments":{"a":"` + strings.Repeat("x", condition.MaxParamsBytes) + `"}}`); err == nil {
		t.Error("arguments of any length are read")
	}
	_, err := condition.ParseArguments("{\"arguments\":{\"" + strings.Repeat("k\\n", 9000) + "\":1,\"" + strings.Repeat("k\\n", 9000) + "\":2}}")
	if err == nil || len(err.Error()) > 300 || strings.Contains(err.Error(), "\n") {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
	for _, params := range []string{``, `{}`, `{"name":"t"}`, `{"name":"t","arguments":{}}`, `{"arguments":null}`} {
		args, err := condition.ParseArguments(params)
		if err != nil {
			t.Errorf("%s: %v", params, err)
		}
		if held, err := holds(compile(t, `size(args) == 0`), args); !held || err != nil {
			t.Errorf("%s: %v, %v", params, held, err)
		}
	}
	if held, err := holds(compile(t, `size(args) >= 0`), condition.Arguments{}); held || err == nil {
		t.Errorf("no arguments: %v, %v", held, err)
	}
	if held, err := holds(new(condition.Condition), arguments(t, `{}`)); held || err == nil {
		t.Errorf("no condition: %v, %v", held, err)
	}
}

func BenchmarkEvaluate(b *testing.B) {
	c := compile(b, `decimal(args.amount) <= 100 && args.to.endsWith("@example.com")`)
	const params = `{"name":"t","arguments":{"amount":99.95,"to":"ana@example.com","items":[{"id":1,"text":"a"},{"id":2,"text":"b"}]}}`
	b.ReportAllocs()
	for b.Loop() {
		args, err := condition.ParseArguments(params)
		if held, _ := holds(c, args); !held || err != nil {
			b.Fatal(held, err)
		}
	}
}

// BenchmarkWorst measures the evaluation of the slow conditions.
func BenchmarkWorst(b *testing.B) {
	for _, tt := range slowConditions() {
		b.Run(tt.text, func(b *testing.B) {
			c, args := compile(b, tt.text), arguments(b, tt.args)
			b.ReportAllocs()
			for b.Loop() {
				if held, err := holds(c, args); held || err == nil {
					b.Fatal(held, err)
				}
			}
		})
	}
}
