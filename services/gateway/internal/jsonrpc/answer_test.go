package jsonrpc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func answer(t *testing.T, raw string) *jsonrpc.Answer {
	t.Helper()
	a, err := jsonrpc.ReadAnswer([]byte(raw), jsonrpc.AnswerLimits())
	if err != nil {
		t.Fatalf("ReadAnswer(%.300q): %v", raw, err)
	}
	return a
}

var answers = []struct {
	name string
	raw  string
	want parts
}{
	{"a result", `{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}`, parts{"kind": "response", "id": "1", "result": `{"content":[],"isError":false}`}},
	{"a tool's error", `{"result":{"isError":true},"id":"a","jsonrpc":"2.0"}`, parts{"kind": "response", "id": `"a"`, "result": `{"isError":true}`, "isError": "true"}},
	{"numbers of any size", `{"jsonrpc":"2.0","id":1e999,"result":{"v":[1e999,99999999999999999999,-0]}}`, parts{"kind": "response", "id": "1e999", "result": `{"v":[1e999,99999999999999999999,-0]}`}},
	{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`, parts{"kind": "response", "id": "1", "error": `{"code":-32601,"message":"no"}`, "code": "-32601"}},
	{"an error without an id", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`, parts{"kind": "response", "id": "null", "error": `{"code":-32700,"message":"no"}`, "code": "-32700"}},
	{"initialize", `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x"}}}`,
		parts{"kind": "response", "id": "1", "version": `"2025-06-18"`, "capabilities": `{"tools":{}}`, "server": `{"name":"x"}`}},
	{"a list", `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"},{"x":1,"name":"\u0062"}],"nextCursor":"c","ttlMs":5,"cacheScope":"public","resultType":"complete"}}`,
		parts{"kind": "response", "id": "1", "tools": `[{"name":"a"},{"x":1,"name":"\u0062"}]`, "cursor": `"c"`, "ttl": "5", "scope": `"public"`, "type": `"complete"`, "names": "a|b"}},
	{"a list of oddities", `{"jsonrpc":"2.0","id":1,"result":{"tools":[1,{},{"name":5},{"name":"a","NAME":"b"},{"name":"ok"},[],{"name":null}]}}`,
		parts{"kind": "response", "id": "1", "tools": `[1,{},{"name":5},{"name":"a","NAME":"b"},{"name":"ok"},[],{"name":null}]`, "names": "||||ok||"}},
	{"tools that are no list", `{"jsonrpc":"2.0","id":1,"result":{"tools":{"name":"a"}}}`, parts{"kind": "response", "id": "1"}},
	{"a request of the server's", `{"jsonrpc":"2.0","id":0,"method":"sampling/createMessage","params":{"a":1}}`, parts{"kind": "request", "id": "0", "method": "sampling/createMessage", "params": `{"a":1}`}},
	{"a progress", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":0.5}}`,
		parts{"kind": "notification", "method": "notifications/progress", "token": "7", "progress": "0.5"}},
	{"a cancellation", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, parts{"kind": "notification", "method": "notifications/cancelled", "requestId": "7"}},
	{"unknown keys", `{"jsonrpc":"2.0","id":1,"result":{"x":1},"trace":{}}`, parts{"kind": "response", "id": "1"}}}

func TestReadAnswer_ReturnsPositionOfEachPart(t *testing.T) {
	t.Parallel()
	for _, tt := range answers {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := answer(t, tt.raw)
			got := parts{"kind": a.Kind.String()}
			for key, span := range map[string]jsonrpc.Span{"id": a.ID, "params": a.Params, "result": a.Result, "error": a.Error, "code": a.ErrorCode, "tools": a.ToolList,
				"cursor": a.NextCursor, "type": a.ResultType, "ttl": a.TTL, "scope": a.CacheScope, "version": a.ProtocolVersion, "capabilities": a.Capabilities,
				"server": a.ServerInfo, "requestId": a.RequestID, "token": a.ProgressToken, "progress": a.Progress} {
				if span.Present() {
					got[key] = string(span.Of(a.Raw))
				}
			}
			if a.Method != "" {
				got["method"] = a.Method
			}
			if a.IsError {
				got["isError"] = "true"
			}
			var names []string
			for _, tool := range a.Tools {
				names = append(names, tool.Name)
			}
			if names != nil {
				got["names"] = strings.Join(names, "|")
			}
			for _, whole := range []string{"params", "result"} {
				if _, ok := tt.want[whole]; !ok {
					delete(got, whole)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ReadAnswer(%s) (-want +got)\n%s", tt.raw, diff)
			}
		})
	}
}

