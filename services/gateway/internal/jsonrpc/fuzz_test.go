package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// The fuzz tests compare the parser with the standard package encoding/json. That package ignores the case of keys, and
// uses the last member if an object has the same key twice. If the parser accepts a message, the parser and
// encoding/json must read the same content from the message.

// decode decodes raw with encoding/json. Numbers keep their original spelling.
func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		t.Fatalf("the standard package refuses %q: %v", raw, err)
	}
}

func tree(t *testing.T, raw []byte) (value any) {
	t.Helper()
	if raw != nil {
		decode(t, raw, &value)
	}
	return value
}

// caseInsensitive receives a message from a parser that ignores the case of keys.
type caseInsensitive struct {
	Method  any
	ID      any
	Jsonrpc any
	Result  any
	Error   any
	Params  struct {
		Name, Arguments, URI any
		Meta                 map[string]any `json:"_meta"`
	}
}

func same(t *testing.T, raw []byte, what string, got, want any) {
	t.Helper()
	// cmp.Diff would take exponential time for values that are nested this deeply.
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s of %q\n the gate: %#v\nstandard: %#v", what, raw, got, want)
	}
}

// sameAsStandard fails the test unless encoding/json and the parser read the same content from the bytes of m.
func sameAsStandard(t *testing.T, m *jsonrpc.Message) {
	t.Helper()
	var other caseInsensitive
	decode(t, m.Raw, &other)
	same(t, m.Raw, "the version", any("2.0"), other.Jsonrpc)
	same(t, m.Raw, "the id", tree(t, m.ID.Of(m.Raw)), other.ID)
	same(t, m.Raw, "the result", tree(t, m.Result.Of(m.Raw)), other.Result)
	same(t, m.Raw, "the error", tree(t, m.Error.Of(m.Raw)), other.Error)
	same(t, m.Raw, "the arguments", tree(t, m.Arguments.Of(m.Raw)), other.Params.Arguments)
	text := func(what, got string, want any) {
		t.Helper()
		if s, ok := want.(string); ok || got != "" {
			same(t, m.Raw, what, got, s)
		}
	}
	text("the method", m.Method, other.Method)
	if m.Method == "tools/call" || m.Method == "prompts/get" {
		text("the name", m.Name, other.Params.Name)
	}
	if strings.HasPrefix(m.Method, "resources/") {
		text("the URI", m.URI, other.Params.URI)
	}
	meta := other.Params.Meta
	text("the run", m.Meta.Run, meta["dev.sluice/run"])
	text("the approval", m.Meta.Approval, meta["dev.sluice/approval"])
	text("the revision", m.Meta.ProtocolVersion, meta["io.modelcontextprotocol/protocolVersion"])
	same(t, m.Raw, "the progress token", tree(t, m.Meta.ProgressToken.Of(m.Raw)), meta["progressToken"])
}

// expectedOutgoing returns the expected result of Outgoing. It computes this result from the values that encoding/json
// has decoded.
func expectedOutgoing(message map[string]any, trace jsonrpc.Trace) map[string]any {
	params, _ := message["params"].(map[string]any)
	meta, _ := params["_meta"].(map[string]any)
	for key, value := range map[string]string{"traceparent": trace.Parent, "tracestate": trace.State, "baggage": trace.Baggage} {
		if _, carried := meta[key]; carried && value != "" {
			meta[key] = value
		} else {
			delete(meta, key)
		}
	}
	for key := range meta {
		if strings.HasPrefix(key, "dev.sluice/") {
			delete(meta, key)
		}
	}
	return message
}

func FuzzParse(f *testing.F) {
	for _, table := range [][]refusal{duplicateNames, duplicatesInside, trailingBytes, batches, notJSONRPC} {
		for _, tt := range table {
			f.Add([]byte(tt.raw))
		}
	}
	for _, tt := range messages {
		f.Add([]byte(tt.raw))
	}
	for _, tt := range outgoings {
		f.Add([]byte(tt.raw))
	}
	for _, extra := range []string{modern, wide(20, [2]int{0, 0}), toolCall(`{"v":[1e400,1.5,-0,"\ud83d\ude00",9223372036854775808]}`),
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","METHOD":"tools/call"}`, "\ufeff" + ping, toolCall("{\"a\":\"\xff\"}")} {
		f.Add([]byte(extra))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		m, err := jsonrpc.Parse(raw, jsonrpc.DefaultLimits())
		if !bytes.Equal(raw, before) {
			t.Fatalf("Parse changed %q", before)
		}
		if err != nil {
			refusalCode(t, string(raw), m == nil, err)
			return
		}
		if !jsontext.Value(raw).IsValid() {
			t.Fatalf("jsontext refuses %q", raw)
		}
		sameAsStandard(t, m)
		m.Client()
		for _, trace := range []jsonrpc.Trace{{}, {Parent: "p"}, {Parent: "p", State: "s=\"", Baggage: "b"}} {
			checkOutgoing(t, m, trace)
		}
	})
}

