package joint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// place describes where a message contains names. Its path lists the keys that lead to the names. In a path, "*" stands
// for each element of an array, and "{}" for each member of an object.
type place struct {
	path []string
	// joins returns the combined name for a server's name, and cuts the server and its name for a combined name.
	joins func(server, name string) string
	cuts  func(name string) (server, rest string, ok bool)
	// form means that the value is a form, in which each text is marked.
	form bool
}

func at(path string, joins func(server, name string) string) place {
	return place{path: strings.Split(path, "/"), joins: joins}
}

func names(path string) place {
	return place{path: strings.Split(path, "/"), joins: Name, cuts: Cut}
}

func uris(path string) place {
	return place{path: strings.Split(path, "/"), joins: URI, cuts: CutURI}
}

// inContent returns the places of the URIs and display names in the content at path (MCP 2025-11-25, Tools, Tool
// Result).
func inContent(path string) []place {
	return []place{uris(path + "/uri"), uris(path + "/resource/uri"), at(path+"/title", Title), at(path+"/name", Title)}
}

// listed returns the places of the display names in a list. A client shows the title of an element or, if there is no
// title, its name. The name of a prompt is its identifier.
func listed(path string) []place {
	out := []place{at(path+"/title", Title)}
	if path != "result/prompts/*" {
		out = append(out, at(path+"/name", Title))
	}
	return out
}

// inAnswer returns the places of names in the requests that an answer contains (MCP 2026-07-28, Multi Round-Trip
// Requests; 2025-11-25, Elicitation, URL Mode).
func inAnswer() []place {
	return append(inQuestion("result/inputRequests/{}/params"), inQuestion("error/data/elicitations/*")...)
}

// told returns the places in the response to a method, or in a notification, where a server sends names that a client
// may use later. Names of tools are not included, because [jsonrpc.Answer] has their spans.
func told(method string) []place {
	switch method {
	case "tools/call":
		return append(inContent("result/content/*"), inAnswer()...)
	case "prompts/get":
		return append(append(inContent("result/messages/*/content"), inContent("result/messages/*/content/*")...), inAnswer()...)
	case "prompts/list":
		return append(listed("result/prompts/*"), names("result/prompts/*/name"))
	case "resources/list":
		return append(listed("result/resources/*"), uris("result/resources/*/uri"))
	case "resources/templates/list":
		return append(listed("result/resourceTemplates/*"), uris("result/resourceTemplates/*/uriTemplate"))
	case "resources/read":
		return append(inAnswer(), uris("result/contents/*/uri"))
	case "resources/subscribe", "resources/unsubscribe", "completion/complete":
		return inAnswer()
	case "notifications/resources/updated":
		return []place{uris("params/uri")}
	case "elicitation/create", "sampling/createMessage":
		return inQuestion("params")
	case elicited:
		return []place{at("params/elicitationId", elicitationID)}
	default:
		return nil
	}
}

// asked returns the places in a request with this method where a client names the target.
func asked(method string) []place {
	switch method {
	case "tools/call", "prompts/get":
		return []place{names("params/name")}
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return []place{uris("params/uri")}
	case "completion/complete":
		return []place{names("params/ref/name"), uris("params/ref/uri")}
	default:
		return nil
	}
}

// Join returns the edits that replace a server's names by combined names. raw is the response to a request with this
// method, or a notification with this method. No edit overlaps what [jsonrpc.Answer.Clean] removes.
func Join(server, method string, raw []byte) ([]jsonrpc.Edit, error) {
	if method == logged {
		return signLog(server, raw)
	}
	var out []jsonrpc.Edit
	add := func(e jsonrpc.Edit) error {
		if len(out) == maxNames {
			return ErrTooMany
		}
		out = append(out, e)
		return nil
	}
	w := walker{server: server, add: add, found: func(at jsonrpc.Span, text string, p place) error { return add(Say(at, p.joins(server, text))) }}
	err := w.walk(raw, told(method))
	if err == nil && method == elicited && len(out) == 0 {
		err = ErrNobody // without a server's name it could be taken for a message of another server
	}
	return out, err
}

