package binding

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const ownPrefix = "dev.sluice/"

// strip removes from params the members that differ between repetitions of a call. All other bytes are unchanged.
func strip(params string) (string, error) {
	if params == "" {
		return "", nil
	}
	return editMembers(params, func(key, value string) (string, bool, error) {
		switch {
		case key == "arguments" && value == "null":
			return "", false, nil
		case key == "_meta" && strings.HasPrefix(value, "{"):
			value, err := editMembers(value, func(key, value string) (string, bool, error) {
				return value, !IsPerRequest(key, []byte(value)) && !strings.HasPrefix(key, ownPrefix), nil
			})
			return value, strings.TrimLeft(value[1:], " \t\r\n") != "}", err
		default:
			return value, true, nil
		}
	})
}

// essentialKey maps a method to the key of the essential member of the method's params. Together with the name, this
// member determines what is requested.
var essentialKey = map[string]string{defaultMethod: "arguments", "prompts/get": "arguments", "resources/read": "uri"}

// keepEssential removes from the params of a method every member that does not change what is requested. For a known
// method it keeps only the essential member. For other methods it removes only `_meta`. The params must be a result of
// [strip].
func keepEssential(method, params string) (string, error) {
	if params == "" {
		return "", nil
	}
	return editMembers(params, func(key, value string) (string, bool, error) {
		if by := essentialKey[method]; by != "" {
			return value, key == by, nil
		}
		return value, key != "_meta", nil
	})
}

// editMembers returns an object whose members were edited. It calls keep for each member. keep returns the member's new
// value and reports whether the member stays. The bytes between the remaining members are unchanged.
func editMembers(object string, keep func(key, value string) (string, bool, error)) (string, error) {
	dec := jsontext.NewDecoder(bytes.NewBufferString(object))
	if dec.PeekKind() != '{' {
		return "", errors.New("params are not a JSON object")
	}
	if _, err := dec.ReadToken(); err != nil {
		return "", err
	}
	var out strings.Builder
	out.Grow(len(object))
	end, anyKept := dec.InputOffset(), false
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
			if between := object[end:start]; anyKept || !strings.Contains(between, ",") {
				out.WriteString(between)
			}
			out.WriteString(object[start:from] + text)
			anyKept = true
		}
		end = dec.InputOffset()
	}
	if _, err := dec.ReadToken(); err != nil {
		return "", err
	}
	out.WriteString(object[end:])
	return out.String(), nil
}
