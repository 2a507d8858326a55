package gate

import (
	"bytes"
	"errors"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/canonical"
)

var errNoObject = errors.New("no object")

// Bound writes the params of a request in the canonical form of what approvals are
// bound to (sluice/approval/v1/binding.proto): texts are equal where the calls are.
func Bound(params []byte) (string, error) {
	if len(params) == 0 {
		return "{}", nil
	}
	kept, err := filter(params, func(key string, value jsontext.Value) (jsontext.Value, error) {
		switch {
		case key == "arguments" && value.Kind() == 'n':
			return nil, nil
		case key == "_meta" && value.Kind() == '{':
			return lasting(value)
		default:
			return value, nil
		}
	})
	if err != nil {
		return "", err
	}
	return canonical.Object(string(kept))
}

// lasting is what remains of `_meta` from one sending to the next; nil for nothing.
func lasting(meta jsontext.Value) (jsontext.Value, error) {
	kept, err := filter(meta, func(key string, value jsontext.Value) (jsontext.Value, error) {
		if volatile[key] || strings.HasPrefix(key, ourPrefix) {
			return nil, nil
		}
		return value, nil
	})
	if err != nil || len(kept) == len("{}") {
		return nil, err
	}
	return kept, nil
}

// filter writes an object of those members for which keep returns a value.
func filter(object []byte, keep func(key string, value jsontext.Value) (jsontext.Value, error)) (jsontext.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(object))
	if start, err := dec.ReadToken(); err != nil {
		return nil, err
	} else if start.Kind() != '{' {
		return nil, errNoObject
	}
	var members []byte
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		name := key.String()
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		if value, err = keep(name, value); err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		quoted, err := jsontext.AppendQuote(nil, name)
		if err != nil {
			return nil, err
		}
		if len(members) > 0 {
			members = append(members, ',')
		}
		members = append(append(append(members, quoted...), ':'), value...)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	return braced(members), nil
}
