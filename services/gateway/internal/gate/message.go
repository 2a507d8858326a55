package gate

import (
	"bytes"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// Reference types of a completion (MCP 2025-11-25, Completion, Reference Types).
const (
	RefPrompt   = "ref/prompt"
	RefResource = "ref/resource"
)

// A Message is a client's message that passed the gate. It is read-only. Its spans point into Raw, which must not
// change while the Message is in use. Its strings are copies with escapes resolved.
type Message struct {
	// Raw is the message as it was received.
	Raw []byte
	// Kind is never Invalid.
	Kind Kind
	// Method is empty in a response.
	Method string
	// ID is the raw id: a string or an integer. Absent in a notification.
	ID Span
	// Params is the params object.
	Params Span
	// Result and Error are objects; a response has exactly one of them.
	Result, Error Span

	// Name is params.name of tools/call, which matches the grammar of tool names, of prompts/get, which may be any
	// text, or params.ref.name of a completion for a prompt. Empty for other methods.
	Name string
	// NameValue is the raw value of params.name, for a splice that renames.
	NameValue Span
	// URI is params.uri of the methods under resources/, or params.ref.uri of a completion for a resource, which may be
	// a template. Empty for other methods.
	URI string
	// Ref is the reference type of a completion: [RefPrompt] or [RefResource]. Empty if the type is not known, or for
	// other methods.
	Ref string
	// URIValue is the raw value of params.uri.
	URIValue Span
	// Arguments is the params.arguments object; null counts as absent.
	Arguments Span
	// RequestID is the raw params.requestId of notifications/cancelled: a valid id. Absent for other methods.
	RequestID Span
	// ProgressToken is the raw params.progressToken of notifications/progress: a valid id. Absent for other methods.
	// The token that a request declares is in Meta.
	ProgressToken Span

	// InputResponses is the raw params.inputResponses, in which a client answers the requests in the server's last
	// answer (MCP 2026-07-28, Multi Round-Trip Requests).
	InputResponses Span
	// RequestState is the raw params.requestState, which a client sends back as it received it (same section).
	RequestState Span

	// TaskID is params.taskId of the methods under tasks/. Empty for other methods.
	TaskID string
	// TaskIDValue is the raw value of params.taskId.
	TaskIDValue Span

	// Cursor is params.cursor of tools/list. Empty for other methods.
	Cursor string

	// Version is params.protocolVersion of initialize. Empty for other methods.
	Version string
	// Capabilities is the params.capabilities object of initialize.
	Capabilities Span

	// Meta is the content of params._meta.
	Meta Meta

	clientInfo Span // of initialize, otherwise of _meta
	start      int  // the position of the envelope
	paramCount int  // the number of members of params
}

// Clone returns a copy of m with its own memory, for callers that keep it longer than the buffer it was read from.
func (m *Message) Clone() *Message {
	own := *m
	own.Raw = bytes.Clone(m.Raw)
	return &own
}

// Meta is the content of params._meta. The zero Meta belongs to a message without _meta.
type Meta struct {
	// Object is the whole value of _meta.
	Object Span
	// Run and Approval are "dev.sluice/run" and "dev.sluice/approval", at most 128 bytes each.
	Run, Approval string
	// TraceParent and TraceState are the W3C trace context. Each is empty if it is not a string, or longer than 128 and
	// 512 bytes; their content is not checked.
	TraceParent, TraceState string
	// ProtocolVersion is "io.modelcontextprotocol/protocolVersion", at most 64 bytes.
	ProtocolVersion string
	// ProgressToken is the raw token: a string or an integer, as for an id.
	ProgressToken Span
	// Capabilities is the "io.modelcontextprotocol/clientCapabilities" object.
	Capabilities Span

	members int
	ours    []item
	trace   [traceFields]item
	values  [traceFields]Span
}

// Indices of the members of _meta with the trace context, in the order of [Trace.fields].
const (
	traceParent = iota
	traceState
	baggage
	traceFields
)

// Parse reads one message of a client, and returns it or refuses it with an [*Error]. The message is a JSON object, and
// besides the limits these rules hold:
//   - its text is valid UTF-8 without byte order mark or lone surrogates, keys
//     are unique at every depth and free of control characters, and nothing follows;
//   - "jsonrpc" is "2.0"; unknown keys next to it are refused, and so are keys
//     that a reader could take for a known one of the envelope, of params or
//     of _meta;
//   - it is a request (method and id), a notification (method under
//     "notifications/", no id) or a response (id, and result or error);
//   - an id is a non-empty string, or an integer within ±(2^53-1), written as
//     an integer;
//   - numbers have at most NumberBytes; except in responses, they are finite as
//     float64, and integers are within int64;
//   - params, arguments and _meta are objects if present; arguments may be
//     null;
//   - tools/call has a tool's name, prompts/get a name, and resources/read,
//     resources/subscribe and resources/unsubscribe have a URI (the latter two only
//     in revisions that have these methods), and a task's id is a string.
//
// The Message refers to raw; Parse neither copies nor changes it.
func Parse(raw []byte, limits Limits) (*Message, error) {
	p := parser{scanner: scanner{raw: raw, limits: limits, client: true, wild: -1}}
	p.m = &Message{Raw: raw}
	if err := p.message(); err != nil {
		return nil, err
	}
	return p.m, nil
}

type parser struct {
	scanner
	m *Message
	// Raw values that are judged once the whole message has been read.
	jsonrpc, method Span
	in              paramSpans
}

func (p *parser) message() error {
	if err := p.begin(); err != nil {
		return err
	}
	switch p.peek() {
	case '{':
	case '[':
		return p.fail(commonv1.Code_CODE_BATCH, p.pos, "batches are not accepted: send one message at a time")
	default:
		if err := p.value(); err != nil {
			return err
		}
		return p.fail(commonv1.Code_CODE_JSONRPC_INVALID, 0, "the message is not an object")
	}
	p.m.start = p.pos
	if err := p.envelope(); err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	return p.judge()
}

func (p *parser) envelope() error {
	var f frame
	if err := p.enter(&f); err != nil {
		return err
	}
	for {
		more, err := p.member(&f)
		if !more {
			return err
		}
		if err := p.field(&f); err != nil {
			return err
		}
	}
}

// field reads the value of one member of the envelope.
func (p *parser) field(f *frame) (err error) {
	switch string(f.key) {
	case "jsonrpc":
		p.jsonrpc, err = p.read()
	case "id":
		p.m.ID, err = p.read()
	case "method":
		p.method, err = p.read()
	case "params":
		p.m.Params, err = p.params()
	case "result":
		p.m.Result, err = p.read()
	case "error":
		p.m.Error, err = p.read()
	default:
		if err := p.unambiguous(envelopeFields, f); err != nil {
			return err
		}
		return p.fail(commonv1.Code_CODE_JSONRPC_INVALID, f.start, "the message has an unknown key")
	}
	return err
}
