package jsonrpc

import (
	"bytes"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// These are the reference types of a completion (MCP 2025-11-25, Completion, Reference Types).
const (
	RefPrompt   = "ref/prompt"
	RefResource = "ref/resource"
)

// A Message is a message from a client that [Parse] has accepted. It is read-only. Its spans are positions in Raw,
// which must not change while the Message is in use. Its strings are copies with escapes resolved.
type Message struct {
	// Raw is the message as it was received.
	Raw []byte
	// Kind is Request, Notification or Response, never Invalid.
	Kind Kind
	// Method is the method of a request or notification. It is empty in a response.
	Method string
	// ID is the raw id, which is a string or an integer. It is absent in a notification.
	ID Span
	// Params is the params object.
	Params Span
	// Result and Error are objects. A response has exactly one of them.
	Result, Error Span

	// Name is params.name if the method is tools/call or prompts/get, or params.ref.name if the message requests a
	// completion for a prompt. For other methods it is empty. A tool's name matches the grammar of tool names. A
	// prompt's name may be any string.
	Name string
	// NameValue is the raw value of params.name. To rename the target, use [ApplyEdits] to replace this value.
	NameValue Span
	// URI is params.uri if the method begins with resources/. If the message requests a completion for a resource, URI
	// is params.ref.uri, which may be a URI template. For other methods it is empty.
	URI string
	// Ref is the reference type of a completion, which is [RefPrompt] or [RefResource]. It is empty if the type is
	// unknown, and for other methods.
	Ref string
	// URIValue is the raw value of params.uri.
	URIValue Span
	// Arguments is the params.arguments object. It is absent if params.arguments is null.
	Arguments Span
	// RequestID is the raw params.requestId of notifications/cancelled. It is always a valid id. It is absent for other
	// methods.
	RequestID Span
	// ProgressToken is the raw params.progressToken of notifications/progress. It is always a valid id. It is absent
	// for other methods. Meta.ProgressToken contains the token that a request declares.
	ProgressToken Span

	// InputResponses is the raw params.inputResponses. It contains the client's responses to the requests in the server's
	// previous answer (MCP 2026-07-28, Multi Round-Trip Requests).
	InputResponses Span
	// RequestState is the raw params.requestState, which a client returns unchanged (MCP 2026-07-28, Multi Round-Trip
	// Requests).
	RequestState Span

	// TaskID is params.taskId if the method begins with tasks/. For other methods it is empty.
	TaskID string
	// TaskIDValue is the raw value of params.taskId.
	TaskIDValue Span

	// Cursor is params.cursor of tools/list. It is empty for other methods.
	Cursor string

	// Version is params.protocolVersion of initialize. It is empty for other methods.
	Version string
	// Capabilities is the params.capabilities object of initialize.
	Capabilities Span

	// Meta is the content of params._meta.
	Meta Meta

	clientInfo Span // from params of initialize, otherwise from _meta
	start      int  // the position of the envelope in Raw
	paramCount int  // the number of members of params
}

// Clone returns a copy of m that shares no memory with m. A copy is needed if the message is used after its buffer is
// reused.
func (m *Message) Clone() *Message {
	own := *m
	own.Raw = bytes.Clone(m.Raw)
	return &own
}

// Meta is the content of params._meta. If a message has no _meta, it has the zero Meta.
type Meta struct {
	// Object is the whole object in params._meta.
	Object Span
	// Run and Approval are the values of "dev.sluice/run" and "dev.sluice/approval". Each has at most 128 bytes.
	Run, Approval string
	// TraceParent and TraceState are the W3C trace context. TraceParent is empty if the message's value is not a string
	// of at most 128 bytes. TraceState is empty if the message's value is not a string of at most 512 bytes. The
	// contents of both strings are not validated.
	TraceParent, TraceState string
	// ProtocolVersion is the value of "io.modelcontextprotocol/protocolVersion". It has at most 64 bytes.
	ProtocolVersion string
	// ProgressToken is the raw token, which is a string or an integer with the same limits as an id.
	ProgressToken Span
	// Capabilities is the object in "io.modelcontextprotocol/clientCapabilities".
	Capabilities Span

	members int
	ours    []item
	trace   [traceFields]item
	values  [traceFields]Span
}

// These are the indices of the trace context's members in Meta.trace, in the order of [Trace.fields].
const (
	traceParent = iota
	traceState
	baggage
	traceFields
)

// Parse reads one message from a client. It returns the message, or refuses it with an [*Error]. The message must be a
// JSON object within the limits, and must follow these rules:
//   - The message is valid UTF-8 without a byte order mark or lone surrogates. Keys are unique at every depth and
//     contain no control characters. Only whitespace follows the object.
//   - "jsonrpc" is "2.0". The envelope has no unknown keys. No key of the envelope, params or _meta can be mistaken for
//     another protocol key.
//   - The message is a request (a method and an id), a notification (a method under "notifications/" and no id) or a
//     response (an id, and a result or an error).
//   - An id is a non-empty string, or an integer within ±(2^53-1) that is written as an integer.
//   - A number has at most NumberBytes. Except in responses, numbers are finite as float64, and integers are within
//     int64.
//   - params, arguments and _meta are absent or objects. arguments may be null.
//   - tools/call has the name of a tool, and prompts/get has a name. resources/read, resources/subscribe and
//     resources/unsubscribe have a URI. In a revision without resources/subscribe and resources/unsubscribe, these two
//     need no URI. A task id is a string.
//
// The Message refers to the memory of raw. Parse neither copies nor modifies raw.
func Parse(raw []byte, limits Limits) (*Message, error) {
	p := parser{scanner: scanner{raw: raw, limits: limits, client: true, outOfRange: -1}}
	p.m = &Message{Raw: raw}
	if err := p.message(); err != nil {
		return nil, err
	}
	return p.m, nil
}

type parser struct {
	scanner
	m *Message
	// These raw values are checked after the whole message has been read.
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
	return p.check()
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
		if err := p.refuseVariant(envelopeFields, f); err != nil {
			return err
		}
		return p.fail(commonv1.Code_CODE_JSONRPC_INVALID, f.start, "the message has an unknown key")
	}
	return err
}
