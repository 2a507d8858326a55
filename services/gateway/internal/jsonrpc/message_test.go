package jsonrpc_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

type parts map[string]string

func partsOf(m *jsonrpc.Message) parts {
	got := parts{"kind": m.Kind.String()}
	text := func(key, value string) {
		if value != "" {
			got[key] = value
		}
	}
	span := func(key string, s jsonrpc.Span) { text(key, string(s.Of(m.Raw))) }
	text("method", m.Method)
	text("name", m.Name)
	text("uri", m.URI)
	text("version", m.Version)
	text("run", m.Meta.Run)
	text("approval", m.Meta.Approval)
	text("traceparent", m.Meta.TraceParent)
	text("tracestate", m.Meta.TraceState)
	text("meta version", m.Meta.ProtocolVersion)
	span("id", m.ID)
	span("params", m.Params)
	span("result", m.Result)
	span("error", m.Error)
	span("arguments", m.Arguments)
	span("requestId", m.RequestID)
	span("progressToken", m.ProgressToken)
	span("capabilities", m.Capabilities)
	span("meta", m.Meta.Object)
	span("meta token", m.Meta.ProgressToken)
	span("meta capabilities", m.Meta.Capabilities)
	name, version := m.Client()
	text("client", name)
	text("client version", version)
	return got
}

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

