package jsonrpc_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func TestSplice_AppliesEdits(t *testing.T) {
	t.Parallel()
	edit := func(start, end int, with string) jsonrpc.Edit {
		return jsonrpc.Edit{Span: jsonrpc.Span{Start: start, End: end}, With: []byte(with)}
	}
	tests := []struct {
		name  string
		edits []jsonrpc.Edit
		want  string // empty if the edits are refused
	}{
		{"nothing", nil, "0123456789"},
		{"a replacement", []jsonrpc.Edit{edit(2, 4, "xyz")}, "01xyz456789"},
		{"a removal", []jsonrpc.Edit{edit(2, 4, "")}, "01456789"},
		{"an insertion", []jsonrpc.Edit{edit(2, 2, "x")}, "01x23456789"},
		{"at both ends", []jsonrpc.Edit{edit(0, 1, "a"), edit(9, 10, "b")}, "a12345678b"},
		{"beyond the last byte", []jsonrpc.Edit{edit(10, 10, "x")}, "0123456789x"},
		{"out of order", []jsonrpc.Edit{edit(8, 9, "b"), edit(2, 3, "a")}, "01a34567b9"},
		{"side by side", []jsonrpc.Edit{edit(2, 4, "a"), edit(4, 6, "b")}, "01ab6789"},
		{"an insertion before a removal at the same place", []jsonrpc.Edit{edit(2, 4, ""), edit(2, 2, "x")}, "01x456789"},
		{"two insertions at the same place", []jsonrpc.Edit{edit(2, 2, "x"), edit(2, 2, "y")}, "01xy23456789"},
		{"everything", []jsonrpc.Edit{edit(0, 10, "x")}, "x"},
		{"overlapping", []jsonrpc.Edit{edit(2, 5, "x"), edit(4, 6, "y")}, ""},
		{"one in the other", []jsonrpc.Edit{edit(2, 8, ""), edit(4, 5, "y")}, ""},
		{"twice the same", []jsonrpc.Edit{edit(2, 3, "x"), edit(2, 3, "x")}, ""},
		{"backwards", []jsonrpc.Edit{edit(5, 2, "x")}, ""},
		{"beyond the end", []jsonrpc.Edit{edit(9, 11, "x")}, ""},
		{"before the start", []jsonrpc.Edit{edit(-1, 2, "x")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			raw := []byte("0123456789")
			given := append([]jsonrpc.Edit(nil), tt.edits...)
			got, err := jsonrpc.ApplyEdits(raw, tt.edits...)
			if tt.want == "" && !errors.Is(err, jsonrpc.ErrSplice) || tt.want != "" && err != nil {
				t.Fatalf("Splice(%v): %v", tt.edits, err)
			}
			if string(got) != tt.want {
				t.Errorf("Splice(%v)\n got %s\nwant %s", tt.edits, got, tt.want)
			}
			if string(raw) != "0123456789" || !cmp.Equal(given, tt.edits) {
				t.Error("Splice changed what it was given")
			}
		})
	}
}

// forwarded returns raw in the form in which the gateway forwards it to a server. It fails the test if the parser does
// not accept the result.
func forwarded(t *testing.T, raw string, trace jsonrpc.Trace) string {
	t.Helper()
	sent, err := accepted(t, raw).Outgoing(trace, nil)
	if err != nil {
		t.Fatalf("prepare %s: %v", raw, err)
	}
	checkReparse(t, sent)
	return string(sent.Raw)
}

var (
	parent = jsonrpc.Trace{Parent: "P"}
	all    = jsonrpc.Trace{Parent: "P", State: "S", Baggage: "B"}
)

