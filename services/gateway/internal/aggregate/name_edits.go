package aggregate

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

// namePlace is a position in a message that contains names. path contains the keys that lead to the position. In path,
// "*" matches each element of an array, and "{}" matches each member of an object.
type namePlace struct {
	path []string
	// combine returns the combined name for a server and the name that the server uses. split does the reverse: it
	// splits a combined name into the server and the name that the server uses.
	combine func(server, name string) string
	split   func(name string) (server, rest string, ok bool)
	// form is true if the value at this position is a form. In a form, the server's name is added to each string that
	// the user sees.
	form bool
}

func placeAt(path string, joins func(server, name string) string) namePlace {
	return namePlace{path: strings.Split(path, "/"), combine: joins}
}

func nameAt(path string) namePlace {
	return namePlace{path: strings.Split(path, "/"), combine: CombinedName, split: SplitName}
}

func uriAt(path string) namePlace {
	return namePlace{path: strings.Split(path, "/"), combine: CombinedURI, split: SplitURI}
}

// contentPlaces returns the positions of the URIs and display names in the content at the given path (MCP 2025-11-25,
// Tools, Tool Result).
func contentPlaces(path string) []namePlace {
	return []namePlace{uriAt(path + "/uri"), uriAt(path + "/resource/uri"), placeAt(path+"/title", CombinedTitle), placeAt(path+"/name", CombinedTitle)}
}

// listPlaces returns the positions of the display names in a list. They include the names of elements, because a client
// shows the name of an element that has no title. The names of prompts are an exception, because they are identifiers.
func listPlaces(path string) []namePlace {
	out := []namePlace{placeAt(path+"/title", CombinedTitle)}
	if path != "result/prompts/*" {
		out = append(out, placeAt(path+"/name", CombinedTitle))
	}
	return out
}

// inputRequestPlaces returns the positions of names in an answer's requests for the user's input (MCP 2026-07-28, Multi
// Round-Trip Requests; MCP 2025-11-25, Elicitation, URL Mode).
func inputRequestPlaces() []namePlace {
	return append(questionPlaces("result/inputRequests/{}/params"), questionPlaces("error/data/elicitations/*")...)
}

// responsePlaces returns the positions of names that a client shows or can use later. The names are in the response to
// a request with this method, or in a notification with this method. The positions of tool names are not included,
// because [jsonrpc.Answer] contains them.
func responsePlaces(method string) []namePlace {
	switch method {
	case "tools/call":
		return append(contentPlaces("result/content/*"), inputRequestPlaces()...)
	case "prompts/get":
		return append(append(contentPlaces("result/messages/*/content"), contentPlaces("result/messages/*/content/*")...), inputRequestPlaces()...)
	case "prompts/list":
		return append(listPlaces("result/prompts/*"), nameAt("result/prompts/*/name"))
	case "resources/list":
		return append(listPlaces("result/resources/*"), uriAt("result/resources/*/uri"))
	case "resources/templates/list":
		return append(listPlaces("result/resourceTemplates/*"), uriAt("result/resourceTemplates/*/uriTemplate"))
	case "resources/read":
		return append(inputRequestPlaces(), uriAt("result/contents/*/uri"))
	case "resources/subscribe", "resources/unsubscribe", "completion/complete":
		return inputRequestPlaces()
	case "notifications/resources/updated":
		return []namePlace{uriAt("params/uri")}
	case "elicitation/create", "sampling/createMessage":
		return questionPlaces("params")
	case elicitationComplete:
		return []namePlace{placeAt("params/elicitationId", elicitationID)}
	default:
		return nil
	}
}

func requestPlaces(method string) []namePlace {
	switch method {
	case "tools/call", "prompts/get":
		return []namePlace{nameAt("params/name")}
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return []namePlace{uriAt("params/uri")}
	case "completion/complete":
		return []namePlace{nameAt("params/ref/name"), uriAt("params/ref/uri")}
	default:
		return nil
	}
}