var messages = []struct {
	name string
	raw  string
	want parts
}{
	{"a request without params", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, parts{"kind": "request", "id": "1", "method": "ping"}},
	{"a call", ` { "jsonrpc" : "2.0" , "id" : "a" , "method" : "tools/call" , "params" : { "name" : "safe" , "arguments" : { "a" : 1 } } } `,
		parts{"kind": "request", "id": `"a"`, "method": "tools/call", "name": "safe", "arguments": `{ "a" : 1 }`, "params": `{ "name" : "safe" , "arguments" : { "a" : 1 } }`}},
	{"a call, its method last", `{"params":{"arguments":null,"name":"safe"},"id":-5,"method":"tools/call","jsonrpc":"2.0"}`,
		parts{"kind": "request", "id": "-5", "method": "tools/call", "name": "safe", "params": `{"arguments":null,"name":"safe"}`}},
	{"escapes in every text", `{"js\u006fnrpc":"\u0032.0","\u0069d":"\u0061","method":"tools\/call","params":{"n\u0061me":"s\u0061fe"}}`,
		parts{"kind": "request", "id": `"\u0061"`, "method": "tools/call", "name": "safe", "params": `{"n\u0061me":"s\u0061fe"}`}},
	{"a modern call", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"agent","version":"1.2"},"progressToken":"p",` +
		`"dev.sluice/run":"r","dev.sluice/approval":"ap","traceparent":"` + trace + `","tracestate":"a=b","baggage":"k=v"}}}`,
		parts{"kind": "request", "id": "1", "method": "tools/call", "name": "safe", "meta version": "2026-07-28", "meta capabilities": `{"roots":{}}`, "client": "agent",
			"client version": "1.2", "meta token": `"p"`, "run": "r", "approval": "ap", "traceparent": trace, "tracestate": "a=b"}},
	{"initialize", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"sampling":{}},"clientInfo":{"version":"2","title":"x","name":"ins\u0070ector"}}}`,
		parts{"kind": "request", "id": "0", "method": "initialize", "version": "2025-06-18", "capabilities": `{"sampling":{}}`, "client": "inspector", "client version": "2"}},
	{"initialize, where only _meta names the client", request("initialize", `{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"agent"}}}`),
		parts{"kind": "request", "id": "1", "method": "initialize", "client": "agent"}},
	{"initialize, where _meta names another client", request("initialize", `{"clientInfo":{"name":"a"},"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"b"}}}`),
		parts{"kind": "request", "id": "1", "method": "initialize", "client": "a"}},
	{"a prompt, whose name may be any text", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"Grüße an alle!"}}`,
		parts{"kind": "request", "id": "1", "method": "prompts/get", "name": "Grüße an alle!"}},
	{"a resource", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:\/\/\/a"}}`,
		parts{"kind": "request", "id": "1", "method": "resources/read", "uri": "file:///a"}},
	{"a list of resources", `{"jsonrpc":"2.0","id":1,"method":"resources/list","params":{"cursor":"c"}}`,
		parts{"kind": "request", "id": "1", "method": "resources/list"}},
	{"a name where the method has none", `{"jsonrpc":"2.0","id":1,"method":"custom/x","params":{"name":{},"uri":5,"requestId":{}}}`,
		parts{"kind": "request", "id": "1", "method": "custom/x"}},
	{"a notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, parts{"kind": "notification", "method": "notifications/initialized"}},
	{"a cancellation", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q","reason":"x"}}`,
		parts{"kind": "notification", "method": "notifications/cancelled", "requestId": `"q"`}},
	{"a progress", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":0.5}}`,
		parts{"kind": "notification", "method": "notifications/progress", "progressToken": "7"}},
	{"a response", `{"jsonrpc":"2.0","id":3,"result":{"action":"accept"}}`, parts{"kind": "response", "id": "3", "result": `{"action":"accept"}`}},
	{"an error", `{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"no"}}`, parts{"kind": "response", "id": "3", "error": `{"code":-32601,"message":"no"}`}},
	{"a broken trace", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":5,"tracestate":"` + strings.Repeat("x", 513) + `","baggage":null}}}`,
		parts{"kind": "request", "id": "1", "method": "ping"}},
	{"a client that says too much of itself", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"` + strings.Repeat("x", 129) + `","version":{"name":1}}}}`,
		parts{"kind": "request", "id": "1", "method": "initialize"}}}

func TestParse_ReturnsPositionOfEachPart(t *testing.T) {
	t.Parallel()
	for _, tt := range messages {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := partsOf(accepted(t, tt.raw))
			for _, whole := range []string{"params", "meta"} { // compared only if the test case contains them
				if _, ok := tt.want[whole]; !ok {
					delete(got, whole)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Parse(%s) (-want +got)\n%s", tt.raw, diff)
			}
		})
	}
}

var notJSONRPC = []refusal{
	{"nothing", "", invalid},
	{"a string", `"x"`, rpc},
	{"null", "null", rpc},
	{"a number", "1", rpc},
	{"an empty object", "{}", rpc},
	{"no version", `{"id":1,"method":"ping"}`, rpc},
	{"version 1.0", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, rpc},
	{"version 2", `{"jsonrpc":"2","id":1,"method":"ping"}`, rpc},
	{"the number 2.0", `{"jsonrpc":2.0,"id":1,"method":"ping"}`, rpc},
	{"a version with a space", `{"jsonrpc":"2.0 ","id":1,"method":"ping"}`, rpc},
	{"a version of null", `{"jsonrpc":null,"id":1,"method":"ping"}`, rpc},
	{"a method and a result", `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, rpc},
	{"a method and an error", `{"jsonrpc":"2.0","id":1,"method":"ping","error":{}}`, rpc},
	{"a method and a result of null", `{"jsonrpc":"2.0","id":1,"method":"ping","result":null}`, rpc},
	{"a result and an error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, rpc},
	{"a result and an error of null", `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, rpc},
	{"a result and params", `{"jsonrpc":"2.0","id":1,"result":{},"params":{}}`, rpc},
	{"a result that is a list", `{"jsonrpc":"2.0","id":1,"result":[]}`, rpc},
	{"a result that is null", `{"jsonrpc":"2.0","id":1,"result":null}`, rpc},
	{"an error that is a string", `{"jsonrpc":"2.0","id":1,"error":"x"}`, rpc},
	{"neither method nor result", `{"jsonrpc":"2.0","id":1}`, rpc},
	{"neither, with params", `{"jsonrpc":"2.0","id":1,"params":{}}`, rpc},
	{"an unknown key", `{"jsonrpc":"2.0","id":1,"method":"ping","auth":1}`, rpc},
	{"cut off", `{"jsonrpc":"2.0","id":1,"method":"ping"`, invalid},
	{"a comma too many", `{"jsonrpc":"2.0","id":1,"method":"ping",}`, invalid},
	{"a comma at first", `{,"jsonrpc":"2.0","id":1,"method":"ping"}`, invalid},
	{"a comma too few", `{"jsonrpc":"2.0" "id":1,"method":"ping"}`, invalid},
	{"two colons", `{"jsonrpc"::"2.0","id":1,"method":"ping"}`, invalid},
	{"an equals sign for a colon", `{"jsonrpc"="2.0","id":1,"method":"ping"}`, invalid},
	{"no colon", `{"jsonrpc" "2.0","id":1,"method":"ping"}`, invalid},
	{"a semicolon for a comma", `{"jsonrpc":"2.0";"id":1,"method":"ping"}`, invalid},
	{"no value", `{"jsonrpc":,"id":1,"method":"ping"}`, invalid},
	{"a bare key", `{jsonrpc:"2.0","id":1,"method":"ping"}`, invalid},
	{"single quotes", `{'jsonrpc':'2.0','id':1,'method':'ping'}`, invalid},
	{"a comment", `{"jsonrpc":"2.0",/**/"id":1,"method":"ping"}`, invalid},
	{"a list that ends as an object", toolCall(`{"a":[1}}`), invalid},
	{"a list with a comma too many", toolCall(`{"a":[1,]}`), invalid},
	{"a list with a comma too few", toolCall(`{"a":[1 2]}`), invalid},
	{"half a literal", toolCall(`{"a":tru}`), invalid},
	{"a literal and more", toolCall(`{"a":truex}`), invalid},
	{"a literal in capitals", toolCall(`{"a":True}`), invalid},
	{"undefined", toolCall(`{"a":undefined}`), invalid},
	{"NaN", toolCall(`{"a":NaN}`), invalid},
	{"a leading zero", toolCall(`{"a":-012}`), invalid},
	{"a plus", toolCall(`{"a":+1}`), invalid},
	{"digits of another script", toolCall(`{"a":٣}`), invalid},

	{"a prompt without a name", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{}}`, badParams},
	{"a prompt without params", `{"jsonrpc":"2.0","id":1,"method":"prompts/get"}`, badParams},
	{"a prompt whose name is too long", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"` + strings.Repeat("n", 4097) + `"}}`, badParams},
	{"a resource whose URI is too long", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x:` + strings.Repeat("u", 4095) + `"}}`, badParams},
	{"a prompt whose name is a list", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":["x"]}}`, badParams},
	{"a resource without a URI", `{"jsonrpc":"2.0","id":1,"method":"resources/read"}`, badParams},
	{"a subscription without a URI", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{}}`, badParams},
	{"a resource whose URI is null", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":null}}`, badParams},
	{"another method's URI of a wrong type", `{"jsonrpc":"2.0","id":1,"method":"resources/x","params":{"uri":{}}}`, badParams},
	{"a protocol version that is a number", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":20250618}}`, badParams},
	{"a protocol version that is long", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + strings.Repeat("2", 65) + `"}}`, badParams},
	{"a protocol version in _meta that is null", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":null}}}`, badParams}}

func TestParse_RefusesInvalidJSONRPC(t *testing.T) {
	t.Parallel()
	refused(t, notJSONRPC)
}

func TestParse_RefusesTruncatedMessages(t *testing.T) {
	t.Parallel()
	raws := []string{modern, toolCall(`{"v":["\u0041\ud83d\ude00",true,false,null,-1.5e+3,{}],"w":{"k":[]}}`)}
	for _, tt := range messages {
		raws = append(raws, strings.TrimSpace(tt.raw))
	}
	for _, raw := range raws {
		for end := range len(raw) {
			got := codeOf(t, raw[:end])
			// A truncated message that ends inside a character or between two surrogates may also be refused because of
			// its encoding.
			if got != invalid && (got != encoding || utf8.ValidString(raw[:end]) && !strings.Contains(raw[:end], `\ud83d`)) {
				t.Errorf("%q: got %v", raw[:end], got)
			}
		}
	}
}

func TestParse_HandlesInMetaMustBeShortStrings(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"dev.sluice/run", "dev.sluice/approval"} {
		for _, value := range []string{`1`, `null`, `{}`, `[]`, `true`, `"` + strings.Repeat("x", 129) + `"`, `"` + strings.Repeat("é", 65) + `"`} {
			if got := codeOf(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"`+key+`":`+value+`}}}`); got != commonv1.Code_CODE_PARAMS_INVALID {
				t.Errorf("%s is %s: got %v", key, value, got)
			}
		}
		accepted(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"`+key+`":"`+strings.Repeat("é", 64)+`"}}}`)
	}
	for _, value := range []string{`1.5`, `null`, `{}`, `[]`, `true`, `-0`, `9007199254740992`, `""`, `"` + strings.Repeat("x", 129) + `"`} {
		if got := codeOf(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":`+value+`}}}`); got != commonv1.Code_CODE_PARAMS_INVALID {
			t.Errorf("the progress token is %s: got %v", value, got)
		}
	}
}

// Case I2. No member of a message determines the caller's identity. Only Client returns what the client declares about
// itself, and no key contains a principal.
func TestParse_NoMemberBecomesAnIdentity(t *testing.T) {
	t.Parallel()
	m := accepted(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","_meta":{"baggage":"sluice-principal=root",`+
		`"dev.sluice/principal":"root","dev.sluice/decision":{"code":"allowed"},"sluice-principal":"root","io.modelcontextprotocol/clientInfo":{"name":"root","role":"operator"}}}}`)
	if name, _ := m.Client(); name != "root" {
		t.Errorf("the client's claim is %q", name)
	}
	out, err := m.Outgoing(jsonrpc.Trace{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"dev.sluice/", "baggage"} {
		if strings.Contains(string(out.Raw), key) {
			t.Errorf("%s went on to the upstream: %s", key, out.Raw)
		}
	}
}
