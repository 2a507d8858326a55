package jsonrpc

import (
	"slices"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// An Answer is one message from a server, which is a response, a notification or a request. It is read-only. Its spans
// are positions in Raw, which must not change while the Answer is in use.
type Answer struct {
	// Raw is the message as it was received.
	Raw []byte
	// Kind is never Invalid.
	Kind Kind
	// Method is the method of a request or notification. It is empty in a response.
	Method string
	// ID is the raw id, which is a string or a number. In an error response it may be null. It is absent in a
	// notification.
	ID Span
	// Params is the params object.
	Params Span
	// Result and Error are objects. A response has exactly one of them.
	Result, Error Span
	// ErrorCode is the raw value of error.code in the message.
	ErrorCode Span

	// IsError is true if result.isError is true.
	IsError bool
	// ToolList is result.tools if that is an array. Tools contains the elements of ToolList in order. If a response to
	// tools/list has no ToolList, it contains no tools that need to be filtered.
	ToolList Span
	Tools    []Tool
	// These are the raw values of other members of the result.
	NextCursor, ResultType, TTL, CacheScope   Span
	ProtocolVersion, Capabilities, ServerInfo Span
	SupportedVersions, TaskID                 Span
	TaskResult, TaskError                     Span // the result and the error of a task that has ended
	// InputRequests is the raw value of result.inputRequests, and Inputs are the members of that object in order (MCP
	// 2026-07-28, Multi Round-Trip Requests).
	InputRequests Span
	Inputs        []Input

	// These are the raw values of members of params: requestId of notifications/cancelled, and progressToken and
	// progress of notifications/progress.
	RequestID, ProgressToken, Progress Span
	// Subscription is the raw id of the subscription to which a notification belongs. It comes from params._meta (MCP
	// 2026-07-28, Subscriptions).
	Subscription Span

	foreign []item
}

// A Tool is one element of result.tools.
type Tool struct {
	// Definition is the whole element, which is the tool's definition.
	Definition Span
	// Name is the tool's name with escapes resolved. It is empty if the element is not an object, has no name that is a
	// string, or has a key that a parser could mistake for "name". A tool whose Name is empty must not be listed.
	Name string
	// NameValue is the raw value of the tool's name. To rename the tool, replace this value with [ApplyEdits].
	NameValue Span

	prev int
}

// An Input is a request from the server to the client that is contained in an answer.
type Input struct {
	// Method and Params are the raw values of the members method and params. Each is absent if the request does not
	// contain it.
	Method, Params Span
}

// Request returns the input as a JSON-RPC request with the given raw id. The result has not been validated.
func (in Input) Request(raw, id []byte) []byte {
	out := slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id)
	if in.Method.Present() {
		out = slices.Concat(out, []byte(`,"method":`), in.Method.Of(raw))
	}
	if in.Params.Present() {
		out = slices.Concat(out, []byte(`,"params":`), in.Params.Of(raw))
	}
	return append(out, '}')
}

// ReadAnswer reads one message from a server and returns the positions of its parts. It refuses an invalid message with
// an [*Error]. The message must be a JSON-RPC response, notification or request within the limits. It must be valid
// UTF-8 without a byte order mark or lone surrogates, and its keys must be unique at every depth. Numbers may have any
// value, but their length is limited.
//
// Unknown keys are accepted. However, a key of the envelope, the result or the params is refused if a parser could
// mistake it for one of the protocol's keys.
//
// The Answer refers to the memory of raw. ReadAnswer neither copies nor modifies raw.
func ReadAnswer(raw []byte, limits Limits) (*Answer, error) {
	r := reader{scanner: scanner{raw: raw, limits: limits}}
	r.a = &Answer{Raw: raw}
	if err := r.message(); err != nil {
		return nil, err
	}
	r.a.foreign = r.reserved
	return r.a, nil
}

// Clean returns the edits that must be applied to an answer before it is sent to a client. The edits remove members of
// every _meta and of error.data if their keys begin with "dev.sluice/" in any case, because only the gateway may send
// these keys. The edits also remove the tools for which hide returns true. If hide is nil, no tools are removed. A
// caller may add further edits before it passes all of them to [ApplyEdits].
func (a *Answer) Clean(hide func(Tool) bool) []Edit {
	var hidden []item
	if hide != nil {
		for _, t := range a.Tools {
			if hide(t) {
				hidden = append(hidden, item{t.Definition, t.prev})
			}
		}
	}
	edits := removeItems(nil, a.Raw, hidden)
	// A member that only the gateway may send needs no edit of its own if it is inside a hidden tool, because it is
	// removed with the tool.
	var visible []item
	for _, f := range a.foreign {
		for len(hidden) > 0 && hidden[0].End <= f.Start {
			hidden = hidden[1:]
		}
		if len(hidden) == 0 || f.End <= hidden[0].Start {
			visible = append(visible, f)
		}
	}
	return removeItems(edits, a.Raw, visible)
}

