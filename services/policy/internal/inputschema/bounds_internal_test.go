package inputschema

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A worstCase consists of a schema and arguments that make a check do as much work as possible.
type worstCase struct {
	name, schema, arguments string
	// tooMuch is true if the check is expected to stop because it reaches its bounds.
	tooMuch bool
}

// chain returns a schema with n definitions. Each of them applies the next definition twice, so that the last one is
// applied 2^n times.
func chain(n int, keyword, last string) string {
	var defs []string
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d":{%q:[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, keyword, i+1, i+1))
	}
	return fmt.Sprintf(`{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{%s,"d%d":%s}}`, strings.Join(defs, ","), n, last)
}

func worstCases() []worstCase {
	text := func(n int) string { return `{"a":"` + strings.Repeat("a", n) + `"}` }
	array := func(item string, n int) string { return `{"a":[` + strings.Repeat(item+",", n-1) + item + `]}` }
	property := func(s string) string { return `{"type":"object","properties":{"a":` + s + `}}` }
	distinct := make([]string, 90_000)
	for i := range distinct {
		distinct[i] = fmt.Sprintf("%d.5", i)
	}
	members := make([]string, 49_000)
	for i := range members {
		members[i] = fmt.Sprintf(`"a%d":%d`, i, i)
	}
	object := "{" + strings.Join(members, ",") + "}"
	large := 4<<20 - 100
	return []worstCase{
		{"anyOf", chain(60, "anyOf", `{"type":"string"}`), `{"a":1}`, true},
		{"oneOf", chain(60, "oneOf", `{"type":"integer"}`), `{"a":1}`, true},
		{"allOf", chain(60, "allOf", `{"type":"integer"}`), `{"a":1}`, true},
		{"not", chain(60, "anyOf", `{"not":{}}`), `{"a":1}`, true},
		{"recursion", `{"type":"object","anyOf":[{"properties":{"a":{"$ref":"#"}},"allOf":[{"required":["b"]}]},{"properties":{"a":{"$ref":"#"}},"allOf":[{"required":["c"]}]}]}`,
			strings.Repeat(`{"a":`, 60) + "{}" + strings.Repeat("}", 60), true},
		{"string", property(`{"type":"string","minLength":1}`), text(large), false},
		{"small pattern", property(`{"type":"string","pattern":"^[a-z]+$"}`), text(large), false},
		{"backtracked pattern", property(`{"type":"string","pattern":"(a|aa|aaa)*b"}`), text(1_500_000), false},
		{"pattern of 256", property(`{"type":"string","pattern":"(.*.*.*.*.*.*.*.*){25}b"}`), text(1 << 17), true},
		{"large pattern", property(`{"type":"string","pattern":"([ab]?){400}b$"}`), text(10_000), false},
		{"large pattern, too long", property(`{"type":"string","pattern":"([ab]?){400}b$"}`), text(large), true},
		{"enum", property(`{"enum":["` + strings.Repeat("b", 100_000) + `"]}`), text(large), false},
		{"array of objects", property(`{"type":"array","items":{"type":"object","properties":{"b":{"type":"integer","minimum":0}},"required":["b"],"additionalProperties":false}}`), array(`{"b":1}`, 33_000), false},
		{"array with many keywords", property(`{"type":"array","items":{"anyOf":[{"type":"string"},{"type":"null"},{"type":"number","multipleOf":0.7,"minimum":3}]}}`), array("1.4e300", 90_000), true},
		{"unique items", property(`{"type":"array","uniqueItems":true}`), `{"a":[` + strings.Join(distinct, ",") + `]}`, false},
		{"exponents", property(`{"type":"array","items":{"multipleOf":7e-300}}`), array("7.7777777777777777777e300", 90_000), true},
		{"many members", `{"type":"object","additionalProperties":{"type":"integer"},"propertyNames":{"pattern":"^a[0-9]+$"}}`, object, false},
		{"many patterns", `{"type":"object","patternProperties":{"1$":{},"2$":{},"3$":{},"4$":{},"5$":{},"6$":{},"7$":{},"8$":{}}}`, object, false},
		{"unevaluatedProperties", `{"type":"object","allOf":[` + strings.Repeat(`{"unevaluatedProperties":{"type":"integer"}},`, 7) + `{}]}`, object, true},
		{"unevaluatedItems", property(`{"type":"array","allOf":[{"contains":{"const":1}},{"contains":{"type":"integer"}}],"unevaluatedItems":false}`), array("1", 90_000), false},
	}
}

