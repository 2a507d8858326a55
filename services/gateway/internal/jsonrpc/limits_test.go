package jsonrpc_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func measure(t *testing.T, raw string) (depth, tokens int) {
	t.Helper()
	d := jsontext.NewDecoder(strings.NewReader(raw))
	for ; ; tokens++ {
		_, err := d.ReadToken()
		if errors.Is(err, io.EOF) {
			return depth, tokens
		}
		if err != nil {
			t.Fatal(err)
		}
		depth = max(depth, d.StackDepth())
	}
}

// Case P11.
func TestParse_DepthIsLimited(t *testing.T) {
	t.Parallel()
	// nest returns a value that is nested to the given number of levels. Successive levels use the given forms in
	// rotation.
	nest := func(levels int, forms ...string) string {
		raw := "1"
		for level := range levels {
			raw = strings.Replace(forms[level%len(forms)], "_", raw, 1)
		}
		return raw
	}
	forms := [][]string{{"[_]"}, {`{"a":_}`}, {"[_]", `{"a":_}`}, {`[1,{},[],_]`, `{"b":[{}],"a":_,"c":[]}`, "[_,2]"}}
	places := []struct {
		raw   string
		above int // the number of levels that enclose the value
		code  commonv1.Code
	}{
		{toolCall(`{"v":_}`), 3, 0},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"v":_}}`, 2, 0},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"v":_}}}`, 3, 0},
		{`{"jsonrpc":"2.0","id":1,"result":{"v":_}}`, 2, 0},
		{`{"jsonrpc":"2.0","id":_,"method":"ping"}`, 1, commonv1.Code_CODE_ID_INVALID},
	}
	for _, position := range places {
		for _, form := range forms {
			// Some forms contain brackets of their own, so the message may be one level deeper than levels says.
			levels := 64 - position.above
			for {
				raw := strings.Replace(position.raw, "_}", nest(levels, form...)+"}", 1)
				if strings.Contains(position.raw, `"id":_`) {
					raw = strings.Replace(position.raw, `"id":_`, `"id":`+nest(levels, form...), 1)
				}
				depth, _ := measure(t, raw)
				want := position.code
				if depth > 64 {
					want = commonv1.Code_CODE_JSON_TOO_DEEP
				}
				if got := codeOf(t, raw); got != want {
					t.Errorf("%d levels: got %v, want %v\n%s", depth, got, want, raw)
				}
				if depth >= 66 {
					break
				}
				levels++
			}
		}
	}
	refused(t, []refusal{
		{"a hundred thousand brackets", toolCall(`{"v":` + strings.Repeat("[", 100_000)), commonv1.Code_CODE_JSON_TOO_DEEP},
		{"a hundred thousand braces", toolCall(strings.Repeat(`{"v":`, 100_000)), commonv1.Code_CODE_JSON_TOO_DEEP},
	})
}

// Case P11.
func TestParse_TokensAreLimited(t *testing.T) {
	t.Parallel()
	forms := []string{",1", `,"x"`, ",null", ",[]", ",{}", `,{"a":1}`, ",[[1]]"}
	for _, form := range forms {
		_, empty := measure(t, toolCall(`{"v":[]}`))
		_, one := measure(t, toolCall(`{"v":[`+form[1:]+`]}`))
		for n := (10_000-empty)/(one-empty) - 1; ; n++ {
			raw := toolCall(`{"v":[` + strings.Repeat(form, n)[1:] + `]}`)
			_, tokens := measure(t, raw)
			want := commonv1.Code_CODE_UNSPECIFIED
			if tokens > 10_000 {
				want = commonv1.Code_CODE_JSON_TOO_MANY_TOKENS
			}
			if got := codeOf(t, raw); got != want {
				t.Errorf("%d tokens with %q: got %v, want %v", tokens, form, got, want)
			}
			if tokens > 10_010 {
				break
			}
		}
	}
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	refused(t, []refusal{
		{"100,000 keys", toolCall(`{` + strings.Join(keys, ",") + `}`), commonv1.Code_CODE_JSON_TOO_MANY_TOKENS},
		{"100,000 keys in params", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{` + strings.Join(keys, ",") + `}}`, commonv1.Code_CODE_JSON_TOO_MANY_TOKENS},
		{"100,000 keys of the gateway's", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"dev.sluice/` +
			strings.ReplaceAll(strings.Join(keys, ","), `,"`, `,"dev.sluice/`)[1:] + `}}}`, commonv1.Code_CODE_JSON_TOO_MANY_TOKENS},
	})
}

