package jsonrpc

import (
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// A section is an object in a server's message that has members defined by the protocol.
type section uint8

const (
	inEnvelope section = iota
	inParams
	inResult
	inError
)

// table returns the protocol fields of the section. Other keys in the section must not resemble these fields.
func (in section) table() map[string]string {
	switch in {
	case inParams:
		return paramsFields
	case inResult:
		return resultFields
	case inError:
		return errorFields
	case inEnvelope:
	}
	return envelopeFields
}

// section reads the object that is the given section of the message, and returns its position.
func (r *reader) section(in section) (Span, error) {
	start := r.pos
	if r.peek() != '{' {
		if err := r.value(); err != nil {
			return Span{}, err
		}
		return Span{}, r.fail(commonv1.Code_CODE_JSONRPC_INVALID, start, "a value that must be an object is not one")
	}
	var f frame
	if err := r.enter(&f); err != nil {
		return Span{}, err
	}
	table := in.table()
	for {
		more, err := r.member(&f)
		if !more {
			return Span{start, r.pos}, err
		}
		if err := r.refuseVariant(table, &f); err != nil {
			return Span{}, err
		}
		if err := r.field(in, &f); err != nil {
			return Span{}, err
		}
	}
}

func (r *reader) field(in section, f *frame) error {
	switch in {
	case inParams:
		return r.paramField(f)
	case inResult:
		return r.resultField(f)
	case inError:
		return r.errorField(f)
	case inEnvelope:
	}
	return r.envelopeField(f)
}

func (r *reader) envelopeField(f *frame) (err error) {
	a := r.a
	switch string(f.key) {
	case "jsonrpc":
		r.jsonrpc, err = r.read()
	case "id":
		a.ID, err = r.read()
	case "method":
		r.method, err = r.read()
	case "params":
		a.Params, err = r.section(inParams)
	case "result":
		a.Result, err = r.section(inResult)
	case "error":
		if r.repair.isNull(r.raw[r.pos:]) {
			err = r.value()
			r.repair.null = item{Span{f.start, r.pos}, f.prev}
			return err
		}
		a.Error, err = r.section(inError)
	default:
		err = r.memberValue(f)
	}
	return err
}

func (r *reader) paramField(f *frame) (err error) {
	a := r.a
	switch string(f.key) {
	case "requestId":
		a.RequestID, err = r.read()
	case "progressToken":
		a.ProgressToken, err = r.read()
	case "progress":
		a.Progress, err = r.read()
	case "_meta":
		start := r.pos
		if err = r.memberValue(f); err == nil {
			a.Subscription = r.subscription(Span{start, r.pos})
		}
	default:
		err = r.memberValue(f)
	}
	return err
}

// subscription returns the raw subscription id in a _meta object that the reader has already read.
func (r *reader) subscription(meta Span) (id Span) {
	s := scanner{raw: r.raw, pos: meta.Start, limits: r.limits}
	var f frame
	if s.peek() != '{' || s.enter(&f) != nil {
		return Span{}
	}
	for {
		more, err := s.member(&f)
		if !more || err != nil {
			return id
		}
		start := s.pos
		if s.value() != nil {
			return id
		}
		if string(f.key) == protocolPrefix+"subscriptionId" {
			id = Span{start, s.pos}
		}
	}
}

func (r *reader) errorField(f *frame) (err error) {
	switch {
	case string(f.key) == "code":
		r.a.ErrorCode, err = r.read()
	case string(f.key) == "data" && r.peek() == '{':
		err = r.readMeta() // the gateway's own errors contain the policy decision in data, so a server could forge one
	default:
		err = r.memberValue(f)
	}
	return err
}

func (r *reader) resultField(f *frame) (err error) {
	a := r.a
	switch string(f.key) {
	case "isError":
		value, err := r.read()
		a.IsError = string(value.Of(r.raw)) == "true"
		return err
	case "tools":
		return r.tools()
	case "nextCursor":
		a.NextCursor, err = r.read()
	case "resultType":
		a.ResultType, err = r.read()
	case "ttlMs":
		a.TTL, err = r.read()
	case "cacheScope":
		a.CacheScope, err = r.read()
	case "protocolVersion":
		a.ProtocolVersion, err = r.read()
	case "capabilities":
		a.Capabilities, err = r.read()
	case "serverInfo":
		a.ServerInfo, err = r.read()
	case "supportedVersions":
		a.SupportedVersions, err = r.read()
	case "taskId":
		a.TaskID, err = r.read()
	case "result", "error":
		start := r.pos
		err = r.memberValue(f)
		if end := (Span{start, r.pos}); string(f.key) == "result" {
			a.TaskResult = end
		} else {
			a.TaskError = end
		}
	case "inputRequests":
		return r.inputs()
	default:
		err = r.repairable(f)
	}
	return err
}

// maxReserved is the maximum number of reserved members in a message, which are members that only the gateway may send.
// It is limited because the edit that removes a member uses more memory than the member.
const maxReserved = 1_000

// maxTools is the maximum number of elements in result.tools.
const maxTools = 10_000

func (r *reader) tools() error { return r.list("name", toolFields) }

// list reads a list in the result. nameKey is the key of an element's name. fields contains the protocol fields of an
// element. Other keys in an element must not resemble these fields.
func (r *reader) list(nameKey string, fields map[string]string) error {
	if r.peek() != '[' {
		return r.value()
	}
	start := r.pos
	var f frame
	if err := r.enter(&f); err != nil {
		return err
	}
	for {
		more, err := r.element(&f)
		if !more {
			r.a.ToolList = Span{start, r.pos}
			return err
		}
		if f.count > maxTools {
			return r.fail(commonv1.Code_CODE_JSON_TOO_MANY_TOKENS, f.start, "the list has too many tools")
		}
		t, err := r.tool(nameKey, fields)
		if err != nil {
			return err
		}
		t.Definition, t.prev = Span{f.start, r.pos}, f.prev
		r.a.Tools = append(r.a.Tools, t)
	}
}

func (r *reader) tool(field string, fields map[string]string) (Tool, error) {
	var t Tool
	if r.peek() != '{' {
		return t, r.value()
	}
	var f frame
	if err := r.enter(&f); err != nil {
		return t, err
	}
	doubtful := false
	for {
		more, err := r.member(&f)
		if !more {
			if doubtful {
				t = Tool{}
			}
			return t, err
		}
		if string(f.key) != field {
			doubtful = doubtful || isVariant(fields, f.key)
			if err := r.memberValue(&f); err != nil {
				return t, err
			}
			continue
		}
		if t.NameValue, err = r.read(); err != nil {
			return t, err
		}
		name, _ := r.decode(t.NameValue)
		t.Name = string(name)
	}
}

// maxInputs is the maximum number of requests in result.inputRequests. It is limited because the policy service
// evaluates each request.
const maxInputs = 100

func (r *reader) inputs() (err error) {
	if r.peek() != '{' {
		r.a.InputRequests, err = r.read()
		return err
	}
	start := r.pos
	var f frame
	if err := r.enter(&f); err != nil {
		return err
	}
	for {
		more, err := r.member(&f)
		if !more {
			r.a.InputRequests = Span{start, r.pos}
			return err
		}
		if f.count > maxInputs {
			return r.fail(commonv1.Code_CODE_JSON_TOO_MANY_TOKENS, f.start, "the result has too many inputRequests")
		}
		in, err := r.input()
		if err != nil {
			return err
		}
		r.a.Inputs = append(r.a.Inputs, in)
	}
}

func (r *reader) input() (in Input, err error) {
	if r.peek() != '{' {
		return in, r.value()
	}
	var f frame
	if err := r.enter(&f); err != nil {
		return in, err
	}
	for {
		more, err := r.member(&f)
		if !more {
			return in, err
		}
		if err := r.refuseVariant(inputFields, &f); err != nil {
			return in, err
		}
		start := r.pos
		switch string(f.key) {
		case "method":
			in.Method, err = r.read()
		case "params":
			err = r.memberValue(&f) // memberValue also finds members that only the gateway may send
			in.Params = Span{start, r.pos}
		default:
			err = r.memberValue(&f)
		}
		if err != nil {
			return in, err
		}
	}
}

// readMeta reads an object from a server, such as _meta, and collects the members that only the gateway may send.
func (s *scanner) readMeta() error {
	var f frame
	if err := s.enter(&f); err != nil {
		return err
	}
	for {
		more, err := s.member(&f)
		if !more {
			return err
		}
		if !foldsToPrefix(f.key, gatewayPrefix) {
			if err := s.memberValue(&f); err != nil {
				return err
			}
			continue
		}
		// The whole member is removed, so reserved members inside it need not be removed separately.
		known := len(s.reserved)
		if err := s.value(); err != nil {
			return err
		}
		if known == maxReserved {
			return s.fail(commonv1.Code_CODE_JSON_TOO_MANY_TOKENS, f.start, "the message has too many keys that only the gateway may send")
		}
		s.reserved = append(s.reserved[:known], item{Span{f.start, s.pos}, f.prev})
	}
}
