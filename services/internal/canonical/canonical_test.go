package canonical_test

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/canonical"
)

func TestObject(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":[0,-0,0.00,0e5,-0.0e-3]}`:                    `{"a":[0e0,0e0,0e0,0e0,0e0]}`,
		`{"a":[100,1.50,-0.0010,12E+3]}`:                   `{"a":[1e2,15e-1,-1e-3,12e3]}`,
		`{"a":1e99999999999999999999}`:                     `{"a":1e99999999999999999999}`,
		`{"b":1,"\u0061":true,"é":null,"z":false}`:         `{"a":true,"b":1e0,"z":false,"é":null}`,
		`{"a":"\u0000\u001f\u007f\u2028\"\\\b\f\n\r\t\/"}`: "{\"a\":\"\\u0000\\u001f\u007f\u2028\\\"\\\\\\b\\f\\n\\r\\t/\"}",
		`{"\uffff":1,"\ud83d\ude00":2}`:                    "{\"\uffff\":1e0,\"\U0001f600\":2e0}", // UTF-8 order, not UTF-16's
	} {
		if got, err := canonical.Object(text); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{`[]`, `1`, `{`, `{}x`, `{} {}`, `{"a":1,"\u0061":2}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `{"a":01}`, `{"a":1,}`} {
		if got, err := canonical.Object(text); err == nil {
			t.Errorf("%s is %s", text, got)
		}
	}
}

// Numbers are equal where their exact values are.
func TestNumbersAreComparedExactly(t *testing.T) {
	t.Parallel()
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		x, ok1 := new(big.Rat).SetString(a)
		y, ok2 := new(big.Rat).SetString(b)
		one, err1 := canonical.Object(`{"n":` + a + `}`)
		two, err2 := canonical.Object(`{"n":` + b + `}`)
		if !ok1 || !ok2 || err1 != nil || err2 != nil || (x.Cmp(y) == 0) != (one == two) {
			t.Fatalf("%s is %s, %s is %s: %v, %v", a, one, b, two, err1, err2)
		}
		back, ok := new(big.Rat).SetString(strings.TrimSuffix(strings.TrimPrefix(one, `{"n":`), "}"))
		if !ok || back.Cmp(x) != 0 {
			t.Fatalf("%s became %s", a, one)
		}
	})
}

// What Object has written it writes again, and never fails on.
func FuzzObject(f *testing.F) {
	for _, text := range []string{"", "{}", `{"a":[1.50,"\u00e9",{"b":null}]}`, `{"a":1e-400}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once, err := canonical.Object(text)
		if err != nil {
			return
		}
		if twice, err := canonical.Object(once); err != nil || twice != once {
			t.Errorf("%q, then %q, %v", once, twice, err)
		}
	})
}