// Case P11. A key that is too long or contains control characters is refused.
func TestParse_KeysAreLimited(t *testing.T) {
	t.Parallel()
	const code = commonv1.Code_CODE_JSON_KEY
	cases := []refusal{
		{"257 bytes", strings.Repeat("k", 257), code},
		{"258 bytes in 129 characters", strings.Repeat("é", 129), code},
		{"258 bytes in 129 escapes", strings.Repeat(`\u00e9`, 129), code},
		{"a megabyte", strings.Repeat("k", 1<<20), code},
		{"256 bytes", strings.Repeat("k", 256), 0},
		{"256 bytes in 128 escapes", strings.Repeat(`\u00e9`, 128), 0},
		{"257 bytes written, 256 meant", `\/` + strings.Repeat("k", 255), 0},
		{"an escaped line feed", `a\nb`, code},
		{"an escaped NUL", `\u0000`, code},
		{"an escaped escape", `\u001b[31m`, code},
		{"a raw DEL", "a\x7f", code},
		{"an escaped DEL", `a\u007F`, code},
		{"a raw C1 control", "a\u0085", code},
		{"an escaped C1 control", `\u009b31m`, code},
		{"a no-break space, which is no control", "a\u00a0b", 0},
		{"an escaped quote", `\"`, 0},
	}
	for _, tt := range cases {
		for _, position := range []string{toolCall(`{"_":1}`), toolCall(`{"v":[{"a":1,"_":1}]}`), `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_":1}}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"_":1}}}`, `{"jsonrpc":"2.0","id":1,"result":{"_":1}}`} {
			raw := strings.Replace(position, `"_":`, `"`+tt.raw+`":`, 1)
			if got := codeOf(t, raw); got != tt.code {
				t.Errorf("%s: got %v, want %v\n%.300q", tt.name, got, tt.code, raw)
			}
		}
	}
	if got := codeOf(t, `{"`+strings.Repeat("k", 257)+`":1,"jsonrpc":"2.0","id":1,"method":"ping"}`); got != code {
		t.Errorf("in the envelope: got %v", got)
	}
}

// Case P11.
func TestParse_SizeIsLimited(t *testing.T) {
	t.Parallel()
	limits := jsonrpc.DefaultLimits()
	full := toolCall(`{"v":"` + strings.Repeat("x", limits.Bytes-len(toolCall(`{"v":""}`))) + `"}`)
	accepted(t, full)
	for _, raw := range []string{full + " ", strings.Repeat(" ", limits.Bytes+1), strings.Repeat("x", 2*limits.Bytes)} {
		if got := codeOf(t, raw); got != commonv1.Code_CODE_BODY_TOO_LARGE {
			t.Errorf("%d bytes: got %v", len(raw), got)
		}
	}
	if _, err := jsonrpc.Parse([]byte(toolCall(`{}`)), jsonrpc.Limits{}); err == nil {
		t.Error("the zero Limits accept a message")
	}
}

// Case P11. TestParse_HostileInputNeedsLittleMemory is not parallel, because the number of allocations that it measures
// includes those of all goroutines.
func TestParse_HostileInputNeedsLittleMemory(t *testing.T) {
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"\u006b%d":{"a":1}`, i)
	}
	longKeys := make([]string, 10_000)
	for i := range longKeys {
		longKeys[i] = fmt.Sprintf(`"%0250d":0`, i)
	}
	limit := jsonrpc.DefaultLimits().Bytes
	cases := []struct {
		name  string
		raw   string
		read  int    // maximum number of bytes that the parser may read
		bytes uint64 // maximum number of bytes that the parser may allocate
	}{
		{"65 levels", toolCall(`{"v":` + strings.Repeat("[", 1<<20)), 256, 4 << 10},
		{"65 objects", toolCall(`{"v":` + strings.Repeat(`{"v":`, 1<<19)), 512, 8 << 10},
		{"100,000 escaped keys", toolCall(`{` + strings.Join(keys, ",") + `}`), 100 << 10, 400 << 10},
		{"10,000 long keys", toolCall(`{` + strings.Join(longKeys, ",") + `}`), 1500 << 10, 600 << 10},
		{"a byte more than the body may have", strings.Repeat(" ", limit+1), limit, 4 << 10},
		{"an endless string", toolCall(`{"v":"` + strings.Repeat(`\u0041`, 600_000)), limit, 64 << 10}, // a few more bytes for each yield
		{"an endless number", toolCall(`{"v":` + strings.Repeat("9", limit-200)), limit, 4 << 10},
		{"endless numbers beyond range", toolCall(`{"v":[` + strings.Repeat("1e400,", 9_000) + `1]}`), limit, 4 << 10},
		{"a batch", "[" + strings.Repeat(toolCall(`{}`)+",", 10_000), 1, 4 << 10},
		{"an endless method", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", limit-200) + `"}`, limit, 4 << 10},
		{"an endless id", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", limit-200) + `","method":"ping"}`, limit, 4 << 10},
		{"compressed bytes", "\x1f\x8b\x08" + strings.Repeat("\x00\xff", 1<<20), 16, 4 << 10},
	}
	for _, tt := range cases {
		raw := []byte(tt.raw)
		var before, after runtime.MemStats
		const runs = 4
		runtime.ReadMemStats(&before)
		var last error
		for range runs {
			_, last = jsonrpc.Parse(raw, jsonrpc.DefaultLimits())
		}
		runtime.ReadMemStats(&after)
		refused, ok := errors.AsType[*jsonrpc.Error](last)
		if !ok {
			t.Errorf("%s was accepted", tt.name)
			continue
		}
		if refused.Offset > tt.read {
			t.Errorf("%s: read %d bytes before it was refused (%v), want at most %d", tt.name, refused.Offset, refused.Code, tt.read)
		}
		if got := (after.TotalAlloc - before.TotalAlloc) / runs; got > tt.bytes {
			t.Errorf("%s: allocated %d bytes, want at most %d", tt.name, got, tt.bytes)
		}
	}
	small := []byte(toolCall(`{"path":"/srv/a","n":[1,2,3]}`))
	if got := testing.AllocsPerRun(100, func() { _, _ = jsonrpc.Parse(small, jsonrpc.DefaultLimits()) }); got > 2 {
		t.Errorf("a small call costs %v allocations, want the message and the name", got)
	}
}
