package binding

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// volatile are the keys of `_meta` that change from one sending of a call to the
// next, beside all that begin with ownPrefix.
var volatile = []string{
	"progressToken", "traceparent", "tracestate", "baggage",
	"io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities",
	"io.modelcontextprotocol/clientInfo", "io.modelcontextprotocol/logLevel",
}

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
				return value, !slices.Contains(volatile, key) && !strings.HasPrefix(key, ownPrefix), nil
			})
			return value, strings.TrimLeft(value[1:], " \t\r\n") != "}", err
		default:
			return value, true, nil
		}
	})
}

// edit shows each member of an object to keep, which returns its value, changed or
// not, and whether the member stays. What is between members that stay remains.
func edit(object string, keep func(key, value string) (string, bool, error)) (string, error) {
	dec := jsontext.NewDecoder(strings.NewReader(object))
	if dec.PeekKind() != '{' {
		return "", errors.New("params are no JSON object")
	}
	if _, err := dec.ReadToken(); err != nil {
		return "", err
	}
	var out strings.Builder
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
