package redaction

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/detect"
)

// These errors state why a message can't be searched. Clients receive their texts.
var (
	errTask = errors.New("it is a task, and the redactions of a call can't be made in the outcome of a task")
	errMany = errors.New("more than 10000 values would have to be replaced")
	errBusy = errors.New("the gateway had no time to search it")
	errForm = errors.New("the replacements would make it invalid")
)

// maxReplacements limits how many values are replaced in one message.
const maxReplacements = 10_000

// Answer applies all redactions of results to a server's answer to a request with the given method, and returns the
// redacted answer. If no value has to be replaced, Answer returns the given answer. If the answer can't be searched,
// Answer replaces its result with a text that contains the reason.
func (r *Redactor) Answer(method string, a *jsonrpc.Answer) *jsonrpc.Answer {
	if r == nil || a == nil || r.results.isEmpty() {
		return a
	}
	defined, removed, err := readDefined(a.Raw)
	if err == nil && removed > 0 {
		r.count(map[string]int64{Whole: removed})
		a = defined
	}
	var out *jsonrpc.Answer
	var found map[string]int64
	if err == nil {
		out, found, err = r.answer(method, a)
	}
	if err != nil {
		out, found = wholeAnswer(method, a, err), map[string]int64{Whole: 1}
	}
	r.count(found)
	return out
}

func (r *Redactor) answer(method string, a *jsonrpc.Answer) (*jsonrpc.Answer, map[string]int64, error) {
	if method == mcp.MethodToolsCall && isTask(a) {
		return nil, nil, errTask
	}
	part, at := inResult, a.Result
	if a.Error.Present() {
		part, at = inError, a.Error
	}
	raw, found, err := r.redact(&r.results, a.Raw, at, part)
	if err != nil || len(found) == 0 {
		return a, nil, err
	}
	out, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if err != nil || out.Kind != a.Kind {
		return nil, nil, errForm
	}
	return out, found, nil
}

// isTask reports whether an answer to tools/call is a task (MCP 2025-11-25, Tasks, and the Tasks extension of revision
// 2026-07-28).
func isTask(a *jsonrpc.Answer) bool {
	if a.TaskID.Present() || jsonrpc.Unquote(a.ResultType.Of(a.Raw)) == mcp.ResultTask {
		return true
	}
	return hasObject(a.Result.Of(a.Raw), "task")
}

// hasObject reports whether an object has a member with the given name whose value is an object.
func hasObject(object []byte, name string) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(object))
	if _, err := dec.ReadToken(); err != nil {
		return false
	}
	for dec.PeekKind() == jsontext.KindString {
		key, err := dec.ReadValue()
		if err != nil {
			return false
		}
		if jsonrpc.Unquote(key) == name && dec.PeekKind() == jsontext.KindBeginObject {
			return true
		}
		if dec.SkipValue() != nil {
			return false
		}
	}
	return false
}

// redact searches one part of a message, which is at the given span. It returns a copy of the message in which the
// values that were found are replaced, and how many replacements were made under each name. If nothing is found, it
// returns the message unchanged, without counts.
func (r *Redactor) redact(p *plan, raw []byte, at jsonrpc.Span, in part) ([]byte, map[string]int64, error) {
	if r.timeslice != nil {
		end, err := r.timeslice(len(raw))
		if err != nil {
			return nil, nil, errBusy
		}
		defer end()
	}
	w := walker{plan: p, search: p.set.NewSearch(len(raw)), part: in, found: make(map[string]int64)}
	edits, err := w.walk(at.Of(raw))
	if errors.Is(err, detect.ErrTooLarge) {
		return nil, nil, detect.ErrTooLarge
	}
	if err != nil || len(edits) == 0 {
		return raw, nil, err
	}
	size := len(raw)
	for i := range edits {
		edits[i].Span.Start, edits[i].Span.End = edits[i].Span.Start+at.Start, edits[i].Span.End+at.Start
		size += len(edits[i].With)
	}
	if size > jsonrpc.AnswerLimits().Bytes {
		return nil, nil, detect.ErrTooLarge
	}
	out, err := jsonrpc.ApplyEdits(raw, edits...)
	if err != nil {
		return nil, nil, errForm
	}
	return out, w.found, nil
}

// wholeAnswer returns the answer that the client receives instead of an answer that can't be searched. The answer to a
// tool call is a result with an error for the model, because a successful result without structured content would
// violate the output schemas of some tools.
func wholeAnswer(method string, a *jsonrpc.Answer, why error) *jsonrpc.Answer {
	text := quoted("[redacted: the whole result, because " + why.Error() + "]")
	body := fmt.Appendf(nil, `"error":{"code":%d,"message":%s}`, mcp.CodeRefused, text)
	if method == mcp.MethodToolsCall && a.Result.Present() {
		kind := ""
		if a.ResultType.Present() {
			kind = `"resultType":"complete",`
		}
		body = fmt.Appendf(nil, `"result":{%s"content":[{"type":"text","text":%s}],"isError":true}`, kind, text)
	}
	out, err := jsonrpc.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,%s}`, a.ID.Of(a.Raw), body), jsonrpc.AnswerLimits())
	if err != nil { // impossible, because the server's id was read before
		panic("redaction: " + err.Error())
	}
	return out
}

// Event applies all redactions of results to a message that a server sends before its answer, and returns the redacted
// message. If a request can't be searched, Event returns it without its params, so that the server receives an answer.
// If any other message can't be searched, Event returns nil, and the caller must drop the message.
func (r *Redactor) Event(raw []byte) []byte {
	if r == nil || r.results.isEmpty() || raw == nil {
		return raw
	}
	m, removed, err := readDefined(raw)
	if err != nil {
		r.count(map[string]int64{Whole: 1})
		return nil
	}
	if removed > 0 {
		r.count(map[string]int64{Whole: removed})
	}
	if raw = m.Raw; !m.Params.Present() {
		return raw
	}
	out, found, err := r.redact(&r.results, raw, m.Params, paramsOf(m.Method))
	if err == nil && len(found) > 0 {
		_, err = jsonrpc.ReadAnswer(out, jsonrpc.AnswerLimits())
	}
	if err == nil {
		r.count(found)
		return out
	}
	r.count(map[string]int64{Whole: 1})
	if m.Kind != jsonrpc.Request {
		return nil
	}
	out, err = jsonrpc.ApplyEdits(raw, jsonrpc.Edit{Span: m.Params, With: []byte("{}")})
	if err != nil {
		return nil
	}
	return out
}

// Events returns a function that redacts each message and passes it on. If the redactor has no redactions of results,
// Events returns the given function itself.
func (r *Redactor) Events(events func(message []byte)) func(message []byte) {
	if r == nil || r.results.isEmpty() || events == nil {
		return events
	}
	return func(message []byte) {
		if message = r.Event(message); message != nil {
			events(message)
		}
	}
}

// Arguments applies the redactions of arguments to a request, and returns the redacted request. If no value has to be
// replaced, Arguments returns the given request. If the arguments can't be searched, it returns an error, and the
// caller must not send the request.
func (r *Redactor) Arguments(m *jsonrpc.Message) (*jsonrpc.Message, error) {
	if r == nil || r.arguments.isEmpty() || !m.Arguments.Present() {
		return m, nil
	}
	before := m.Arguments.Of(m.Raw)
	arguments, found, err := r.redact(&r.arguments, before, jsonrpc.Span{End: len(before)}, inArguments)
	if err != nil || len(found) == 0 {
		return m, err
	}
	out, err := m.WithArguments(arguments)
	if err != nil {
		return nil, errForm
	}
	r.count(found)
	return out, nil
}