var outgoings = []struct {
	name  string
	raw   string
	trace jsonrpc.Trace
	want  string
}{
	{"nothing to do", ping, jsonrpc.Trace{}, ping},
	{"nothing to do, with params", pingWith(`{}`), jsonrpc.Trace{}, pingWith(`{}`)},
	{"nothing to do, with _meta", pingMeta(`{ "a" : 1 }`), jsonrpc.Trace{}, pingMeta(`{ "a" : 1 }`)},
	{"a member replaced", pingMeta(`{"a":1,"traceparent" : "x" ,"b":2}`), parent, pingMeta(`{"a":1,"traceparent" : "P" ,"b":2}`)},
	{"a member of another type replaced", pingMeta(`{"traceparent":{"a":[1]}}`), parent, pingMeta(`{"traceparent":"P"}`)},
	{"all replaced", pingMeta(`{"baggage":"x","tracestate":"x","traceparent":"x"}`), all, pingMeta(`{"baggage":"B","tracestate":"S","traceparent":"P"}`)},
	{"one replaced, one removed, none made", pingMeta(`{"tracestate":"x","baggage":"x","a":1}`), jsonrpc.Trace{Parent: "P", State: "S"}, pingMeta(`{"tracestate":"S","a":1}`)},
	{"none made", ping, all, ping},
	{"none made in _meta", pingMeta(`{"dev.sluice/run":"x","a":1}`), all, pingMeta(`{"a":1}`)},
	{"all removed", pingMeta(`{"baggage":"x","tracestate":"x","traceparent":"x"}`), jsonrpc.Trace{}, pingMeta(`{}`)},
	{"the first removed", pingMeta(`{ "dev.sluice/run":"x" , "a":1 }`), jsonrpc.Trace{}, pingMeta(`{ "a":1 }`)},
	{"the last removed", pingMeta(`{ "a":1 , "dev.sluice/run":"x" }`), jsonrpc.Trace{}, pingMeta(`{ "a":1 }`)},
	{"the middle removed", pingMeta(`{"a":1,"dev.sluice/run":"x","b":2}`), jsonrpc.Trace{}, pingMeta(`{"a":1,"b":2}`)},
	{"the only one removed", pingMeta(`{ "dev.sluice/run":"x" }`), jsonrpc.Trace{}, pingMeta(`{  }`)},
	{"neighbours removed at the end", pingMeta(`{"a":1,"dev.sluice/run":"x","dev.sluice/approval":"y","baggage":"z"}`), jsonrpc.Trace{}, pingMeta(`{"a":1}`)},
	{"neighbours removed at the start", pingMeta(`{"dev.sluice/run":"x","dev.sluice/approval":"y","a":1}`), jsonrpc.Trace{}, pingMeta(`{"a":1}`)},
	{"every other one removed", pingMeta(`{"dev.sluice/run":"x","a":1,"dev.sluice/approval":"y","b":2,"dev.sluice/z":null}`), jsonrpc.Trace{}, pingMeta(`{"a":1,"b":2}`)},
	{"every other one removed, the first kept", pingMeta(`{"a":1,"dev.sluice/run":"x","b":2,"dev.sluice/approval":"y","c":3}`), jsonrpc.Trace{}, pingMeta(`{"a":1,"b":2,"c":3}`)},
	{"removed next to one that is replaced", pingMeta(`{"traceparent":"x","dev.sluice/run":"x"}`), parent, pingMeta(`{"traceparent":"P"}`)},
	{"keys with escapes", pingMeta(`{"dev.sluice\/run":"x","trac\u0065parent":"x"}`), parent, pingMeta(`{"trac\u0065parent":"P"}`)},
	{"unknown keys of the gateway's", pingMeta(`{"dev.sluice/decision":{"code":"allowed"},"dev.sluice/":[]}`), jsonrpc.Trace{}, pingMeta(`{}`)},
	{"keys elsewhere stay", pingWith(`{"dev.sluice/run":"x","a":{"_meta":{"dev.sluice/run":"y"}}}`), jsonrpc.Trace{}, pingWith(`{"dev.sluice/run":"x","a":{"_meta":{"dev.sluice/run":"y"}}}`)},
	{"a value with quotes", pingMeta(`{"tracestate":""}`), jsonrpc.Trace{State: "a=\"\\\n"}, pingMeta(`{"tracestate":"a=\"\\\n"}`)},
	{"a value that is not UTF-8", pingMeta(`{"tracestate":"x"}`), jsonrpc.Trace{State: "\xff"}, pingMeta(`{}`)},
	{"a response", `{"jsonrpc":"2.0","id":1,"result":{}}`, all, `{"jsonrpc":"2.0","id":1,"result":{}}`},
	{"a notification", `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"dev.sluice/run":"x"}}}`, jsonrpc.Trace{}, `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{}}}`}}

