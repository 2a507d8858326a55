package jsonrpc

import (
	"bytes"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// paramSpans contains the raw values in params that can be checked only when the method is known.
type paramSpans struct {
	name, uri, arguments, requestID, progressToken Span
	cursor                                         Span
	version, capabilities, clientInfo              Span
	inputResponses, requestState, taskID           Span

	// These are the members of params.ref. refVariant is a key in params.ref that a parser could mistake for another
	// key.
	refType, refName, refURI, refVariant Span

	// These are members of _meta.
	run, approval, traceParent, traceState Span
	metaVersion, metaToken                 Span
	metaCapabilities, metaClientInfo       Span
}

func (p *parser) params() (Span, error) {
	if p.peek() != '{' {
		return p.notObject("params is not an object")
	}
	start := p.pos
	var f frame
	if err := p.enter(&f); err != nil {
		return Span{}, err
	}
	for {
		more, err := p.member(&f)
		if !more {
			p.m.paramCount = f.count
			return Span{start, p.pos}, err
		}
		if err := p.param(&f); err != nil {
			return Span{}, err
		}
	}
}

func (p *parser) param(f *frame) (err error) {
	in := &p.in
	switch string(f.key) {
	case "name":
		in.name, err = p.read()
	case "arguments":
		in.arguments, err = p.read()
	case "_meta":
		p.m.Meta.Object, err = p.meta()
	case "uri":
		in.uri, err = p.read()
	case "ref":
		err = p.ref()
	case "cursor":
		in.cursor, err = p.read()
	case "requestId":
		in.requestID, err = p.read()
	case "progressToken":
		in.progressToken, err = p.read()
	case "inputResponses":
		in.inputResponses, err = p.read()
	case "requestState":
		in.requestState, err = p.read()
	case "taskId":
		in.taskID, err = p.read()
	case "protocolVersion":
		in.version, err = p.read()
	case "capabilities":
		in.capabilities, err = p.read()
	case "clientInfo":
		in.clientInfo, err = p.read()
	default:
		if err := p.refuseVariant(paramsFields, f); err != nil {
			return err
		}
		return p.value()
	}
	return err
}

func (p *parser) ref() error {
	if p.peek() != '{' {
		return p.value()
	}
	in := &p.in
	var f frame
	if err := p.enter(&f); err != nil {
		return err
	}
	for {
		more, err := p.member(&f)
		if !more {
			return err
		}
		value, err := p.read()
		if err != nil {
			return err
		}
		switch string(f.key) {
		case "type":
			in.refType = value
		case "name":
			in.refName = value
		case "uri":
			in.refURI = value
		default:
			if isVariant(refFields, f.key) {
				in.refVariant = Span{f.start, p.pos}
			}
		}
	}
}

func (p *parser) meta() (Span, error) {
	if p.peek() != '{' {
		return p.notObject("_meta is not an object")
	}
	start := p.pos
	var f frame
	if err := p.enter(&f); err != nil {
		return Span{}, err
	}
	for {
		more, err := p.member(&f)
		if !more {
			p.m.Meta.members = f.count
			return Span{start, p.pos}, err
		}
		if err := p.metaMember(&f); err != nil {
			return Span{}, err
		}
	}
}

// metaMember reads one member of _meta. If the member may have to be removed, metaMember stores its position.
func (p *parser) metaMember(f *frame) error {
	into, err := p.metaField(f)
	if err != nil {
		return err
	}
	value, err := p.read()
	if err != nil {
		return err
	}
	if into != nil {
		*into = value
	}
	member := item{Span: Span{f.start, p.pos}, prev: f.prev}
	m := &p.m.Meta
	switch {
	case bytes.HasPrefix(f.key, []byte(gatewayPrefix)):
		m.ours = append(m.ours, member)
	case into == &p.in.traceParent:
		m.trace[traceParent], m.values[traceParent] = member, value
	case into == &p.in.traceState:
		m.trace[traceState], m.values[traceState] = member, value
	case string(f.key) == "baggage":
		m.trace[baggage], m.values[baggage] = member, value
	}
	return nil
}

// metaField returns a pointer to the variable that is to contain the value of a _meta member, or nil if the value is
// not stored.
func (p *parser) metaField(f *frame) (*Span, error) {
	in := &p.in
	switch string(f.key) {
	case "progressToken":
		return &in.metaToken, nil
	case "traceparent":
		return &in.traceParent, nil
	case "tracestate":
		return &in.traceState, nil
	case gatewayPrefix + "run":
		return &in.run, nil
	case gatewayPrefix + "approval":
		return &in.approval, nil
	case protocolPrefix + "protocolVersion":
		return &in.metaVersion, nil
	case protocolPrefix + "clientCapabilities":
		return &in.metaCapabilities, nil
	case protocolPrefix + "clientInfo":
		return &in.metaClientInfo, nil
	}
	for _, prefix := range [...]string{gatewayPrefix, protocolPrefix} {
		if foldsToPrefix(f.key, prefix) && !bytes.HasPrefix(f.key, []byte(prefix)) {
			return nil, p.variant(f)
		}
	}
	return nil, p.refuseVariant(metaFields, f)
}

// notObject reads a value that should be an object but is not, and returns the error with which the message is refused.
func (p *parser) notObject(detail string) (Span, error) {
	start := p.pos
	if err := p.value(); err != nil {
		return Span{}, err
	}
	return Span{}, p.fail(commonv1.Code_CODE_PARAMS_INVALID, start, detail)
}