var badAnswers = []refusal{
	{"a duplicate key", result(`"a":1,"a":2`), commonv1.Code_CODE_JSON_DUPLICATE_KEY},
	{"a duplicate key, deep and escaped", result(`"a":[{"b":1,"\u0062":2}]`), commonv1.Code_CODE_JSON_DUPLICATE_KEY},
	{"two results", `{"jsonrpc":"2.0","id":1,"result":{},"result":{}}`, commonv1.Code_CODE_JSON_DUPLICATE_KEY},
	{"a duplicate key in a tool", result(`"tools":[{"name":"a","name":"b"}]`), commonv1.Code_CODE_JSON_DUPLICATE_KEY},
	{"a duplicate key in _meta", result(`"_meta":{"dev.sluice/a":1,"dev.sluice/a":2}`), commonv1.Code_CODE_JSON_DUPLICATE_KEY},
	{"invalid UTF-8", result("\"a\":\"\xff\""), commonv1.Code_CODE_JSON_ENCODING},
	{"a lone surrogate", result(`"a":"\ud800"`), commonv1.Code_CODE_JSON_ENCODING},
	{"a byte order mark", "\ufeff" + result(""), commonv1.Code_CODE_JSON_ENCODING},
	{"more bytes", result("") + "{}", commonv1.Code_CODE_JSON_TRAILING},
	{"513 levels", result(`"a":` + strings.Repeat("[", 511) + strings.Repeat("]", 511)), commonv1.Code_CODE_JSON_TOO_DEEP},
	{"a gigabyte's beginning", result(`"a":"` + strings.Repeat("x", 16<<20) + `"`), commonv1.Code_CODE_BODY_TOO_LARGE},
	{"a batch", "[" + result("") + "]", commonv1.Code_CODE_JSONRPC_INVALID},
	{"cut off", `{"jsonrpc":"2.0","id":1,"result":{`, commonv1.Code_CODE_JSON_INVALID},
	{"no version", `{"id":1,"result":{}}`, commonv1.Code_CODE_JSONRPC_INVALID},
	{"a result and an error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, commonv1.Code_CODE_JSONRPC_INVALID},
	{"a method and a result", `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, commonv1.Code_CODE_JSONRPC_INVALID},
	{"nothing", `{"jsonrpc":"2.0","id":1}`, commonv1.Code_CODE_JSONRPC_INVALID},
	{"a result that is no object", `{"jsonrpc":"2.0","id":1,"result":[]}`, commonv1.Code_CODE_JSONRPC_INVALID},
	{"params that are no object", `{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, commonv1.Code_CODE_JSONRPC_INVALID},
	{"a result without an id", `{"jsonrpc":"2.0","result":{}}`, commonv1.Code_CODE_ID_INVALID},
	{"a result whose id is null", `{"jsonrpc":"2.0","id":null,"result":{}}`, commonv1.Code_CODE_ID_INVALID},
	{"a request whose id is null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, commonv1.Code_CODE_ID_INVALID},
	{"an id that is an object", `{"jsonrpc":"2.0","id":{},"result":{}}`, commonv1.Code_CODE_ID_INVALID},
	{"a method that is no name", `{"jsonrpc":"2.0","method":"a b"}`, commonv1.Code_CODE_METHOD_INVALID},
	{"a variant in the envelope", `{"jsonrpc":"2.0","id":1,"result":{},"ID":2}`, commonv1.Code_CODE_FIELD_CASE_VARIANT},
	{"a variant in the result", result(`"Tools":[]`), commonv1.Code_CODE_FIELD_CASE_VARIANT},
	{"a variant of _meta in the result", result(`"_META":{"dev.sluice/decision":{}}`), commonv1.Code_CODE_FIELD_CASE_VARIANT},
	{"a variant in the error", `{"jsonrpc":"2.0","id":1,"error":{"Code":1}}`, commonv1.Code_CODE_FIELD_CASE_VARIANT},
	{"a variant in the params", `{"jsonrpc":"2.0","method":"notifications/x","params":{"progre` + "\u017f" + `s":1}}`, commonv1.Code_CODE_FIELD_CASE_VARIANT}}

// Case U1.
func TestReadAnswer_RefusesAmbiguousAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range badAnswers {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, err := jsonrpc.ReadAnswer([]byte(tt.raw), jsonrpc.AnswerLimits())
			if err == nil {
				t.Fatalf("ReadAnswer(%.300q) accepts it", tt.raw)
			}
			if got := refusalCode(t, tt.raw, a == nil, err); got != tt.code {
				t.Errorf("ReadAnswer(%.300q)\n got %v\nwant %v", tt.raw, got, tt.code)
			}
		})
	}
	answer(t, result(`"a":`+strings.Repeat("[", 510)+strings.Repeat("]", 510)))
	if _, err := jsonrpc.ReadAnswer([]byte(result("")), jsonrpc.Limits{}); err == nil {
		t.Error("the zero Limits accept an answer")
	}
}