// WithID returns a copy of a response with the given raw id. The edits that [Answer.Clean] returns for a nil hide are
// applied to the copy. All other bytes are unchanged. The spans of the copy refer to its new bytes, so the copy need
// not be parsed. If the message is not a response, WithID returns [ErrSplice].
func (a *Answer) WithID(id []byte) (*Answer, error) {
	if a.Kind != Response {
		return nil, ErrSplice
	}
	edits := append(a.Clean(nil), Edit{Span: a.ID, With: id})
	slices.SortFunc(edits, byPosition)
	raw, err := ApplyEdits(a.Raw, edits...)
	if err != nil {
		return nil, err
	}
	out := *a
	out.Raw, out.foreign, out.Tools = raw, nil, slices.Clone(a.Tools)
	to := shifting(edits)
	for _, span := range []*Span{
		&out.ID, &out.Params, &out.Result, &out.Error, &out.ErrorCode, &out.ToolList, &out.NextCursor, &out.ResultType, &out.TTL, &out.CacheScope,
		&out.ProtocolVersion, &out.Capabilities, &out.ServerInfo, &out.RequestID, &out.ProgressToken, &out.Progress,
		&out.SupportedVersions, &out.TaskID, &out.TaskResult, &out.TaskError, &out.Subscription, &out.InputRequests,
	} {
		*span = to.span(*span)
	}
	out.Inputs = slices.Clone(a.Inputs)
	for i := range out.Inputs {
		in := &out.Inputs[i]
		in.Method, in.Params = to.span(in.Method), to.span(in.Params)
	}
	for i := range out.Tools {
		t := &out.Tools[i]
		t.Definition, t.NameValue, t.prev = to.span(t.Definition), to.span(t.NameValue), to.position(t.prev)
	}
	return &out, nil
}

// AppendTool returns the edit that appends a tool, given as JSON, to ToolList. The caller must apply this edit together
// with the edits that [Answer.Clean] returns for the same hide.
func (a *Answer) AppendTool(tool []byte, hide func(Tool) bool) Edit {
	with := tool
	if slices.ContainsFunc(a.Tools, func(t Tool) bool { return hide == nil || !hide(t) }) {
		with = append([]byte(","), tool...)
	}
	end := a.ToolList.End - len("]")
	return Edit{Span: Span{end, end}, With: with}
}

type reader struct {
	scanner
	a               *Answer
	jsonrpc, method Span
}

func (r *reader) message() error {
	if err := r.begin(); err != nil {
		return err
	}
	if r.peek() != '{' {
		if err := r.value(); err != nil {
			return err
		}
		return r.fail(commonv1.Code_CODE_JSONRPC_INVALID, 0, "the message is not an object")
	}
	if _, err := r.section(inEnvelope); err != nil {
		return err
	}
	if err := r.end(); err != nil {
		return err
	}
	return r.check()
}

func (r *reader) check() error {
	a := r.a
	if version, ok := r.decode(r.jsonrpc); !ok || string(version) != "2.0" {
		return r.envelopeFault(r.jsonrpc, `"jsonrpc" is not "2.0"`)
	}
	null := r.isNull(a.ID)
	if a.ID.Present() && !null && !r.isScalarID(a.ID) {
		return r.fail(commonv1.Code_CODE_ID_INVALID, a.ID.Start, "the id is neither a string nor a number")
	}
	switch answers := a.Result.Present() || a.Error.Present(); {
	case r.method.Present() && answers:
		return r.envelopeFault(r.method, "the message has a method and an answer")
	case r.method.Present():
		return r.checkMethod(null)
	case a.Result.Present() == a.Error.Present():
		return r.envelopeFault(a.Error, "the message must have exactly one of method, result and error")
	case !a.ID.Present() || null && a.Result.Present():
		return r.fail(commonv1.Code_CODE_ID_INVALID, 0, "an answer has no id")
	}
	a.Kind = Response
	return nil
}

func (r *reader) checkMethod(nullID bool) error {
	a := r.a
	name, ok := r.decode(r.method)
	if !ok || !inGrammar(name, true) {
		return r.fail(commonv1.Code_CODE_METHOD_INVALID, r.method.Start, "the method's name breaks the grammar of method names")
	}
	if nullID {
		return r.fail(commonv1.Code_CODE_ID_INVALID, a.ID.Start, "a request's id is null")
	}
	a.Method, a.Kind = internMethod(name), Request
	if !a.ID.Present() {
		a.Kind = Notification
	}
	return nil
}

func (r *reader) isScalarID(span Span) bool {
	c := r.raw[span.Start]
	return c == '"' || c == '-' || isDigit(c)
}
