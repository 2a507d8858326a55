package jsonrpc

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// A Trace is the trace context that is sent to a server (W3C Trace Context and Baggage). If a field is empty, the
// corresponding member is removed from the message.
type Trace struct{ Parent, State, Baggage string }

// fields returns the keys and values in the order of Meta.trace.
func (t Trace) fields() [traceFields][2]string {
	return [...][2]string{{"traceparent", t.Parent}, {"tracestate", t.State}, {"baggage", t.Baggage}}
}

// Outgoing returns the message in the form in which the gateway sends it to a server. It removes every "dev.sluice/"
// member of _meta. It replaces each trace context member of m with the value in t, or removes the member if that value
// is empty. It adds no members that m does not have. If claims is not nil, it is a raw object, and Outgoing replaces
// the client's declared capabilities with it.
//
// All other bytes are unchanged. Every span and string of the result refers to the new bytes, so the result need not be
// parsed again. If nothing changes, Outgoing returns m itself. The result must not be passed to Outgoing again.
func (m *Message) Outgoing(t Trace, claims []byte) (*Message, error) {
	edits, removed := m.outgoing(t, claims)
	if len(edits) == 0 {
		return m, nil
	}
	raw, err := ApplyEdits(m.Raw, edits...)
	if err != nil {
		return nil, err
	}
	sent := *m
	sent.Raw = raw
	to := shifting(edits)
	for _, span := range sent.spans() {
		*span = to.span(*span)
	}
	meta := &sent.Meta
	meta.Run, meta.Approval = "", ""
	meta.TraceParent = m.replacedValue(traceParent, t.Parent, maxTraceParent)
	meta.TraceState = m.replacedValue(traceState, t.State, maxTraceState)
	meta.members -= removed
	meta.ours, meta.trace, meta.values = nil, [traceFields]item{}, [traceFields]Span{}
	return &sent, nil
}

// outgoing returns the edits for [Message.Outgoing], sorted by position. It also returns the number of _meta members
// that these edits remove.
func (m *Message) outgoing(t Trace, claims []byte) (edits []Edit, removed int) {
	meta := &m.Meta
	out := slices.Clone(meta.ours)
	if has := meta.Capabilities; claims != nil && has.Present() && !bytes.Equal(has.Of(m.Raw), claims) {
		edits = append(edits, Edit{has, claims})
	}
	for i, field := range t.fields() {
		switch value := quote(field[1]); {
		case !meta.trace[i].Present():
		case value != nil:
			edits = append(edits, Edit{meta.values[i], value})
		default:
			out = append(out, meta.trace[i])
		}
	}
	slices.SortFunc(out, func(a, b item) int { return cmp.Compare(a.Start, b.Start) })
	edits = removeItems(edits, m.Raw, out)
	slices.SortFunc(edits, byPosition)
	return edits, len(out)
}

// replacedValue returns the value that a trace member of m has after it is replaced with text. It returns "" if m does
// not have the member, or if text is longer than maxBytes.
func (m *Message) replacedValue(field int, text string, maxBytes int) string {
	if !m.Meta.trace[field].Present() || len(text) > maxBytes || quote(text) == nil {
		return ""
	}
	return text
}

func (m *Message) spans() [17]*Span {
	return [...]*Span{
		&m.ID, &m.Params, &m.Result, &m.Error, &m.NameValue, &m.URIValue, &m.Arguments, &m.RequestID, &m.ProgressToken,
		&m.InputResponses, &m.RequestState, &m.TaskIDValue, &m.Capabilities, &m.clientInfo, &m.Meta.Object, &m.Meta.ProgressToken, &m.Meta.Capabilities,
	}
}

// ErrMemberExists means that a member cannot be added because the message already contains it. Compare with errors.Is.
var ErrMemberExists = errors.New("the message already has a member that would be added")