// maxNames is the maximum number of names and titles in an answer: three for each of 10,000 elements. It is limited
// because a name takes more memory than its bytes.
const maxNames = 30_000

// Errors of [Join] and [Aim]. Compare with errors.Is.
var (
	// ErrTooMany means that an answer has more than 30,000 names and titles.
	ErrTooMany = fmt.Errorf("it has more than %d names and titles, which are replaced where many servers have one URL; use the URL of the server instead", maxNames)
	// ErrNobody means that a message names no server.
	ErrNobody = errors.New("it names no server")
	// ErrMany means that a message names more than one server.
	ErrMany = errors.New("it names more than one server")
)

// Aim returns the server that a request names, and the edits that replace the combined names by the server's own names.
// Errors are [ErrNobody], [ErrMany], or an error if raw cannot be read.
func Aim(method string, raw []byte) (server string, out []jsonrpc.Edit, err error) {
	failed := error(nil)
	w := walker{found: func(at jsonrpc.Span, text string, p place) error {
		to, rest, ok := p.cuts(text)
		switch {
		case !ok:
			failed = ErrNobody
		case server != "" && server != to:
			failed = ErrMany
		}
		server, out = to, append(out, Say(at, rest))
		return nil
	}}
	err = w.walk(raw, asked(method))
	switch {
	case err != nil:
		return "", nil, err
	case failed != nil:
		return "", nil, failed
	case server == "":
		return "", nil, ErrNobody
	}
	return server, out, nil
}

// Say returns the edit that replaces a value by a text.
func Say(at jsonrpc.Span, text string) jsonrpc.Edit {
	return jsonrpc.Edit{Span: at, With: quoted(text)}
}

// quoted returns a text as a JSON string.
func quoted(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // impossible, because the text was read from JSON and the added text is ASCII
		return []byte(strconv.QuoteToASCII(text))
	}
	return out
}

// walk finds the strings at the given places.
func (w *walker) walk(raw []byte, at []place) error {
	if len(at) == 0 {
		return nil
	}
	w.dec = jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true)) // package jsonrpc has refused duplicate names
	if err := w.value(at); err != nil {
		return fmt.Errorf("look for names: %w", err)
	}
	return nil
}

type walker struct {
	dec   *jsontext.Decoder
	found func(jsonrpc.Span, string, place) error
	// server and add are used for the marks in forms.
	server string
	add    func(jsonrpc.Edit) error
}

// value reads a value on the path to the given places.
func (w *walker) value(on []place) error {
	kind := w.dec.PeekKind()
	switch {
	case len(on) == 0 || kind != '{' && kind != '[' && kind != '"':
		return w.dec.SkipValue()
	case kind == '"':
		return w.text(on)
	case kind == '{' && slices.ContainsFunc(on, func(p place) bool { return p.form && len(p.path) == 0 }):
		return w.form("")
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	for w.dec.PeekKind() != '}' && w.dec.PeekKind() != ']' {
		step := "*"
		if kind == '{' {
			key, err := w.dec.ReadToken()
			if err != nil {
				return err
			}
			step = key.String()
		}
		if err := w.value(next(on, step, kind == '[')); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

// text reads a string, and reports the string if it is at one of the given places.
func (w *walker) text(on []place) error {
	raw, err := w.dec.ReadValue()
	if err != nil {
		return err
	}
	for _, p := range on {
		if len(p.path) > 0 || p.form {
			continue
		}
		text, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return err
		}
		end := int(w.dec.InputOffset())
		return w.found(jsonrpc.Span{Start: end - len(raw), End: end}, string(text), p)
	}
	return nil
}

// next returns the places whose paths continue with a step. "{}" matches each key of an object. A key "*" of an object
// does not match the "*" of an array.
func next(on []place, step string, array bool) (out []place) {
	for _, p := range on {
		if len(p.path) > 0 && array == (p.path[0] == "*") && (p.path[0] == step || p.path[0] == "{}") {
			p.path = p.path[1:]
			out = append(out, p)
		}
	}
	return out
}
