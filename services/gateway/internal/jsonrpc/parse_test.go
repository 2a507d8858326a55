package jsonrpc_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

const (
	dup       = commonv1.Code_CODE_JSON_DUPLICATE_KEY
	trailing  = commonv1.Code_CODE_JSON_TRAILING
	batch     = commonv1.Code_CODE_BATCH
	encoding  = commonv1.Code_CODE_JSON_ENCODING
	invalid   = commonv1.Code_CODE_JSON_INVALID
	rpc       = commonv1.Code_CODE_JSONRPC_INVALID
	badParams = commonv1.Code_CODE_PARAMS_INVALID
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// A refusal describes a message that the parser must refuse, and the expected code.
type refusal struct {
	name string
	raw  string
	code commonv1.Code
}

func refused(t *testing.T, cases []refusal) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, raw := range []string{tt.raw, " \t\r\n" + tt.raw + "\n "} {
				if strings.HasPrefix(tt.raw, "\ufeff") && raw != tt.raw {
					continue
				}
				if got := codeOf(t, raw); got != tt.code {
					t.Errorf("Parse(%.300q)\n got %v\nwant %v", raw, got, tt.code)
				}
			}
		})
	}
}

func codeOf(t *testing.T, raw string) commonv1.Code {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(raw), jsonrpc.DefaultLimits())
	if err == nil {
		return commonv1.Code_CODE_UNSPECIFIED
	}
	return refusalCode(t, raw, m == nil, err)
}

// refusalCode checks that err is a well-formed [jsonrpc.Error], and returns the code in err.
func refusalCode(t *testing.T, raw string, empty bool, err error) commonv1.Code {
	t.Helper()
	refused, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		t.Fatalf("%.300q was refused with %T, not *gate.Error", raw, err)
	}
	if !empty {
		t.Errorf("%.300q was refused, and yet there is a message", raw)
	}
	if refused.Code < 64 || refused.Code > 79 || refused.Detail == "" || refused.Offset < 0 || refused.Offset > len(raw) {
		t.Errorf("%.300q was refused with %+v", raw, refused)
	}
	return refused.Code
}

func accepted(t *testing.T, raw string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(raw), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatalf("Parse(%.300q): %v", raw, err)
	}
	return m
}

func request(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
}

func pingWith(params string) string { return request("ping", params) }

func pingMeta(meta string) string { return pingWith(`{"_meta":` + meta + `}`) }

func result(members string) string { return `{"jsonrpc":"2.0","id":1,"result":{` + members + `}}` }

func toolCall(arguments string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":` + arguments + `}}`
}

var duplicateNames = []refusal{
	{"the tool's name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","name":"danger"}}`, dup},
	{"the tool's name, the same value", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","name":"safe"}}`, dup},
	{"the tool's name, far apart", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":{},"_meta":{},"name":"danger"}}`, dup},
	{"the tool's name, once escaped", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","n\u0061me":"danger"}}`, dup},
	{"the tool's name, twice escaped otherwise", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"\u006eame":"safe","nam\u0065":"danger"}}`, dup},
	{"the method", `{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}`, dup},
	{"the method, escaped", `{"jsonrpc":"2.0","id":1,"method":"tools/list","\u006dethod":"tools/call"}`, dup},
	{"the id", `{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, dup},
	{"the version", `{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}`, dup},
	{"params", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{},"params":{"name":"danger"}}`, dup},
	{"the result", `{"jsonrpc":"2.0","id":1,"result":{},"result":{}}`, dup},
	{"arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":{},"arguments":{"a":1}}}`, dup},
	{"arguments, once null", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","arguments":null,"arguments":{"a":1}}}`, dup},
	{"the run", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"dev.sluice/run":"a","dev.sluice\/run":"b"}}}`, dup},
	{"an unknown key of params", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":1,"x":2}}`, dup},
	{"the empty key", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"":1,"":2}}`, dup},
	{"a key outside of ASCII, once as a surrogate pair", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"😀":1,"\ud83d\ude00":2}}`, dup}}

// Case P1.
func TestParse_DuplicateKeysAreRefused(t *testing.T) {
	t.Parallel()
	refused(t, duplicateNames)
}

var duplicatesInside = []refusal{
	{"a path", toolCall(`{"path":"/ok","path":"/etc/shadow"}`), dup},
	{"a path, escaped", toolCall(`{"path":"/ok","p\u0061th":"/etc/shadow"}`), dup},
	{"in an object in a list", toolCall(`{"a":[1,{"x":1},{"x":1,"y":[],"x":2}]}`), dup},
	{"a slash, escaped", toolCall(`{"a/b":1,"a\/b":2}`), dup},
	{"around a nested object with the same key", toolCall(`{"a":{"a":{"a":1}},"b":2,"a":3}`), dup}}