func checkOutgoing(t *testing.T, m *jsonrpc.Message, trace jsonrpc.Trace) {
	t.Helper()
	sent, err := m.Outgoing(trace, nil)
	if err != nil {
		t.Fatalf("prepare %q: %v", m.Raw, err)
	}
	checkReparse(t, sent)
	sameAsStandard(t, sent)
	want := tree(t, m.Raw).(map[string]any)
	if m.Kind != jsonrpc.Response {
		want = expectedOutgoing(want, trace)
	}
	same(t, m.Raw, "the forwarded message", tree(t, sent.Raw), any(want))
	same(t, m.Raw, "the arguments' bytes", string(sent.Arguments.Of(sent.Raw)), string(m.Arguments.Of(m.Raw)))
	same(t, m.Raw, "the name", sent.Name, m.Name)
	if sent.Meta.Run != "" || sent.Meta.Approval != "" {
		t.Errorf("%q became %q", m.Raw, sent.Raw)
	}
}

// foldKey converts a key to lower case, and replaces other characters that fold to ASCII letters.
func foldKey(key string) string {
	return strings.ToLower(strings.NewReplacer("\u017f", "s", "\u212a", "k", "\u0130", "i", "\u0131", "i").Replace(key))
}

func isReserved(key string) bool { return strings.HasPrefix(foldKey(key), "dev.sluice/") }

func withoutReserved(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = withoutReserved(v[i])
		}
	case map[string]any:
		for key, child := range v {
			if meta, ok := child.(map[string]any); ok && foldKey(key) == "_meta" {
				dropReserved(meta)
			}
			v[key] = withoutReserved(child)
		}
	}
	return value
}

func dropReserved(object map[string]any) {
	for key := range object {
		if isReserved(key) {
			delete(object, key)
		}
	}
}

func listed(tools []any) []any {
	visible := []any{}
	for _, element := range tools {
		tool, _ := element.(map[string]any)
		name, _ := tool["name"].(string)
		for key := range tool {
			if key != "name" && foldKey(key) == "name" {
				name = ""
			}
		}
		if name != "" && name[0] != 'h' {
			visible = append(visible, element)
		}
	}
	return visible
}

func hidden(tool jsonrpc.Tool) bool { return tool.Name == "" || tool.Name[0] == 'h' }

