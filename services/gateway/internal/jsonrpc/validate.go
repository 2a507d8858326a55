package jsonrpc

import (
	"strings"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// These are the maximum lengths of strings, in bytes after escapes are resolved.
const (
	maxName        = 128  // for methods and tools
	maxHandle      = 128  // for dev.sluice/run and dev.sluice/approval
	maxText        = 4096 // for prompt names, resource URIs and task ids; policy has the same limit
	maxVersion     = 64
	maxTraceParent = 128
	maxTraceState  = 512 // W3C Trace Context, section 3.3.1.5
)

// check enforces those rules that can be checked only after the whole message has been read.
func (p *parser) check() error {
	m := p.m
	if version, ok := p.decode(p.jsonrpc); !ok || string(version) != "2.0" {
		return p.envelopeFault(p.jsonrpc, `"jsonrpc" is not "2.0"`)
	}
	if m.ID.Present() && !isID(&p.scanner, m.ID) {
		return p.fail(commonv1.Code_CODE_ID_INVALID, m.ID.Start, "the id is neither a short string nor a safe integer")
	}
	if !p.method.Present() {
		return p.checkResponse()
	}
	if m.Result.Present() || m.Error.Present() {
		return p.envelopeFault(p.method, "the message has a method and an answer")
	}
	if err := p.checkMethod(); err != nil {
		return err
	}
	if p.outOfRange >= 0 {
		return p.fail(commonv1.Code_CODE_JSON_NUMBER, p.outOfRange, "a number is not a finite float64, or an integer is not an int64")
	}
	if err := p.checkMeta(); err != nil {
		return err
	}
	return p.checkParams()
}

func (p *parser) checkResponse() error {
	m := p.m
	m.Kind = Response
	switch {
	case m.Result.Present() && m.Error.Present():
		return p.envelopeFault(m.Error, "the message has a result and an error")
	case !m.Result.Present() && !m.Error.Present():
		return p.envelopeFault(Span{}, "the message has no method, result or error")
	case m.Params.Present():
		return p.envelopeFault(m.Params, "an answer has params")
	case m.Result.Present() && !p.isObject(m.Result):
		return p.envelopeFault(m.Result, "the result is not an object")
	case m.Error.Present() && !p.isObject(m.Error):
		return p.envelopeFault(m.Error, "the error is not an object")
	case !m.ID.Present():
		return p.fail(commonv1.Code_CODE_ID_INVALID, 0, "an answer has no id")
	}
	return nil
}

func (p *parser) checkMethod() error {
	m := p.m
	name, ok := p.decode(p.method)
	if !ok || !inGrammar(name, true) {
		return p.fail(commonv1.Code_CODE_METHOD_INVALID, p.method.Start, "the method's name breaks the grammar of method names")
	}
	if isVariant(methods, name) {
		return p.fail(commonv1.Code_CODE_METHOD_INVALID, p.method.Start, "the method differs from one of the protocol's only in case")
	}
	m.Method = internMethod(name)
	m.Kind = Request
	if strings.HasPrefix(m.Method, "notifications/") {
		m.Kind = Notification
	}
	if m.Kind == Request && !m.ID.Present() {
		return p.fail(commonv1.Code_CODE_ID_INVALID, p.method.Start, "a request has no id")
	}
	if m.Kind == Notification && m.ID.Present() {
		return p.fail(commonv1.Code_CODE_ID_INVALID, m.ID.Start, "a notification has an id")
	}
	return nil
}

func (p *parser) checkMeta() error {
	in, meta := &p.in, &p.m.Meta
	var err error
	if meta.Run, err = p.text(in.run, maxHandle, "dev.sluice/run is not a short string"); err != nil {
		return err
	}
	if meta.Approval, err = p.text(in.approval, maxHandle, "dev.sluice/approval is not a short string"); err != nil {
		return err
	}
	if meta.ProtocolVersion, err = p.version(in.metaVersion); err != nil {
		return err
	}
	// A trace context that is invalid is ignored, because it must not cause a call to fail.
	meta.TraceParent, _ = p.text(in.traceParent, maxTraceParent, "")
	meta.TraceState, _ = p.text(in.traceState, maxTraceState, "")
	if in.metaToken.Present() && !isID(&p.scanner, in.metaToken) {
		return p.paramFault(in.metaToken, "the progress token is neither a short string nor a safe integer")
	}
	meta.ProgressToken = in.metaToken
	if meta.Capabilities, err = p.objectOrAbsent(in.metaCapabilities); err != nil {
		return err
	}
	p.m.clientInfo, err = p.objectOrAbsent(in.metaClientInfo)
	return err
}

func (p *parser) checkParams() (err error) {
	m, in := p.m, &p.in
	m.InputResponses, m.RequestState = in.inputResponses, in.requestState
	if !p.isNull(in.arguments) {
		if m.Arguments, err = p.objectOrAbsent(in.arguments); err != nil {
			return err
		}
	}
	switch m.Method {
	case "tools/call":
		return p.checkTool()
	case "prompts/get":
		return p.checkPrompt()
	case "completion/complete":
		return p.checkRef()
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		removed := m.Method != "resources/read" && m.Meta.ProtocolVersion == withoutSessions
		if !in.uri.Present() && !removed {
			return p.paramFault(m.Params, "the resource has no URI")
		}
		return p.checkURI()
	case "initialize":
		return p.checkInitialize()
	case "tools/list":
		return p.checkCursor()
	case "notifications/cancelled":
		m.RequestID, err = p.idOrAbsent(in.requestID)
	case "notifications/progress":
		m.ProgressToken, err = p.idOrAbsent(in.progressToken)
	default:
		switch {
		case strings.HasPrefix(m.Method, "resources/"):
			return p.checkURI()
		case strings.HasPrefix(m.Method, "tasks/"):
			m.TaskIDValue = in.taskID
			m.TaskID, err = p.text(in.taskID, maxText, "the task's id is not a string of at most 4096 bytes")
		}
	}
	return err
}

func (p *parser) checkTool() error {
	name, ok := p.decode(p.in.name)
	if !ok || !inGrammar(name, false) {
		return p.fail(commonv1.Code_CODE_TOOL_NAME_INVALID, p.in.name.Start, "the tool's name is missing or breaks the grammar of tool names")
	}
	p.m.Name, p.m.NameValue = string(name), p.in.name
	return nil
}

func (p *parser) checkPrompt() (err error) {
	if !p.in.name.Present() {
		return p.paramFault(p.m.Params, "the prompt has no name")
	}
	p.m.NameValue = p.in.name
	p.m.Name, err = p.text(p.in.name, maxText, "the prompt's name is not a string of at most 4096 bytes")
	return err
}

func (p *parser) checkURI() (err error) {
	p.m.URIValue = p.in.uri
	p.m.URI, err = p.text(p.in.uri, maxText, "the resource's URI is not a string of at most 4096 bytes")
	return err
}

// checkRef reads the reference of a completion request. A reference that is ambiguous, or longer than the policy
// service accepts, counts as unknown, and policy rules then refuse the request.
func (p *parser) checkRef() error {
	m, in := p.m, &p.in
	if in.refVariant.Present() {
		return p.fail(commonv1.Code_CODE_FIELD_CASE_VARIANT, in.refVariant.Start, "a key differs from a protocol field in case only")
	}
	kind, _ := p.decode(in.refType)
	ofPrompt := string(kind) == RefPrompt
	if !ofPrompt && string(kind) != RefResource || in.refName.Present() == in.refURI.Present() || in.refName.Present() != ofPrompt {
		return nil
	}
	at := in.refURI
	if ofPrompt {
		at = in.refName
	}
	text, ok := p.decode(at)
	switch {
	case !ok || len(text) > maxText:
	case ofPrompt:
		m.Ref, m.Name = RefPrompt, string(text)
	default:
		m.Ref, m.URI = RefResource, string(text)
	}
	return nil
}

// checkCursor reads the cursor. Some clients send null if they have no cursor, so null is accepted.
func (p *parser) checkCursor() (err error) {
	if p.in.cursor.Present() && !p.isNull(p.in.cursor) {
		p.m.Cursor, err = p.text(p.in.cursor, len(p.raw), "the cursor is not a string")
	}
	return err
}

func (p *parser) checkInitialize() (err error) {
	m, in := p.m, &p.in
	if m.Version, err = p.version(in.version); err != nil {
		return err
	}
	if m.Capabilities, err = p.objectOrAbsent(in.capabilities); err != nil {
		return err
	}
	info, err := p.objectOrAbsent(in.clientInfo)
	if info.Present() {
		m.clientInfo = info
	}
	return err
}