// Case P2.
func TestParse_DuplicateKeysInArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	refused(t, duplicatesInside)
	// An object with a duplicate key is refused at every depth, inside objects and arrays.
	for depth := range 60 {
		inner := `{"k":1,"k":2}`
		for level := range depth {
			if level%3 == 2 {
				inner = `[` + inner + `]`
			} else {
				inner = `{"k":` + inner + `}`
			}
		}
		if got := codeOf(t, toolCall(`{"v":`+inner+`}`)); got != dup {
			t.Errorf("a duplicate %d levels down: got %v", depth, got)
		}
	}
	// Two equal keys are detected at any two positions, in objects with many keys and in objects with few keys.
	for _, width := range []int{2, 8, 15, 16, 17, 18, 31, 33, 64, 1000} {
		for _, twice := range [][2]int{{0, width - 1}, {0, 1}, {width - 2, width - 1}, {width / 2, width - 1}} {
			if twice[0] == twice[1] {
				continue
			}
			if got := codeOf(t, toolCall(wide(width, twice))); got != dup {
				t.Errorf("%d keys, those at %v the same: got %v", width, twice, got)
			}
		}
		accepted(t, toolCall(wide(width, [2]int{0, 0})))
	}
}

// wide returns an object with width keys. The keys at the two given positions are equal. Every third value is an object
// with the same keys.
func wide(width int, twice [2]int) string {
	var b strings.Builder
	for i := range width {
		name := i
		if i == twice[1] {
			name = twice[0]
		}
		value := "1"
		if i%3 == 0 {
			value = `{"key0":0,"key1":1}`
		}
		fmt.Fprintf(&b, `,"key%d":%s`, name, value)
	}
	return "{" + b.String()[1:] + "}"
}

var trailingBytes = []refusal{
	{"a second call", ping + toolCall(`{}`), trailing},
	{"a second call on a new line", ping + "\n" + toolCall(`{}`), trailing},
	{"a comma", ping + ",", trailing},
	{"a brace", ping + "}", trailing},
	{"a letter", ping + " x", trailing},
	{"a NUL", ping + "\x00", trailing},
	{"a form feed, which is no JSON whitespace", ping + "\f", trailing},
	{"a space of Unicode", ping + "\u00a0", trailing},
	{"a byte order mark", ping + "\ufeff", trailing},
	{"a comment", ping + "// x", trailing},
	{"a record separator", "\x1e" + ping, invalid},
	{"junk before", "x" + ping, invalid}}

// Case P4.
func TestParse_TrailingBytesAreRefused(t *testing.T) {
	t.Parallel()
	refused(t, trailingBytes)
	accepted(t, " \r\n\t"+ping+" \r\n\t")
}

var batches = []refusal{
	{"two calls", "[" + toolCall(`{}`) + "," + toolCall(`{}`) + "]", batch},
	{"one call", "[" + toolCall(`{}`) + "]", batch},
	{"none", "[]", batch},
	{"a batch in a batch", "[[" + toolCall(`{}`) + "]]", batch},
	{"cut off", "[", batch}}

// Case P5.
func TestParse_BatchesAreRefused(t *testing.T) {
	t.Parallel()
	refused(t, batches)
}