func FuzzReadAnswer(f *testing.F) {
	for _, table := range [][]refusal{badAnswers, duplicatesInside, notJSONRPC} {
		for _, tt := range table {
			if len(tt.raw) < 1<<16 {
				f.Add([]byte(tt.raw))
			}
		}
	}
	for _, tt := range answers {
		f.Add([]byte(tt.raw))
	}
	for _, tt := range unclean {
		f.Add([]byte(tt.raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		checkReadAnswer(t, raw)
		// Most fuzzing inputs are not JSON-RPC messages, so each input is also tested as a value inside a response.
		checkReadAnswer(t, []byte(`{"jsonrpc":"2.0","id":1,"result":{"v":`+string(raw)+`}}`))
	})
}

func checkReadAnswer(t *testing.T, raw []byte) {
	t.Helper()
	a, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	valid := jsontext.Value(raw).IsValid()
	if err != nil {
		code := refusalCode(t, string(raw), a == nil, err)
		if valid && slices.Contains([]commonv1.Code{invalid, dup, encoding, trailing}, code) {
			t.Fatalf("%q: %v, and yet jsontext accepts it", raw, err)
		}
		return
	}
	if !valid {
		t.Fatalf("jsontext refuses %q", raw)
	}
	out, err := jsonrpc.ApplyEdits(raw, a.Clean(hidden)...)
	if err != nil {
		t.Fatalf("splice %q: %v", raw, err)
	}
	reread, err := jsonrpc.ReadAnswer(out, jsonrpc.AnswerLimits())
	if err != nil {
		t.Fatalf("%q became %q: %v", raw, out, err)
	}
	if len(reread.Clean(hidden)) != 0 {
		t.Errorf("%q became %q, which is not clean", raw, out)
	}
	want := tree(t, raw).(map[string]any)
	if result, ok := want["result"].(map[string]any); ok {
		if tools, ok := result["tools"].([]any); ok {
			result["tools"] = listed(tools)
		}
	}
	if failure, ok := want["error"].(map[string]any); ok {
		if data, ok := failure["data"].(map[string]any); ok {
			dropReserved(data)
		}
	}
	same(t, raw, "the clean answer", tree(t, out), withoutReserved(want))
	if a.ToolList.Present() {
		checkAdd(t, a, want)
	}
	if a.Kind == jsonrpc.Response {
		checkAddressed(t, a)
	}
	var other struct{ ID, Result, Error any }
	decode(t, raw, &other)
	same(t, raw, "the result", tree(t, a.Result.Of(raw)), other.Result)
	same(t, raw, "the error", tree(t, a.Error.Of(raw)), other.Error)
	same(t, raw, "the id", tree(t, a.ID.Of(raw)), other.ID)
}

// checkAddressed parses the bytes that WithID returns, and compares the result with the spans in the Answer that WithID
// returns.
func checkAddressed(t *testing.T, a *jsonrpc.Answer) {
	t.Helper()
	roomy := jsonrpc.AnswerLimits()
	roomy.Bytes += 1 << 10
	for _, id := range []string{`7`, `"0192f4a0-aaaa-bbbb-cccc-0123456789ab"`} {
		addressed, err := a.WithID([]byte(id))
		if err != nil {
			t.Fatalf("%q for %s: %v", a.Raw, id, err)
		}
		read, err := jsonrpc.ReadAnswer(addressed.Raw, roomy)
		if err != nil {
			t.Fatalf("%q became %q: %v", a.Raw, addressed.Raw, err)
		}
		if got := string(addressed.ID.Of(addressed.Raw)); got != id {
			t.Errorf("%q has the id %s, want %s", addressed.Raw, got, id)
		}
		if diff := cmp.Diff(read, addressed, cmpopts.IgnoreUnexported(jsonrpc.Answer{}, jsonrpc.Tool{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q does not read as it says (-read +says):\n%s", addressed.Raw, diff)
		}
		if diff := cmp.Diff(read.Clean(hidden), addressed.Clean(hidden), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q is not cleaned as it reads (-read +says):\n%s", addressed.Raw, diff)
		}
	}
}

// checkAdd applies the edits of AppendTool and Clean, and compares the resulting list with the expected list.
func checkAdd(t *testing.T, a *jsonrpc.Answer, want map[string]any) {
	t.Helper()
	const tool = `{"name":"ours"}`
	out, err := jsonrpc.ApplyEdits(a.Raw, append(a.Clean(hidden), a.AppendTool([]byte(tool), hidden))...)
	if err != nil {
		t.Fatalf("splice %q: %v", a.Raw, err)
	}
	if result, ok := want["result"].(map[string]any); ok {
		result["tools"] = append(result["tools"].([]any), tree(t, []byte(tool)))
	}
	same(t, a.Raw, "the list with a tool", tree(t, out), want)
}

func FuzzSameID(f *testing.F) {
	for _, id := range []string{`1`, `"1"`, `"\u0031"`, `-0`, `1.0`, `null`, `"\ud83d\ude00"`} {
		f.Add([]byte(id), []byte(`"😀"`))
		f.Add([]byte(id), []byte(`1`))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		isValue := func(v []byte) bool { return jsontext.Value(v).IsValid() && len(bytes.TrimSpace(v)) == len(v) }
		if !isValue(a) || !isValue(b) {
			jsonrpc.SameID(a, b)
			return
		}
		usable := func(v any) bool {
			n, isNumber := v.(json.Number)
			_, isText := v.(string)
			return isText || isNumber && n != "-0" && !strings.ContainsAny(n.String(), ".eE")
		}
		x, y := tree(t, a), tree(t, b)
		want := usable(x) && usable(y) && x == y
		if got := jsonrpc.SameID(a, b); got != want {
			t.Errorf("SameID(%q, %q) is %v, want %v", a, b, got, want)
		}
	})
}