var unclean = []struct{ name, raw, want string }{
	{"nothing", result(`"a":1`), result(`"a":1`)},
	{"a decision", result(`"_meta":{"dev.sluice/decision":{"code":"allowed"}},"content":[]`), result(`"_meta":{},"content":[]`)},
	{"among others", result(`"_meta":{"a":1,"dev.sluice/x":1,"dev.sluice/y":2,"b":2,"dev.sluice/z":3}`), result(`"_meta":{"a":1,"b":2}`)},
	{"in any case", result(`"_meta":{"DEV.sluice/x":1,"dev.` + "\u017f" + `luice/y":2,"d\u0065v.sluice\/z":3,"dev.sluicer/k":4}`), result(`"_meta":{"dev.sluicer/k":4}`)},
	{"at any depth", result(`"content":[{"_meta":{"dev.sluice/x":1}},{"a":{"_meta":{"b":1,"dev.sluice/x":{"_meta":{"dev.sluice/y":1}}}}}]`), result(`"content":[{"_meta":{}},{"a":{"_meta":{"b":1}}}]`)},
	{"in a _meta by another case", result(`"content":[{"_Meta":{"dev.sluice/x":1}}]`), result(`"content":[{"_Meta":{}}]`)},
	{"_meta in _meta", result(`"_meta":{"_meta":{"dev.sluice/x":1},"dev.sluice/y":1}`), result(`"_meta":{"_meta":{}}`)},
	{"elsewhere", result(`"structuredContent":{"dev.sluice/x":1,"_meta":"dev.sluice/","b":["dev.sluice/x"]}`), result(`"structuredContent":{"dev.sluice/x":1,"_meta":"dev.sluice/","b":["dev.sluice/x"]}`)},
	{"in an error's data", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":{"dev.sluice/decision":1,"a":{"_meta":{"dev.sluice/x":1}}}}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":{"a":{"_meta":{}}}}}`},
	{"in the params", `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"dev.sluice/x":1}}}`, `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{}}}`},
	{"in capabilities", result(`"capabilities":{"_meta":{"dev.sluice/x":1}}`), result(`"capabilities":{"_meta":{}}`)},
	{"next to the envelope's members", `{"jsonrpc":"2.0","id":1,"result":{},"_meta":{"dev.sluice/x":1}}`, `{"jsonrpc":"2.0","id":1,"result":{},"_meta":{}}`},
	{"hidden tools", result(`"tools":[{"name":"a"}, {"name":"h1"} ,{"name":"h2"},{"name":"b"},{"name":"h3"}]`), result(`"tools":[{"name":"a"}, {"name":"b"}]`)},
	{"all tools hidden", result(`"tools":[ {"name":"h1"},1,{"name":"x","Name":"y"} ]`), result(`"tools":[  ]`)},
	{"a hidden tool with a decision in it", result(`"tools":[{"name":"h","_meta":{"dev.sluice/x":1}},{"name":"a","_meta":{"dev.sluice/x":1}},{"name":"h2","x":{"_meta":{"dev.sluice/x":1}}}],"_meta":{"dev.sluice/x":1}`),
		result(`"tools":[{"name":"a","_meta":{}}],"_meta":{}`)}}

// Case U1.
func TestClean_RemovesReservedMembersAndHiddenTools(t *testing.T) {
	t.Parallel()
	hide := func(tool jsonrpc.Tool) bool { return tool.Name == "" || strings.HasPrefix(tool.Name, "h") }
	for _, tt := range unclean {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := answer(t, tt.raw)
			out, err := jsonrpc.ApplyEdits(a.Raw, a.Clean(hide)...)
			if err != nil {
				t.Fatal(err)
			}
			if string(out) != tt.want {
				t.Errorf("cleaning %s\n got %s\nwant %s", tt.raw, out, tt.want)
			}
			if reread := answer(t, string(out)); len(reread.Clean(hide)) != 0 {
				t.Errorf("%s is not clean", out)
			}
		})
	}
	a := answer(t, result(`"tools":[{"name":"h1"}]`))
	if edits := a.Clean(nil); len(edits) != 0 {
		t.Errorf("without a choice, %v is cut", edits)
	}
}

// Case U1. The memory that ReadAnswer needs is at most proportional to the answer's size.
func TestReadAnswer_LimitsMemory(t *testing.T) {
	t.Parallel()
	keys := make([]string, 1_000_000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"%x":0`, i)
	}
	envelope := func(result string) string { return `{"jsonrpc":"2.0","id":1,"result":{` + result + `}}` }
	list := func(n int, tool string) string {
		return envelope(`"tools":[` + strings.TrimSuffix(strings.Repeat(tool+",", n), ",") + `]`)
	}
	tests := []struct {
		name, raw string
		code      commonv1.Code
	}{
		{"as many tools as policy filters", list(10_000, `{"name":"a"}`), 0},
		{"one tool more", list(10_001, `{"name":"a"}`), commonv1.Code_CODE_JSON_TOO_MANY_TOKENS},
		{"millions of invalid tools", list(3_500_000, "0"), commonv1.Code_CODE_JSON_TOO_MANY_TOKENS},
		{"many keys", envelope(`"x":{` + strings.Join(keys[:50_000], ",") + `}`), 0},
		{"a million keys", envelope(`"x":{` + strings.Join(keys, ",") + `}`), commonv1.Code_CODE_JSON_TOO_MANY_TOKENS},
	}
	for _, tt := range tests {
		answer, err := jsonrpc.ReadAnswer([]byte(tt.raw), jsonrpc.AnswerLimits())
		if tt.code == 0 {
			if err != nil || answer == nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if own, ok := errors.AsType[*jsonrpc.Error](err); !ok || own.Code != tt.code {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.code)
		}
	}
}