// Case P6. An id is refused unless it is a short string, or an integer from -9007199254740991 to 9007199254740991.
func TestParse_InvalidIDsAreRefused(t *testing.T) {
	t.Parallel()
	odd := []string{
		"1.5", "-0", "null", "{}", "[]", "true", "false", "1.0", "1e2", "1E2", "0e0", "-0.0", `{"a":1}`, "[1]",
		"9007199254740992", "-9007199254740992", "9223372036854775807", "18446744073709551616", "1e400", "0.1",
		"100000000000000000000000000", `""`, `"` + strings.Repeat("x", 129) + `"`, `"` + strings.Repeat(`\u00e9`, 65) + `"`,
	}
	for _, id := range odd {
		for _, message := range []string{
			`{"jsonrpc":"2.0","id":%s,"method":"ping"}`,
			`{"method":"tools/call","params":{"name":"safe"},"id":%s,"jsonrpc":"2.0"}`,
			`{"jsonrpc":"2.0","id":%s,"result":{}}`,
			`{"jsonrpc":"2.0","id":%s,"method":"notifications/initialized"}`,
		} {
			if got := codeOf(t, fmt.Sprintf(message, id)); got != commonv1.Code_CODE_ID_INVALID {
				t.Errorf("%s with %.40s: got %v", message, id, got)
			}
		}
	}
	for _, id := range []string{"1.5", "-0", "null", "{}", "[]", "true", "9007199254740992", `""`, `"` + strings.Repeat("x", 129) + `"`} {
		for _, message := range []string{
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":%s}}`,
		} {
			if got := codeOf(t, fmt.Sprintf(message, id)); got != commonv1.Code_CODE_ID_INVALID {
				t.Errorf("%s with %.40s: got %v", message, id, got)
			}
		}
	}
	for _, id := range []string{"01", "+1", "1.", ".5", "0x1", "NaN", "Infinity", "-", "--1", "1e", "'a'", ""} {
		if got := codeOf(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`); got != commonv1.Code_CODE_JSON_INVALID {
			t.Errorf("%q, which is not JSON, as an id: got %v", id, got)
		}
	}
	for _, id := range []string{"0", "1", "-1", "9007199254740991", "-9007199254740991", `" "`, `"a"`, `"1"`, `"\u00e9"`,
		`"` + strings.Repeat("x", 128) + `"`, `"` + strings.Repeat(`\u00e9`, 64) + `"`} {
		m := accepted(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`)
		if got := string(m.ID.Of(m.Raw)); got != id {
			t.Errorf("the id %s was read as %s", id, got)
		}
	}
}

// Case P6.
func TestParse_MissingAndUnexpectedIDsAreRefused(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"ping", "tools/call", "tools/list", "initialize", "notification/x", "Notifications/x", "x/notifications/y", "notifications"} {
		if got := codeOf(t, `{"jsonrpc":"2.0","method":"`+method+`","params":{"name":"safe"}}`); got != commonv1.Code_CODE_ID_INVALID {
			t.Errorf("%s without an id: got %v", method, got)
		}
	}
	for _, id := range []string{"1", `"a"`, "null", "0"} {
		if got := codeOf(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"notifications/initialized"}`); got != commonv1.Code_CODE_ID_INVALID {
			t.Errorf("a notification with the id %s: got %v", id, got)
		}
	}
	if got := codeOf(t, `{"jsonrpc":"2.0","result":{}}`); got != commonv1.Code_CODE_ID_INVALID {
		t.Errorf("a response without an id: got %v", got)
	}
}

// Case P7. Arguments are refused unless they are an object or null.
func TestParse_ArgumentsMustBeAnObject(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`[]`, `[{}]`, `"x"`, `"{}"`, `1`, `0`, `true`, `false`, `""`} {
		for _, method := range []string{"tools/call", "prompts/get", "custom/call"} {
			raw := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"name":"safe","arguments":` + value + `}}`
			if got := codeOf(t, raw); got != commonv1.Code_CODE_PARAMS_INVALID {
				t.Errorf("arguments of %s are %s: got %v", method, value, got)
			}
		}
	}
	if m := accepted(t, toolCall("null")); m.Arguments.Present() {
		t.Error("null arguments count as present")
	}
	if m := accepted(t, toolCall(`{}`)); !m.Arguments.Present() {
		t.Error("empty arguments count as absent")
	}
	for _, value := range []string{"null", "[]", `"x"`, "1", "true"} {
		raws := []string{
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":` + value + `}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":` + value + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized","params":{"_meta":` + value + `}}`,
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":` + value + `}}`,
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":` + value + `}}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":` + value + `}}}`,
		}
		for _, raw := range raws {
			if got := codeOf(t, raw); got != commonv1.Code_CODE_PARAMS_INVALID {
				t.Errorf("%s: got %v", raw, got)
			}
		}
	}
}

// Case P8. A number is refused if it is not finite, or if it is an integer outside the range of int64.
func TestParse_NumbersOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	bad := []string{
		"1e400", "-1e400", "1E+400", "1.0e309", "1.8e308", "9e999999999999999999999", "18446744073709551616",
		"9223372036854775808", "-9223372036854775809", "10000000000000000000", strings.Repeat("9", 64),
		"0.1e400", strings.Repeat("1", 60) + "e250", "1.79769313486231580793728971405303416e308", "0.0000179769313486231580793728971405303416E+313",
	}
	good := []string{
		"9223372036854775807", "-9223372036854775808", "0", "-0", "1e3", "1e308", "1.7976931348623157e308", "-1.7976931348623157e308",
		"1e-400", "0e999", "0.0e99999", "1e19", "18446744073709551616.0", strings.Repeat("9", 62) + ".5", "1e00000000000000000003", "-0.0", "1E5",
		"0." + strings.Repeat("0", 40) + "1", "0." + strings.Repeat("0", 40) + "1e345", "0e" + strings.Repeat("9", 62), "1e-" + strings.Repeat("9", 61),
		"1.7976931348623158079372897140530341e308", "0.000017976931348623158079372897140530341E313",
	}
	places := []string{`{"v":%s}`, `{"v":[1,%s]}`, `{"v":{"w":[{"x":%s}]}}`, `{"a":%s,"b":1}`}
	for _, position := range places {
		for _, number := range bad {
			if got := codeOf(t, toolCall(fmt.Sprintf(position, number))); got != commonv1.Code_CODE_JSON_NUMBER {
				t.Errorf("%.60s: got %v", number, got)
			}
			if f, err := strconv.ParseFloat(number, 64); err == nil && !math.IsInf(f, 0) && strings.ContainsAny(number, ".eE") {
				t.Errorf("the test is wrong: %.60s is finite", number)
			}
		}
		for _, number := range good {
			accepted(t, toolCall(fmt.Sprintf(position, number)))
		}
	}
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":1e400}}`,
		`{"jsonrpc":"2.0","id":1,"params":{"_meta":{"x":18446744073709551616}},"method":"ping"}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1e999}}`,
	} {
		if got := codeOf(t, raw); got != commonv1.Code_CODE_JSON_NUMBER {
			t.Errorf("%s: got %v", raw, got)
		}
	}
	accepted(t, `{"jsonrpc":"2.0","id":1,"result":{"content":{"n":1e400,"m":18446744073709551616}}}`)
}