// WithMeta converts a request to the form that a stateless server expects (MCP 2026-07-28, Requests). In this revision,
// _meta of each request contains values that a session would declare only once. WithMeta adds the members in meta to
// _meta, and the members in params to the request's params. meta and params contain raw members separated by commas,
// and meta must not be empty. All other bytes are unchanged. The result is parsed again. WithMeta returns
// [ErrMemberExists], [ErrSplice] or an [*Error].
func (m *Message) WithMeta(meta, params []byte) (*Message, error) {
	if m.Meta.ProtocolVersion != "" || m.Meta.Capabilities.Present() || m.clientInfo.Present() && m.Method != "initialize" || m.members(m.Params, paramsAgain) != nil {
		return nil, ErrMemberExists
	}
	var edits []Edit
	if len(params) > 0 {
		if !m.Params.Present() {
			return nil, ErrSplice
		}
		at := m.Params.Start + 1
		// The comma separates params from the following _meta.
		edits = append(edits, Edit{Span{at, at}, append(bytes.Clone(params), ',')})
	}
	return m.reparsed(append(edits, m.insertMeta(bytes.Clone(meta), m.Meta.members)))
}

// WithoutClientMeta converts a request to the form that a server that uses sessions expects. It removes the _meta
// members that describe the client and the revision, because a session declares them once. From a repeated request, it
// also removes the client's responses and the server's state (MCP 2026-07-28, Requests and Multi Round-Trip Requests).
// All other bytes are unchanged. The result is parsed again.
func (m *Message) WithoutClientMeta() (*Message, error) {
	edits := removeItems(nil, m.Raw, m.members(m.Meta.Object, metaOfRequests))
	return m.reparsed(append(edits, removeItems(nil, m.Raw, m.members(m.Params, paramsAgain))...))
}

// WithoutRetryMembers returns a copy of a request that a client repeats. The copy contains neither the client's
// responses nor the server's state (MCP 2026-07-28, Multi Round-Trip Requests). All other bytes are unchanged. The
// result is parsed again.
func (m *Message) WithoutRetryMembers() (*Message, error) {
	return m.reparsed(removeItems(nil, m.Raw, m.members(m.Params, paramsAgain)))
}

// WithArguments returns a copy of a request whose arguments are replaced with the raw JSON object in arguments. The
// request must have arguments. All other bytes are unchanged. The result is parsed again.
func (m *Message) WithArguments(arguments []byte) (*Message, error) {
	if !m.Arguments.Present() {
		return nil, ErrSplice
	}
	return m.reparsed([]Edit{{m.Arguments, arguments}})
}

// reparsed applies the edits to m and parses the resulting message.
func (m *Message) reparsed(edits []Edit) (*Message, error) {
	raw, err := ApplyEdits(m.Raw, edits...)
	if err != nil {
		return nil, err
	}
	limits := AnswerLimits() // the edits may contain values from a server
	limits.IDBytes = len(m.Raw)
	return Parse(raw, limits)
}

// [Message.WithoutClientMeta] and [Message.WithoutRetryMembers] remove these members.
var (
	metaOfRequests = foldTable(protocolPrefix+"protocolVersion", protocolPrefix+"clientCapabilities", protocolPrefix+"clientInfo", protocolPrefix+"logLevel")
	paramsAgain    = foldTable("inputResponses", "requestState")
)

// members returns those members of an object in m whose folded keys are in the table.
func (m *Message) members(of Span, table map[string]string) (out []item) {
	passed := Limits{Bytes: math.MaxInt, Depth: math.MaxInt, Tokens: math.MaxInt, KeyBytes: math.MaxInt, NumberBytes: math.MaxInt}
	s := scanner{raw: m.Raw, pos: of.Start, limits: passed}
	var f frame
	if !of.Present() || s.enter(&f) != nil {
		return nil
	}
	for {
		more, err := s.member(&f)
		if !more || err != nil {
			return out
		}
		_, is := table[string(fold(nil, f.key))]
		if s.value() != nil {
			return out
		}
		if is {
			out = append(out, item{Span{f.start, s.pos}, f.prev})
		}
	}
}

// insertMeta returns the edit that inserts members into _meta. remain is the number of _meta members that the other
// edits do not remove.
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

// quote returns text as a JSON string. It returns nil if text is empty or not UTF-8, because an invalid trace must not
// cause a call to fail.
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

// appendMember appends a member to a list of raw members that are separated by commas. The key must not contain
// characters that JSON requires to be escaped.
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

// Client returns the name and version of the client. It reads them from initialize or, for any other message, from
// "io.modelcontextprotocol/clientInfo" in _meta. If a value is absent, is not a string or is longer than 128 bytes,
// Client returns "" for it. The values are not verified, so they do not identify the caller.
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
