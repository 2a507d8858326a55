package joint

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// place is where names stand in a message: the keys on the way there, "*" for each element of an array,
// and "{}" for each member of an object.
type place struct {
	path []string
	// joins makes the joint name, and cuts reads it.
	joins func(server, name string) string
	cuts  func(name string) (server, rest string, ok bool)
}

func names(path string) place { return place{strings.Split(path, "/"), Name, Cut} }

func uris(path string) place { return place{strings.Split(path, "/"), URI, CutURI} }

// inContent are the URIs in content (MCP 2025-11-25, Tools, Tool Result) that lies there.
func inContent(path string) []place {
	return []place{uris(path + "/uri"), uris(path + "/resource/uri")}
}

// question is what a person is asked there: whoever reads it sees one connection, and is to know who asks.
// So says each line, or one could begin as another server's question.
func question(path string) place {
	return place{strings.Split(path, "/"), func(server, text string) string {
		begin := server + " asks: "
		return begin + lineBreaks.ReplaceAllString(text, "\n"+begin)
	}, nil}
}

// lineBreaks are all that some reader takes for one (Unicode Standard, section 5.8).
var lineBreaks = regexp.MustCompile(`\r\n|[\n\v\f\r\x{85}\x{2028}\x{2029}]`)

// inAnswer are the questions that a server asks in its answer (MCP 2026-07-28, Multi Round-Trip Requests; of
// 2025-11-25, Elicitation, URL Mode).
func inAnswer() []place {
	return []place{question("result/inputRequests/{}/params/message"), question("error/data/elicitations/*/message")}
}

// told are the places of an answer to a method, or of a notification, where a server says names that
// a client may use later. Those of tools are no matter of this: [gate.Answer] has them.
func told(method string) []place {
	switch method {
	case "tools/call":
		return append(inContent("result/content/*"), inAnswer()...)
	case "prompts/get":
		return append(append(inContent("result/messages/*/content"), inContent("result/messages/*/content/*")...), inAnswer()...)
	case "prompts/list":
		return []place{names("result/prompts/*/name")}
	case "resources/list":
		return []place{uris("result/resources/*/uri")}
	case "resources/templates/list":
		return []place{uris("result/resourceTemplates/*/uriTemplate")}
	case "resources/read":
		return append(inAnswer(), uris("result/contents/*/uri"))
	case "resources/subscribe", "resources/unsubscribe", "completion/complete":
		return inAnswer()
	case "notifications/resources/updated":
		return []place{uris("params/uri")}
	case "elicitation/create":
		return []place{question("params/message")}
	default:
		return nil
	}
}

// asked are the places of a request to a method where a client names what it is for.
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

// Join returns the edits by which an answer to a method, or a notification of it, says the joint
// names in place of the server's. None of them overlaps what [gate.Answer.Clean] takes out.
func Join(server, method string, raw []byte) ([]gate.Edit, error) {
	var out []gate.Edit
	err := walk(raw, told(method), func(at gate.Span, text string, p place) error {
		if len(out) == maxNames {
			return ErrTooMany
		}
		out = append(out, Say(at, p.joins(server, text)))
		return nil
	})
	return out, err
}

// maxNames is how many names an answer may say: each takes more memory than its bytes.
const maxNames = 10_000

// Errors of [Join] and [Aim]. Compare with errors.Is.
var (
	// ErrTooMany means that an answer says more than 10,000 names.
	ErrTooMany = errors.New("it says too many names")
	// ErrNobody means that a request names no server.
	ErrNobody = errors.New("it names no server")
	// ErrMany means that it names more than one.
	ErrMany = errors.New("it names more than one server")
)

// Aim is the server that a request to a method is for by what it names, and the edits by which it
// says what the server calls it. Errors: [ErrNobody], [ErrMany], or that raw can't be read.
func Aim(method string, raw []byte) (server string, out []gate.Edit, err error) {
	failed := error(nil)
	err = walk(raw, asked(method), func(at gate.Span, text string, p place) error {
		to, rest, ok := p.cuts(text)
		switch {
		case !ok:
			failed = ErrNobody
		case server != "" && server != to:
			failed = ErrMany
		}
		server, out = to, append(out, Say(at, rest))
		return nil
	})
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

// Say is the edit by which a message says this text in place of a value.
func Say(at gate.Span, text string) gate.Edit { return gate.Edit{Span: at, With: quoted(text)} }

// quoted is a text as JSON.
func quoted(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // it was read out of JSON, and what was added is ASCII, so this can't be
		return []byte(strconv.QuoteToASCII(text))
	}
	return out
}

// walk finds the strings at these places.
func walk(raw []byte, at []place, found func(gate.Span, string, place) error) error {
	if len(at) == 0 {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true)) // the gate has let none through
	w := walker{dec: dec, found: found}
	if err := w.value(at); err != nil {
		return fmt.Errorf("look for names: %w", err)
	}
	return nil
}

type walker struct {
	dec   *jsontext.Decoder
	found func(gate.Span, string, place) error
}

// value reads a value, on the way to these places.
func (w *walker) value(on []place) error {
	kind := w.dec.PeekKind()
	switch {
	case len(on) == 0 || kind != '{' && kind != '[' && kind != '"':
		return w.dec.SkipValue()
	case kind == '"':
		return w.text(on)
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

// text reads a string, which is what is looked for where a way ends.
func (w *walker) text(on []place) error {
	raw, err := w.dec.ReadValue()
	if err != nil {
		return err
	}
	for _, p := range on {
		if len(p.path) > 0 {
			continue
		}
		text, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return err
		}
		end := int(w.dec.InputOffset())
		return w.found(gate.Span{Start: end - len(raw), End: end}, string(text), p)
	}
	return nil
}

// next are the places that lie behind a step, of which a key "*" is none of an array, and "{}" any key.
func next(on []place, step string, array bool) (out []place) {
	for _, p := range on {
		if len(p.path) > 0 && array == (p.path[0] == "*") && (p.path[0] == step || p.path[0] == "{}") {
			p.path = p.path[1:]
			out = append(out, p)
		}
	}
	return out
}
