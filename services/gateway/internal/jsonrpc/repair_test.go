package jsonrpc_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func called([]byte) string { return "tools/call" }

// Case U2. Repair repairs only the two documented faults, and only in the response to a request that the gateway has
// sent.
func TestRepair_OnlyTwoFormsAreRepaired(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ raw, method, want string }{
		"half of a pair":             {`{"jsonrpc":"2.0","id":1,"result":{"content":["\ud83d"]}}`, "tools/call", `{"jsonrpc":"2.0","id":1,"result":{"content":["\ufffd"]}}`},
		"half in another answer":     {`{"jsonrpc":"2.0","id":1,"result":{"content":["\ud83d"]}}`, "prompts/get", ""},
		"half in no answer":          {`{"jsonrpc":"2.0","id":1,"result":{"content":["\ud83d"]}}`, "", ""},
		"half in a list":             {`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","description":"\ud83d"}]}}`, "tools/call", ""},
		"half in what a server asks": {`{"jsonrpc":"2.0","id":1,"result":{"inputRequests":{"a":{"method":"x","params":{"content":"\ud83d"}}}}}`, "tools/call", ""},
		"half in a request":          {`{"jsonrpc":"2.0","id":1,"method":"x","params":{"content":"\ud83d"}}`, "tools/call", ""},
		"half in the id":             {`{"jsonrpc":"2.0","id":"\ud83d","result":{"content":[]}}`, "tools/call", ""},
		"error: null":                {`{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, "tools/list", `{"jsonrpc":"2.0","id":1,"result":{}             }`},
		"error: null in front":       {`{ "error": null , "jsonrpc":"2.0","id":1,"result":{}}`, "tools/list", `{                 "jsonrpc":"2.0","id":1,"result":{}}`},
		"error: null of a request":   {`{"jsonrpc":"2.0","id":1,"method":"x","error":null}`, "tools/list", ""},
		"error: null twice":          {`{"jsonrpc":"2.0","id":1,"result":{},"error":null,"error":null}`, "tools/list", ""},
		"error: null, and another":   {`{"jsonrpc":"2.0","id":1,"result":{},"error":null,"Error":{}}`, "tools/list", ""},
		"what is whole":              {`{"jsonrpc":"2.0","id":1,"result":{}}`, "tools/call", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := []byte(tt.raw)
			mended := jsonrpc.Repair(raw, jsonrpc.AnswerLimits(), func(id []byte) string {
				if string(id) != "1" {
					return ""
				}
				return tt.method
			})
			if mended != (tt.want != "") {
				t.Fatalf("repaired: %t", mended)
			}
			if diff := cmp.Diff(tt.want, string(raw)); mended && diff != "" {
				t.Errorf("it became (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSketchOf_FindsIDOfUnreadableAnswer(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"result":{"id":8}}`:                   "7",
		` [ {"id" : "7" , "result":[{"id":8}]}`:                        `"7"`,
		`{"result":{"a":"\"id\":8","b":["{"]},"id":-7.5e3`:             "-7.5e3",
		`{"id":7,"error":{"code":1`:                                    "7",
		`{"id":7,"result":{},"id":7}`:                                  "7",
		`{"jsonrpc":"2.0","id":null,"error":{}}`:                       "",
		"\ufeff{\"id\":7,\"result\":{\"a\":\"\xff\"}}":                 "7",
		`{"id":7,"result":{},"id":8}`:                                  "none",
		`{"id":7,"error":"text"}`:                                      "none",
		`{"id":7,"error":null}`:                                        "none",
		`{"id":7,"level":"info","message":"x"}`:                        "none",
		`{"jsonrpc":"2.0","id":7,"method":"x","result":{}}`:            "none",
		`log {"id":7,"result":{}}`:                                     "none",
		`[[{"id":7,"result":{}}]]`:                                     "none",
		`"id"`:                                                         "none",
		``:                                                             "none",
		`{"a":{"id":7,"result":{}}}`:                                   "none",
		`{"\u0069d":7,"result":{}}`:                                    "",
		`{"x":"` + strings.Repeat(`\\`, 200) + `","id":7,"result":{}}`: "7",
	} {
		s, is := jsonrpc.SketchOf([]byte(raw))
		if got := string(s.ID); is != (want != "none") || is && got != want {
			t.Errorf("%s: %q, %t; want %s", raw, got, is, want)
		}
	}
}

// FuzzRepair checks three properties of a repaired message: it has the same length as before, it differs only in the
// repaired parts, and the strict parser accepts it.
func FuzzRepair(f *testing.F) {
	for _, raw := range []string{`["\ud83d"]`, `{"a":"\ude00\ud83d"},"error":null`, `1},"error":null,"x":{`, `"\\ud83d"`, "\"\xff\""} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, raw := range [][]byte{raw, []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":` + string(raw) + `}}`)} {
			jsonrpc.SketchOf(raw) // must not panic on any input
			before := bytes.Clone(raw)
			if _, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits()); err == nil {
				if jsonrpc.Repair(raw, jsonrpc.AnswerLimits(), called) || !bytes.Equal(raw, before) {
					t.Fatalf("%q was whole and became %q", before, raw)
				}
				continue
			}
			if !jsonrpc.Repair(raw, jsonrpc.AnswerLimits(), called) {
				continue
			}
			a, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
			if err != nil || len(raw) != len(before) || a.Kind != jsonrpc.Response || a.Error.Present() || !jsontext.Value(raw).IsValid() {
				t.Fatalf("%q became %q: %v", before, raw, err)
			}
			// A lenient parser reads the same content from the message before and after the repair, except for the
			// `"error": null` that was removed.
			lax := jsontext.Value(before)
			if err := lax.Canonicalize(jsontext.AllowInvalidUTF8(true)); err != nil {
				t.Fatalf("%q: %v", before, err)
			}
			strict := jsontext.Value(bytes.Clone(raw))
			if err := strict.Canonicalize(); err != nil {
				t.Fatalf("%q: %v", raw, err)
			}
			if got, want := string(strict), strings.Replace(string(lax), `"error":null,`, "", 1); got != want {
				t.Errorf("%q became %q:\n%s\n%s", before, raw, want, got)
			}
		}
	})
}
