package gate

import (
	"cmp"
	"math"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// A Trace is the trace context that goes to an upstream, by the W3C
// specifications of the same names. An empty field means that the message must
// not have it.
type Trace struct{ Parent, State, Baggage string }

// fields pairs the fields with their keys, in the order of Meta.trace.
func (t Trace) fields() [traceFields][2]string {
	return [...][2]string{{"traceparent", t.Parent}, {"tracestate", t.State}, {"baggage", t.Baggage}}
}

// Forward returns the edits that prepare m for an upstream: every
// "dev.sluice/" member of _meta goes, and the trace context becomes t. _meta
// and params are made where t needs them. Edits for other parts of m, such as
// its id or its name, may be added before all go to [Splice] together.
//
// A response has no params; for it there are no edits.
func (m *Message) Forward(t Trace) []Edit {
	if m.Kind == Response {
		return nil
	}
	meta := &m.Meta
	edits := make([]Edit, 0, traceFields+2)
	var added []byte
	gone := slices.Clone(meta.ours)
	for i, field := range t.fields() {
		key, text := field[0], field[1]
		value := quote(text)
		switch member := meta.trace[i]; {
		case value != nil && member.Present():
			edits = append(edits, Edit{meta.values[i], value})
		case value != nil:
			added = appendMember(added, key, value)
		case member.Present():
			gone = append(gone, member)
		}
	}
	slices.SortFunc(gone, func(a, b item) int { return cmp.Compare(a.Start, b.Start) })
	edits = cut(edits, m.Raw, gone)
	if added != nil {
		edits = append(edits, m.insertMeta(added, meta.members-len(gone)))
	}
	return edits
}

// insertMeta returns the edit that puts members into _meta, where the given
// number of others remain.
func (m *Message) insertMeta(members []byte, remain int) Edit {
	var at int
	switch {
	case m.Meta.Object.Present():
		at = m.Meta.Object.Start + 1
	case m.Params.Present():
		at, remain = m.Params.Start+1, m.paramCount
		members = appendMember(nil, "_meta", braced(members))
	default:
		at, remain = m.start+1, 1 // an envelope is never empty
		members = appendMember(nil, "params", braced(appendMember(nil, "_meta", braced(members))))
	}
	if remain > 0 {
		members = append(members, ',')
	}
	return Edit{Span{at, at}, members}
}

// quote returns text as a JSON string, and nil if it is empty or not UTF-8: a
// broken trace must not break a call.
func quote(text string) []byte {
	if text == "" {
		return nil
	}
	quoted, err := jsontext.AppendQuote(make([]byte, 0, len(text)+2), text)
	if err != nil {
		return nil
	}
	return quoted
}

// appendMember appends a member to members that are separated by commas. The
// key needs no escapes.
func appendMember(members []byte, key string, value []byte) []byte {
	if len(members) > 0 {
		members = append(members, ',')
	}
	members = append(members, '"')
	members = append(members, key...)
	members = append(members, '"', ':')
	return append(members, value...)
}

func braced(members []byte) []byte {
	return append(append([]byte{'{'}, members...), '}')
}

// Client returns the name and version that the client gives itself, in
// initialize or else in "io.modelcontextprotocol/clientInfo" of _meta. Each is
// empty where it is absent, not a string or longer than 128 bytes. They are
// claims, not identity.
func (m *Message) Client() (name, version string) {
	passed := Limits{Bytes: math.MaxInt, Depth: math.MaxInt, Tokens: math.MaxInt, KeyBytes: math.MaxInt, NumberBytes: math.MaxInt}
	p := parser{scanner: scanner{raw: m.Raw, pos: m.clientInfo.Start, limits: passed, client: true}}
	var f frame
	if !m.clientInfo.Present() || p.enter(&f) != nil {
		return "", ""
	}
	for {
		more, err := p.member(&f)
		if !more || err != nil {
			return name, version
		}
		key := string(f.key)
		value, err := p.read()
		if err != nil {
			return "", ""
		}
		switch key {
		case "name":
			name, _ = p.text(value, maxName, "")
		case "version":
			version, _ = p.text(value, maxName, "")
		}
	}
}
