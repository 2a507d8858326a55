package canonicaljson_test

import (
	"encoding/json"
	"maps"
	"math/big"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
)

func TestObject(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":[0,-0,0.00,0e5,-0.0e-3]}`:                    `{"a":[0e0,0e0,0e0,0e0,0e0]}`,
		`{"a":[100,1.50,-0.0010,12E+3]}`:                   `{"a":[1e2,15e-1,-1e-3,12e3]}`,
		`{"a":1e99999999999999999999}`:                     `{"a":1e99999999999999999999}`,
		`{"b":1,"\u0061":true,"é":null,"z":false}`:         `{"a":true,"b":1e0,"z":false,"é":null}`,
		`{"a":"\u0000\u001f\u007f\u2028\"\\\b\f\n\r\t\/"}`: "{\"a\":\"\\u0000\\u001f\u007f\u2028\\\"\\\\\\b\\f\\n\\r\\t/\"}",
		`{"\uffff":1,"\ud83d\ude00":2}`:                    "{\"\uffff\":1e0,\"\U0001f600\":2e0}", // the order of UTF-8, which differs from the order of UTF-16
	} {
		if got, err := canonicaljson.Object(text); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{`[]`, `1`, `{`, `{}x`, `{} {}`, `{"a":1,"\u0061":2}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `{"a":01}`, `{"a":1,}`} {
		if got, err := canonicaljson.Object(text); err == nil {
			t.Errorf("%s is %s", text, got)
		}
	}
}

// Two numbers have the same form if and only if their exact values are equal.
func TestObject_ComparesNumbersExactly(t *testing.T) {
	t.Parallel()
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		x, ok1 := new(big.Rat).SetString(a)
		y, ok2 := new(big.Rat).SetString(b)
		one, err1 := canonicaljson.Object(`{"n":` + a + `}`)
		two, err2 := canonicaljson.Object(`{"n":` + b + `}`)
		if !ok1 || !ok2 || err1 != nil || err2 != nil || (x.Cmp(y) == 0) != (one == two) {
			t.Fatalf("%s is %s, %s is %s: %v, %v", a, one, b, two, err1, err2)
		}
		back, ok := new(big.Rat).SetString(strings.TrimSuffix(strings.TrimPrefix(one, `{"n":`), "}"))
		if !ok || back.Cmp(x) != 0 {
			t.Fatalf("%s became %s", a, one)
		}
	})
}

// Case X1. The cost of exact arithmetic grows with the square of a number's length, so the length is limited.
func TestObject_RefusesLongNumbers(t *testing.T) {
	t.Parallel()
	for name, number := range map[string]string{
		"an integer": strings.Repeat("9", 64), "a fraction": "-0." + strings.Repeat("9", 61), "zeros": "0." + strings.Repeat("0", 62),
		"an exponent": "1e-" + strings.Repeat("9", 61), "both": "1." + strings.Repeat("9", 29) + "E+" + strings.Repeat("9", 31),
	} {
		if got, err := canonicaljson.Object(`{"a":[` + number + `]}`); err != nil || len(number) != canonicaljson.MaxNumber {
			t.Errorf("%s of %d bytes is %s, %v", name, len(number), got, err)
		}
		longer := strings.Replace(number, "9", "99", 1)
		longer = strings.Replace(longer, "0.00", "0.000", 1)
		if got, err := canonicaljson.Object(`{"a":[` + longer + `]}`); err == nil {
			t.Errorf("%s of %d bytes is %s", name, len(longer), got)
		}
	}
	for _, endless := range []string{"1e-", "1e", "1E+", "0.", "1", "-1"} {
		if _, err := canonicaljson.Object(`{"a":` + endless + strings.Repeat("9", 4<<20) + `}`); err == nil {
			t.Errorf("%s and 4 MiB of digits is a number", endless)
		}
	}
}

// Case X1. The test is not parallel because it counts the allocations of all goroutines.
func TestObject_AllocationsDoNotGrowWithDepth(t *testing.T) {
	const depth, size = 500, 4 << 20
	for name, text := range map[string]string{
		"a text at each level": strings.Repeat(`{"b":"`+strings.Repeat("x", size/depth)+`","a":`, depth) + `{}` + strings.Repeat("}", depth),
		"a text at the bottom": strings.Repeat(`{"b":0,"a":`, depth) + `"` + strings.Repeat("x", size) + `"` + strings.Repeat("}", depth),
		"out of order below":   strings.Repeat(`{"b":`, depth) + `"` + strings.Repeat("x", size) + `"` + strings.Repeat(`,"a":0}`, depth),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := canonicaljson.Object(text)
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) >> 20; err != nil || got > 8*size>>20 {
			t.Errorf("%s: %d MiB of text allocated %d MiB, %v", name, len(text)>>20, got, err)
		}
	}
}

func TestObject_OrdersMembersAtEveryLevel(t *testing.T) {
	t.Parallel()
	var value func(*rapid.T, int) string
	value = func(t *rapid.T, depth int) string {
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		switch {
		case depth == 0 || kind < 2:
			return strconv.Quote(rapid.StringMatching(`[a-z]{0,2}`).Draw(t, "text"))
		case kind == 2:
			parts := make([]string, rapid.IntRange(0, 3).Draw(t, "elements"))
			for i := range parts {
				parts[i] = value(t, depth-1)
			}
			return "[" + strings.Join(parts, ",") + "]"
		}
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c"é]{0,2}`), 0, 4, rapid.ID).Draw(t, "keys")
		parts := make([]string, len(keys))
		for i, key := range keys {
			parts[i] = strconv.Quote(key) + ":" + value(t, depth-1)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	rapid.Check(t, func(t *rapid.T) {
		text := `{"b":` + value(t, 5) + `,"a":` + value(t, 5) + `}`
		var tree any
		if err := json.Unmarshal([]byte(text), &tree); err != nil {
			t.Fatal(err)
		}
		if got, err := canonicaljson.Object(text); err != nil || got != inOrder(tree) {
			t.Fatalf("%s is %s, %v; want %s", text, got, err, inOrder(tree))
		}
	})
}

// inOrder returns the canonical form of a value that was parsed by encoding/json. The value must not contain numbers.
func inOrder(value any) string {
	var parts []string
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			parts = append(parts, inOrder(element))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, strconv.Quote(key)+":"+inOrder(v[key]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	default:
		return strconv.Quote(v.(string))
	}
}

// BenchmarkObject measures the inputs that take the most time for their length.
func BenchmarkObject(b *testing.B) {
	const size = 1 << 20
	for name, text := range map[string]string{
		"text":          `{"a":"` + strings.Repeat("x", size) + `"}`,
		"escapes":       `{"a":"` + strings.Repeat(`\"`, size/2) + `"}`,
		"numbers":       `{"a":[` + strings.Repeat("1,", size/2) + `1]}`,
		"exponents":     `{"a":[` + strings.Repeat("1e"+strings.Repeat("9", 60)+",", size/63) + `1]}`,
		"objects":       `{"a":[` + strings.Repeat(`{"b":1,"a":1},`, size/14) + `1]}`,
		"500 deep":      strings.Repeat(`{"b":"`+strings.Repeat("x", size/500)+`","a":`, 500) + `{}` + strings.Repeat("}", 500),
		"500 deep, all": `{"a":[` + strings.Repeat(strings.Repeat("[", 490)+strings.Repeat("]", 490)+",", size/981) + `1]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := canonicaljson.Object(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// longNumber matches numbers in results of Object that exceed MaxNumber.
var longNumber = regexp.MustCompile(`[-0-9e]{65}`)

// FuzzObject checks that Object returns its own results unchanged. Numbers that have become too long are an exception.
func FuzzObject(f *testing.F) {
	for _, text := range []string{"", "{}", `{"a":[1.50,"\u00e9",{"b":null}]}`, `{"a":1e-400}`, `{"b":{"b":[{"d":1,"c":{}}],"a":2},"a":[]}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once, err := canonicaljson.Object(text)
		if err != nil {
			return
		}
		if twice, err := canonicaljson.Object(once); (err != nil || twice != once) && !longNumber.MatchString(once) {
			t.Errorf("%q, then %q, %v", once, twice, err)
		}
	})
}