func TestOutgoing_ReplacesTraceAndRemovesReservedMembers(t *testing.T) {
	t.Parallel()
	for _, tt := range outgoings {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := forwarded(t, tt.raw, tt.trace); got != tt.want {
				t.Errorf("forwarding %s\n got %s\nwant %s", tt.raw, got, tt.want)
			}
		})
	}
}

func TestOutgoing_MovesSpansAfterEdits(t *testing.T) {
	t.Parallel()
	m := accepted(t, `{"method":"tools/call","params":{"_meta":{"dev.sluice/run":"x","traceparent":"longer than ours","progressToken":"p"},"name":"fs__read","arguments":{"n":1.0}},"id":"a","jsonrpc":"2.0"}`)
	sent, err := m.Outgoing(jsonrpc.Trace{Parent: "P"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkReparse(t, sent)
	out, err := jsonrpc.ApplyEdits(sent.Raw, jsonrpc.Edit{Span: sent.ID, With: []byte("7")}, jsonrpc.Edit{Span: sent.NameValue, With: []byte(`"read"`)}, jsonrpc.Edit{Span: sent.Meta.ProgressToken, With: []byte("8")})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"method":"tools/call","params":{"_meta":{"traceparent":"P","progressToken":8},"name":"read","arguments":{"n":1.0}},"id":7,"jsonrpc":"2.0"}`
	if string(out) != want {
		t.Errorf("got %s\nwant %s", out, want)
	}
	if !strings.Contains(string(m.Raw), "fs__read") || m.Meta.Run != "x" {
		t.Error("what was judged was changed")
	}
}

// Outgoing replaces the client's declared capabilities. The spans of later members must refer to the new bytes.
func TestOutgoing_ReplacesCapabilities(t *testing.T) {
	t.Parallel()
	const before, claims = `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_meta":{"dev.sluice/run":"x","io.modelcontextprotocol/clientCapabilities":{"roots":{}, "x":1},"traceparent":"t","progressToken":"p"},"name":"n","arguments":{},"inputResponses":{"k":1}}}`, `{"roots":{}}`
	const want = `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":{}},"traceparent":"P","progressToken":"p"},"name":"n","arguments":{},"inputResponses":{"k":1}}}`
	sent, err := accepted(t, before).Outgoing(jsonrpc.Trace{Parent: "P"}, []byte(claims))
	if err != nil || string(sent.Raw) != want {
		t.Fatalf("got %s, %v\nwant %s", sent.Raw, err, want)
	}
	checkReparse(t, sent)
	same := accepted(t, want)
	for name, claimed := range map[string][]byte{"the same": []byte(claims), "nothing": nil} {
		if sent, err := same.Outgoing(jsonrpc.Trace{Parent: "P"}, claimed); err != nil || string(sent.Raw) != want {
			t.Errorf("%s: got %s, %v", name, sent.Raw, err)
		}
	}
	if sent, err := accepted(t, `{"jsonrpc":"2.0","id":1,"method":"ping"}`).Outgoing(jsonrpc.Trace{}, []byte(claims)); err != nil || strings.Contains(string(sent.Raw), "roots") {
		t.Errorf("a message that claims nothing became %s, %v", sent.Raw, err)
	}
}

func checkReparse(t *testing.T, m *jsonrpc.Message) {
	t.Helper()
	roomy := jsonrpc.Limits{Bytes: math.MaxInt, Depth: 70, Tokens: 11_000, KeyBytes: 256, NumberBytes: 64, IDBytes: 128}
	read, err := jsonrpc.Parse(m.Raw, roomy)
	if err != nil {
		t.Fatalf("%s is refused: %v", m.Raw, err)
	}
	if diff := cmp.Diff(read, m, cmpopts.IgnoreUnexported(jsonrpc.Message{}, jsonrpc.Meta{})); diff != "" {
		t.Errorf("%s does not read as it says (-read +says):\n%s", m.Raw, diff)
	}
	name, version := m.Client()
	if other, otherVersion := read.Client(); name != other || version != otherVersion {
		t.Errorf("%s is of the client %q %q, read as %q %q", m.Raw, name, version, other, otherVersion)
	}
}