// CombineNames returns the edits that replace a server's names with combined names. raw is either the response to a
// request with the given method or a notification with this method. The edits do not overlap the parts of the message
// that [jsonrpc.Answer.Clean] removes.
func CombineNames(server, method string, raw []byte) ([]jsonrpc.Edit, error) {
	if method == logMessage {
		return setLogger(server, raw)
	}
	var out []jsonrpc.Edit
	add := func(e jsonrpc.Edit) error {
		if len(out) == maxNames {
			return ErrTooManyNames
		}
		out = append(out, e)
		return nil
	}
	w := nameWalker{server: server, add: add, found: func(at jsonrpc.Span, text string, p namePlace) error {
		return add(ReplaceText(at, p.combine(server, text)))
	}}
	err := w.walk(raw, responsePlaces(method))
	if err == nil && method == elicitationComplete && len(out) == 0 {
		err = ErrNoServer // without a server's name, the client could not tell which server has sent the message
	}
	return out, err
}

// maxNames limits how many names and titles an answer may contain. The limit allows three names for each of 10,000
// elements. It is necessary because a name occupies more memory than its JSON text.
const maxNames = 30_000

// [CombineNames] and [ResolveTarget] return these errors. Compare them with errors.Is.
var (
	// ErrTooManyNames means that an answer has more than 30,000 names and titles.
	ErrTooManyNames = fmt.Errorf("it has more than %d names and titles, which must be replaced if many servers share one URL; use the URL of the server instead", maxNames)
	// ErrNoServer means that a message does not name a server.
	ErrNoServer = errors.New("it names no server")
	// ErrManyServers means that a message names more than one server.
	ErrManyServers = errors.New("it names more than one server")
)

// ResolveTarget returns a request's target server. It also returns the edits that replace combined names with the
// server's own names. It returns [ErrNoServer], [ErrManyServers], or an error if raw cannot be parsed.
func ResolveTarget(method string, raw []byte) (server string, out []jsonrpc.Edit, err error) {
	failed := error(nil)
	w := nameWalker{found: func(at jsonrpc.Span, text string, p namePlace) error {
		to, rest, ok := p.split(text)
		switch {
		case !ok:
			failed = ErrNoServer
		case server != "" && server != to:
			failed = ErrManyServers
		}
		server, out = to, append(out, ReplaceText(at, rest))
		return nil
	}}
	err = w.walk(raw, requestPlaces(method))
	switch {
	case err != nil:
		return "", nil, err
	case failed != nil:
		return "", nil, failed
	case server == "":
		return "", nil, ErrNoServer
	}
	return server, out, nil
}

// ReplaceText returns the edit that replaces the JSON value at a span with a string.
func ReplaceText(at jsonrpc.Span, text string) jsonrpc.Edit {
	return jsonrpc.Edit{Span: at, With: quoteJSON(text)}
}

func quoteJSON(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // impossible, because the string was read from JSON and the added characters are ASCII
		return []byte(strconv.QuoteToASCII(text))
	}
	return out
}

// walk parses a message and calls w.found for each string at one of the given positions.
func (w *nameWalker) walk(raw []byte, at []namePlace) error {
	if len(at) == 0 {
		return nil
	}
	// Duplicate keys need no check, because package jsonrpc has already refused messages that contain them.
	w.dec = jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	if err := w.value(at); err != nil {
		return fmt.Errorf("look for names: %w", err)
	}
	return nil
}

type nameWalker struct {
	dec   *jsontext.Decoder
	found func(jsonrpc.Span, string, namePlace) error
	// server is the name of the server, and add records an edit. Both are needed to add the server's name to the
	// strings in forms.
	server string
	add    func(jsonrpc.Edit) error
}

func (w *nameWalker) value(on []namePlace) error {
	kind := w.dec.PeekKind()
	switch {
	case len(on) == 0 || kind != '{' && kind != '[' && kind != '"':
		return w.dec.SkipValue()
	case kind == '"':
		return w.text(on)
	case kind == '{' && slices.ContainsFunc(on, func(p namePlace) bool { return p.form && len(p.path) == 0 }):
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
		if err := w.value(nextPlaces(on, step, kind == '[')); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

// text reads a string. If the string is at one of the given positions, text calls w.found.
func (w *nameWalker) text(on []namePlace) error {
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

// nextPlaces selects the positions whose paths begin with the given step, and returns them with this step removed. In a
// path, "{}" matches each key of an object. "*" matches only the elements of an array, and no key of an object.
func nextPlaces(on []namePlace, step string, array bool) (out []namePlace) {
	for _, p := range on {
		if len(p.path) > 0 && array == (p.path[0] == "*") && (p.path[0] == step || p.path[0] == "{}") {
			p.path = p.path[1:]
			out = append(out, p)
		}
	}
	return out
}
