package gate_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

func TestSplice(t *testing.T) {
	t.Parallel()
	edit := func(start, end int, with string) gate.Edit {
		return gate.Edit{Span: gate.Span{Start: start, End: end}, With: []byte(with)}
	}
	tests := []struct {
		name  string
		edits []gate.Edit
		want  string // empty: refused
	}{
		{"nothing", nil, "0123456789"},
		{"a replacement", []gate.Edit{edit(2, 4, "xyz")}, "01xyz456789"},
		{"a removal", []gate.Edit{edit(2, 4, "")}, "01456789"},
		{"an insertion", []gate.Edit{edit(2, 2, "x")}, "01x23456789"},
		{"at both ends", []gate.Edit{edit(0, 1, "a"), edit(9, 10, "b")}, "a12345678b"},
		{"beyond the last byte", []gate.Edit{edit(10, 10, "x")}, "0123456789x"},
		{"out of order", []gate.Edit{edit(8, 9, "b"), edit(2, 3, "a")}, "01a34567b9"},
		{"side by side", []gate.Edit{edit(2, 4, "a"), edit(4, 6, "b")}, "01ab6789"},
		{"an insertion before a removal at the same place", []gate.Edit{edit(2, 4, ""), edit(2, 2, "x")}, "01x456789"},
		{"two insertions at the same place", []gate.Edit{edit(2, 2, "x"), edit(2, 2, "y")}, "01xy23456789"},
		{"everything", []gate.Edit{edit(0, 10, "x")}, "x"},
		{"overlapping", []gate.Edit{edit(2, 5, "x"), edit(4, 6, "y")}, ""},
		{"one in the other", []gate.Edit{edit(2, 8, ""), edit(4, 5, "y")}, ""},
		{"twice the same", []gate.Edit{edit(2, 3, "x"), edit(2, 3, "x")}, ""},
		{"backwards", []gate.Edit{edit(5, 2, "x")}, ""},
		{"beyond the end", []gate.Edit{edit(9, 11, "x")}, ""},
		{"before the start", []gate.Edit{edit(-1, 2, "x")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			raw := []byte("0123456789")
			given := append([]gate.Edit(nil), tt.edits...)
			got, err := gate.Splice(raw, tt.edits...)
			if tt.want == "" && !errors.Is(err, gate.ErrSplice) || tt.want != "" && err != nil {
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

// forwarded returns raw as it goes to an upstream, and checks that it passes
// the gate again.
func forwarded(t *testing.T, raw string, trace gate.Trace) string {
	t.Helper()
	m := accepted(t, raw)
	out, err := gate.Splice(m.Raw, m.Forward(trace)...)
	if err != nil {
		t.Fatalf("splice %s: %v", raw, err)
	}
	accepted(t, string(out))
	return string(out)
}

var (
	parent = gate.Trace{Parent: "P"}
	all    = gate.Trace{Parent: "P", State: "S", Baggage: "B"}
)

var forwards = []struct {
	name  string
	raw   string
	trace gate.Trace
	want  string
}{
	{"nothing to do", ping, gate.Trace{}, ping},
	{"nothing to do, with params", pingWith(`{}`), gate.Trace{}, pingWith(`{}`)},
	{"nothing to do, with _meta", pingMeta(`{ "a" : 1 }`), gate.Trace{}, pingMeta(`{ "a" : 1 }`)},
	{"params made", ping, parent, `{"params":{"_meta":{"traceparent":"P"}},"jsonrpc":"2.0","id":1,"method":"ping"}`},
	{"_meta made in empty params", pingWith(`{ }`), parent, pingWith(`{"_meta":{"traceparent":"P"} }`)},
	{"_meta made in params", pingWith(`{ "a":1}`), all, pingWith(`{"_meta":{"traceparent":"P","tracestate":"S","baggage":"B"}, "a":1}`)},
	{"a member made in an empty _meta", pingMeta(`{}`), parent, pingMeta(`{"traceparent":"P"}`)},
	{"a member made", pingMeta(`{"a":1}`), parent, pingMeta(`{"traceparent":"P","a":1}`)},
	{"a member replaced", pingMeta(`{"a":1,"traceparent" : "x" ,"b":2}`), parent, pingMeta(`{"a":1,"traceparent" : "P" ,"b":2}`)},
	{"a member of another type replaced", pingMeta(`{"traceparent":{"a":[1]}}`), parent, pingMeta(`{"traceparent":"P"}`)},
	{"all replaced", pingMeta(`{"baggage":"x","tracestate":"x","traceparent":"x"}`), all, pingMeta(`{"baggage":"B","tracestate":"S","traceparent":"P"}`)},
	{"one replaced, one removed, one made", pingMeta(`{"tracestate":"x","baggage":"x","a":1}`), gate.Trace{Parent: "P", State: "S"}, pingMeta(`{"traceparent":"P","tracestate":"S","a":1}`)},
	{"all removed", pingMeta(`{"baggage":"x","tracestate":"x","traceparent":"x"}`), gate.Trace{}, pingMeta(`{}`)},
	{"the first removed", pingMeta(`{ "dev.sluice/run":"x" , "a":1 }`), gate.Trace{}, pingMeta(`{ "a":1 }`)},
	{"the last removed", pingMeta(`{ "a":1 , "dev.sluice/run":"x" }`), gate.Trace{}, pingMeta(`{ "a":1 }`)},
	{"the middle removed", pingMeta(`{"a":1,"dev.sluice/run":"x","b":2}`), gate.Trace{}, pingMeta(`{"a":1,"b":2}`)},
	{"the only one removed", pingMeta(`{ "dev.sluice/run":"x" }`), gate.Trace{}, pingMeta(`{  }`)},
	{"the only one replaced by another", pingMeta(`{"dev.sluice/run":"x"}`), parent, pingMeta(`{"traceparent":"P"}`)},
	{"neighbours removed at the end", pingMeta(`{"a":1,"dev.sluice/run":"x","dev.sluice/approval":"y","baggage":"z"}`), gate.Trace{}, pingMeta(`{"a":1}`)},
	{"neighbours removed at the start", pingMeta(`{"dev.sluice/run":"x","dev.sluice/approval":"y","a":1}`), gate.Trace{}, pingMeta(`{"a":1}`)},
	{"every other one removed", pingMeta(`{"dev.sluice/run":"x","a":1,"dev.sluice/approval":"y","b":2,"dev.sluice/z":null}`), gate.Trace{}, pingMeta(`{"a":1,"b":2}`)},
	{"every other one removed, the first kept", pingMeta(`{"a":1,"dev.sluice/run":"x","b":2,"dev.sluice/approval":"y","c":3}`), gate.Trace{}, pingMeta(`{"a":1,"b":2,"c":3}`)},
	{"removed next to one that is replaced", pingMeta(`{"traceparent":"x","dev.sluice/run":"x"}`), parent, pingMeta(`{"traceparent":"P"}`)},
	{"keys with escapes", pingMeta(`{"dev.sluice\/run":"x","trac\u0065parent":"x"}`), parent, pingMeta(`{"trac\u0065parent":"P"}`)},
	{"unknown keys of the gateway's", pingMeta(`{"dev.sluice/decision":{"code":"allowed"},"dev.sluice/":[]}`), gate.Trace{}, pingMeta(`{}`)},
	{"keys elsewhere stay", pingWith(`{"dev.sluice/run":"x","a":{"_meta":{"dev.sluice/run":"y"}}}`), gate.Trace{}, pingWith(`{"dev.sluice/run":"x","a":{"_meta":{"dev.sluice/run":"y"}}}`)},
	{"a value with quotes", pingMeta(`{}`), gate.Trace{State: "a=\"\\\n"}, pingMeta(`{"tracestate":"a=\"\\\n"}`)},
	{"a value that is not UTF-8", pingMeta(`{"tracestate":"x"}`), gate.Trace{State: "\xff"}, pingMeta(`{}`)},
	{"a response", `{"jsonrpc":"2.0","id":1,"result":{}}`, all, `{"jsonrpc":"2.0","id":1,"result":{}}`},
	{"a notification", `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"dev.sluice/run":"x"}}}`, gate.Trace{}, `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{}}}`}}

func TestForward(t *testing.T) {
	t.Parallel()
	for _, tt := range forwards {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := forwarded(t, tt.raw, tt.trace); got != tt.want {
				t.Errorf("forwarding %s\n got %s\nwant %s", tt.raw, got, tt.want)
			}
		})
	}
}

func TestForwardWithOtherEdits(t *testing.T) {
	t.Parallel()
	m := accepted(t, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"fs__read","arguments":{"n":1.0},"_meta":{"dev.sluice/run":"x"}}}`)
	edits := append(m.Forward(gate.Trace{Parent: "P"}),
		gate.Edit{Span: m.ID, With: []byte("7")}, gate.Edit{Span: m.NameValue, With: []byte(`"read"`)})
	out, err := gate.Splice(m.Raw, edits...)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":{"n":1.0},"_meta":{"traceparent":"P"}}}`
	if string(out) != want {
		t.Errorf("got %s\nwant %s", out, want)
	}
	if !strings.Contains(string(m.Raw), "fs__read") {
		t.Error("the judged bytes were changed")
	}
}
