package binding

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const ownPrefix = "dev.sluice/"

// strip takes out of params what changes from one sending of a call to the next;
// all other bytes stay.
func strip(params string) (string, error) {
	if params == "" {
		return "", nil
	}
	return edit(params, func(key, value string) (string, bool, error) {
		switch {
		case key == "arguments" && value == "null":
			return "", false, nil
		case key == "_meta" && strings.HasPrefix(value, "{"):
			value, err := edit(value, func(key, value string) (string, bool, error) {
				return value, !OfSending(key, []byte(value)) && !strings.HasPrefix(key, ownPrefix), nil
			})
			return value, strings.TrimLeft(value[1:], " \t\r\n") != "}", err
		default:
			return value, true, nil
		}
	})
}

// asks is the one key of the params, beside the name, by which a method asks for something.
var asks = map[string]string{defaultMethod: "arguments", "prompts/get": "arguments", "resources/read": "uri"}

// bare takes out of the params of a method all that a caller can change at will and ask
// for the same all the same: of one that is known what it does not ask by, of any other
// `_meta`. They are as strip leaves them.
func bare(method, params string) (string, error) {
	if params == "" {
		return "", nil
	}
	return edit(params, func(key, value string) (string, bool, error) {
		if by := asks[method]; by != "" {
			return value, key == by, nil
		}
		return value, key != "_meta", nil
	})
}

// edit shows each member of an object to keep, which returns its value, changed or
// not, and whether the member stays. What is between members that stay remains.
func edit(object string, keep func(key, value string) (string, bool, error)) (string, error) {
	dec := jsontext.NewDecoder(bytes.NewBufferString(object))
	if dec.PeekKind() != '{' {
		return "", errors.New("params are no JSON object")
	}
	if _, err := dec.ReadToken(); err != nil {
		return "", err
	}
	var out strings.Builder
	out.Grow(len(object))
	end, kept := dec.InputOffset(), false
	out.WriteString(object[:end])
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return "", err
		}
		start := dec.InputOffset() - int64(len(name))
		key, err := jsontext.AppendUnquote(nil, name)
		if err != nil {
			return "", fmt.Errorf("read a key: %w", err)
		}
		value, err := dec.ReadValue()
		if err != nil {
			return "", err
		}
		from := dec.InputOffset() - int64(len(value))
		text, stays, err := keep(string(key), string(value))
		if err != nil {
			return "", err
		}
		if stays {
			if between := object[end:start]; kept || !strings.Contains(between, ",") {
				out.WriteString(between)
			}
			out.WriteString(object[start:from] + text)
			kept = true
		}
		end = dec.InputOffset()
	}
	if _, err := dec.ReadToken(); err != nil {
		return "", err
	}
	out.WriteString(object[end:])
	return out.String(), nil
}