// Case X1. Numbers are limited to 64 bytes, because parsers that compute exact values, in the gateway and in servers,
// need a time that grows faster than linearly with the length of a number.
func TestParse_NumbersAreLimitedTo64Bytes(t *testing.T) {
	t.Parallel()
	places := []string{
		toolCall(`{"v":%s}`), toolCall(`{"v":[1,{"w":%s}]}`), `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"x":%s}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"v":%s}}`, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t","x":%s}]}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":%s}}`,
	}
	for _, number := range []string{"-0." + strings.Repeat("3", 61), strings.Repeat("3", 62) + ".0", "1.5e-" + strings.Repeat("3", 59), "1e+" + strings.Repeat("0", 61)} {
		for _, position := range places {
			longer := strings.Replace(strings.Replace(number, "3", "33", 1), "e+", "e+0", 1)
			accepted(t, fmt.Sprintf(position, number))
			for _, raw := range []string{fmt.Sprintf(position, longer), fmt.Sprintf(position, number+strings.Repeat("9", 4<<20-1000))} {
				if got := codeOf(t, raw); got != commonv1.Code_CODE_JSON_NUMBER {
					t.Errorf("Parse(%.200s): got %v", raw, got)
				}
			}
			if !strings.Contains(position, "result") && !strings.Contains(position, "error") {
				continue
			}
			answer(t, fmt.Sprintf(position, number))
			raw := fmt.Sprintf(position, longer)
			a, err := jsonrpc.ReadAnswer([]byte(raw), jsonrpc.AnswerLimits())
			if got := refusalCode(t, raw, a == nil, err); got != commonv1.Code_CODE_JSON_NUMBER {
				t.Errorf("ReadAnswer(%.200s): %v", raw, err)
			}
		}
	}
}

// Case P8. The parser uses a number's digits to determine whether the number is finite. The result must be the same as
// if the number were parsed as a float64.
func TestParse_FiniteNumbersAreThoseOfFloat64(t *testing.T) {
	t.Parallel()
	digits, exponents := rapid.StringMatching(`[0-9]{0,20}`), rapid.StringMatching(`[eE][+-]?(2[4-9][0-9]|3[0-3][0-9]|[0-9]{1,6})`)
	rapid.Check(t, func(t *rapid.T) {
		whole := strings.TrimLeft(digits.Draw(t, "whole"), "0")
		number := cmp.Or(whole, "0") + "." + rapid.SampledFrom([]string{"0", "79769313486231570", "79769313486231580793728971405303"}).Draw(t, "fraction") +
			digits.Draw(t, "more") + exponents.Draw(t, "exponent")
		if len(number) > 64 {
			t.Skip("too long")
		}
		_, err := strconv.ParseFloat(number, 64)
		_, refused := jsonrpc.Parse([]byte(toolCall(`{"v":`+number+`}`)), jsonrpc.DefaultLimits())
		if (err == nil) != (refused == nil) {
			t.Fatalf("%s: parsing gives %v, the gate %v", number, err, refused)
		}
	})
}