func (w *worstCase) compile(t testing.TB) (*Schema, string) {
	t.Helper()
	s, err := Compile(`{"name":"x","inputSchema":` + w.schema + `}`)
	if err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
	return s, `{"name":"x","arguments":` + w.arguments + `}`
}

// Case X1. The work for a check is bounded, whatever the schema and the arguments are.
func TestCheck_BoundsWork(t *testing.T) {
	t.Parallel()
	for _, w := range worstCases() {
		s, params := w.compile(t)
		err := s.Check(params)
		if errors.Is(err, errTooMuchWork) != w.tooMuch {
			t.Errorf("%s: got %v, want the error of too much work: %t", w.name, err, w.tooMuch)
		}
	}
}

func TestCheck_SchemaThatRefersToItselfWithoutEndIsUnusable(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{`{"type":"object","$ref":"#"}`, `{"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"allOf":[{"$ref":"#"}]}}}`} {
		w := worstCase{name: schema, schema: schema, arguments: "{}"}
		s, params := w.compile(t)
		if err := s.Check(params); err == nil || !strings.Contains(err.Error(), "it refers to itself without end") {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

func BenchmarkCheck_Worst(b *testing.B) {
	for _, w := range worstCases() {
		b.Run(strings.ReplaceAll(w.name, " ", "-"), func(b *testing.B) {
			s, params := w.compile(b)
			b.ReportAllocs()
			for b.Loop() {
				_ = s.Check(params)
			}
		})
	}
}

// worstSchemas returns schemas that take a long time to compile.
func worstSchemas() map[string]string {
	many := func(n int, part string) string {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf(`"a%d":`, i)+strings.ReplaceAll(part, "#N", fmt.Sprint(i)))
		}
		return strings.Join(members, ",")
	}
	nested := "{}"
	for range 40 {
		nested = `{"x":` + nested + `,"properties":{` + many(40, `{"enum":[1,2]}`) + `}}`
	}
	refs, path := "", ""
	for i := range 40 {
		path += "/x"
		refs += fmt.Sprintf(`"r%d":{"$ref":"#/y%s"},`, i, path)
	}
	return map[string]string{
		"many properties": `{"type":"object","properties":{` + many(3_900, `{"type":"string"}`) + `}}`,
		"many patterns":   `{"type":"object","properties":{` + many(800, `{"pattern":"^[a-z]{20}#N$"}`) + `}}`,
		"large patterns":  `{"type":"object","patternProperties":{"[\\pL]{900}":{},"[^\\pL]{900}":{},"(x{90}){10}":{},"(y{90}){10}":{}}}`,
		"nested refs":     `{"type":"object","properties":{` + refs + `"z":{}},"y":` + nested + `}`,
		"large enum":      `{"type":"object","properties":{"a":{"enum":[` + strings.TrimSuffix(strings.Repeat("1.0,", 1)+numbers(19_000), ",") + `]}}}`,
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i+7)
	}
	return b.String()
}

func BenchmarkCompile_Worst(b *testing.B) {
	for name, schema := range worstSchemas() {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			b.ReportAllocs()
			began := time.Now()
			_, err := Compile(`{"name":"x","inputSchema":` + schema + `}`)
			b.Logf("%s: %v, %v", name, time.Since(began), err)
			for b.Loop() {
				_, _ = Compile(`{"name":"x","inputSchema":` + schema + `}`)
			}
		})
	}
}