// Case U1. ReadAnswer finds the requests in an answer at any position. It refuses ambiguous requests.
func TestReadAnswer_FindsInputRequests(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"jsonrpc":"2.0","id":7,"result":{"inputRequests":{"a":{"params":{"_meta":{"dev.sluice/x":1},"n":1.0},"method":"roots/list","more":[]},"b":7,"":{}},"resultType":"input_required"}}`)
	a, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, in := range a.Inputs {
		got = append(got, string(in.Request(a.Raw, []byte(`"i"`))))
	}
	want := []string{
		`{"jsonrpc":"2.0","id":"i","method":"roots/list","params":{"_meta":{"dev.sluice/x":1},"n":1.0}}`, `{"jsonrpc":"2.0","id":"i"}`, `{"jsonrpc":"2.0","id":"i"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" || len(a.Clean(nil)) != 1 {
		t.Errorf("-want +got:\n%s", diff)
	}
	moved, err := a.WithID([]byte(`"another"`))
	if err != nil || string(moved.Inputs[0].Request(moved.Raw, []byte(`"i"`))) != `{"jsonrpc":"2.0","id":"i","method":"roots/list","params":{"_meta":{},"n":1.0}}` {
		t.Errorf("under another id: %v", err)
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf(`"%d":{}`, i)
	}
	for _, result := range []string{
		`{"InputRequests":{}}`, `{"inputRequests":{"a":{},"\u0061":{}}}`, `{"inputRequests":{"a":{"Method":"x"}}}`, `{"inputRequests":{"a":{"method":"x","method":"y"}}}`,
		`{"inputRequests":{},"inputRequests":{}}`, `{"inputRequests":{` + strings.Join(many, ",") + `}}`,
	} {
		if _, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":7,"result":`+result+`}`), jsonrpc.AnswerLimits()); err == nil {
			t.Errorf("%s is accepted", result)
		}
	}
}

func TestSameID_ComparesIDsByValue(t *testing.T) {
	t.Parallel()
	ids := [][]string{ // the ids in one line are equal, and ids in different lines are different
		{`1`}, {`-1`}, {`0`}, {`10`}, {`9007199254740993`}, {`9007199254740992`},
		{`"1"`, `"\u0031"`}, {`"a"`, `"\u0061"`}, {`"A"`}, {`""`}, {`"a/b"`, `"a\/b"`}, {`"é"`, `"\u00e9"`}, {"\"e\u0301\""}, {`"\""`}, {`"-1"`},
		{`"😀"`, `"\ud83d\ude00"`},
	}
	none := []string{``, `null`, `true`, `1.0`, `1.5`, `1e0`, `-0`, `{}`, `[]`, `-`, `"`}
	for i, line := range ids {
		for _, a := range line {
			for j, other := range ids {
				for _, b := range other {
					if got := jsonrpc.SameID([]byte(a), []byte(b)); got != (i == j) {
						t.Errorf("SameID(%s, %s) is %v", a, b, got)
					}
				}
			}
			for _, b := range none {
				if jsonrpc.SameID([]byte(a), []byte(b)) || jsonrpc.SameID([]byte(b), []byte(a)) {
					t.Errorf("SameID(%s, %s)", a, b)
				}
			}
		}
	}
	for _, a := range none {
		if jsonrpc.SameID([]byte(a), []byte(a)) {
			t.Errorf("%s is the same as itself, and yet no id", a)
		}
	}
}

func TestError_NamesTheBrokenRule(t *testing.T) {
	t.Parallel()
	_, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"secret":1,"secret":2}`), jsonrpc.DefaultLimits())
	const want = "jsonrpc_invalid at byte 24: the message has an unknown key"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	var refused *jsonrpc.Error
	if !errors.As(err, &refused) || strings.Contains(err.Error(), "secret") {
		t.Errorf("the refusal is %#v", err)
	}
}
