// Package mcpschema checks elements of lists against the MCP schema (MCP 2025-11-25, Schema Reference: Tool, Prompt,
// Resource, ResourceTemplate). The check is needed because clients that validate elements reject a whole list if one
// element is invalid. In a list that joins several servers, an invalid element of one server would make the elements of
// all servers unavailable.
package mcpschema

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Conform checks an element of a list. It returns the element without optional members that are null, and otherwise
// unchanged. If the element is invalid, Conform returns the reason, such as "inputSchema.type is missing". The reason
// contains no text from the server.
//
// The list must be `tools`, `prompts`, `resources` or `resourceTemplates`; elements of other lists are always invalid.
// The element must be valid JSON with unique keys.
func Conform(list string, element []byte) (out []byte, why string) {
	check, known := lists[list]
	if !known {
		return nil, "elements of this list are unknown"
	}
	out, fault := check(element)
	if fault == nil && !bytes.Contains(element, []byte("null")) {
		return element, "" // keep the original whitespace of an element without null
	}
	if fault == nil {
		return out, ""
	}
	if len(fault.path) == 0 {
		return nil, "it " + fault.what
	}
	slices.Reverse(fault.path)
	return nil, strings.Join(fault.path, ".") + " " + fault.what
}

// A fault is an error in a value. path contains the keys that lead to the value, innermost key first.
type fault struct {
	path []string
	what string
}

// A check validates a value. It returns the value, possibly without members that are null, or a fault if the value is
// invalid.
type check func(value jsontext.Value) (jsontext.Value, *fault)

func kind(is jsontext.Kind, what string) check {
	return func(value jsontext.Value) (jsontext.Value, *fault) {
		if value.Kind() != is {
			return nil, &fault{what: what}
		}
		return value, nil
	}
}

var (
	text      = kind('"', "is not a string")
	number    = kind('0', "is not a number")
	anyObject = kind('{', "is not an object")
)

func boolean(value jsontext.Value) (jsontext.Value, *fault) {
	if k := value.Kind(); k != 't' && k != 'f' {
		return nil, &fault{what: "is neither true nor false"}
	}
	return value, nil
}

func oneOf(known ...string) check {
	return func(value jsontext.Value) (jsontext.Value, *fault) {
		decoded, err := jsontext.AppendUnquote(nil, value)
		if err != nil || !slices.Contains(known, string(decoded)) {
			return nil, &fault{what: "is not one of: " + strings.Join(known, ", ")}
		}
		return value, nil
	}
}

func list(of check) check {
	return func(value jsontext.Value) (jsontext.Value, *fault) {
		if value.Kind() != '[' {
			return nil, &fault{what: "is not a list"}
		}
		var out bytes.Buffer
		dec := jsontext.NewDecoder(bytes.NewReader(value))
		_, _ = dec.ReadToken() // the value is valid JSON
		for dec.PeekKind() != ']' {
			raw, err := dec.ReadValue()
			if err != nil {
				return nil, &fault{what: "can't be read"}
			}
			element, found := of(raw)
			if found != nil {
				found.what = "of an element " + found.what
				return nil, found
			}
			openOrComma(&out, '[')
			out.Write(element)
		}
		return closeBracket(&out, '[', ']'), nil
	}
}

// members validates an object. Required members must be present. Optional members that are null are removed. The values
// of all other members are not checked, but their keys must not differ from a required key only in case.
type members struct{ required, optional map[string]check }

func (m members) check(value jsontext.Value) (jsontext.Value, *fault) {
	found := make(map[string]bool, len(m.required))
	out, wrong := eachMember(value, func(key string, raw jsontext.Value) (jsontext.Value, *fault) {
		of, required := m.required[key]
		if required {
			found[key] = true
		} else if of = m.optional[key]; of == nil {
			return raw, m.variant(key)
		} else if raw.Kind() == 'n' {
			return nil, nil
		}
		out, wrong := of(raw)
		if wrong != nil {
			wrong.path = append(wrong.path, key)
		}
		return out, wrong
	})
	for _, key := range slices.Sorted(maps.Keys(m.required)) {
		if wrong == nil && !found[key] {
			wrong = &fault{path: []string{key}, what: "is missing"}
		}
	}
	return out, wrong
}

// variant returns a fault if the key differs from a required key only in case, because a parser that ignores case would
// take it for the required key.
func (m members) variant(key string) *fault {
	for name := range m.required {
		if strings.EqualFold(key, name) {
			return &fault{path: []string{name}, what: "is present in two spellings"}
		}
	}
	return nil
}

func each(of check) check {
	return func(value jsontext.Value) (jsontext.Value, *fault) {
		return eachMember(value, func(_ string, raw jsontext.Value) (jsontext.Value, *fault) {
			out, found := of(raw)
			if found != nil {
				found.what = "of a member " + found.what
			}
			return out, found
		})
	}
}

// eachMember calls a function for each member of an object, and returns an object with the values that the function
// returns. If the function returns no value for a member, eachMember omits the member.
func eachMember(value jsontext.Value, do func(key string, raw jsontext.Value) (jsontext.Value, *fault)) (jsontext.Value, *fault) {
	if value.Kind() != '{' {
		return nil, &fault{what: "is not an object"}
	}
	var out bytes.Buffer
	// Duplicate keys need no check, because package jsonrpc has already refused them.
	dec := jsontext.NewDecoder(bytes.NewReader(value), jsontext.AllowDuplicateNames(true))
	_, _ = dec.ReadToken() // the value is valid JSON
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return nil, &fault{what: "can't be read"}
		}
		name = name.Clone()
		key, err := jsontext.AppendUnquote(nil, name)
		if err != nil {
			return nil, &fault{what: "can't be read"}
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return nil, &fault{what: "can't be read"}
		}
		member, found := do(string(key), raw)
		if found != nil {
			return nil, found
		}
		if member != nil {
			openOrComma(&out, '{')
			out.Write(name)
			out.WriteByte(':')
			out.Write(member)
		}
	}
	return closeBracket(&out, '{', '}'), nil
}

func openOrComma(out *bytes.Buffer, begin byte) {
	if out.Len() == 0 {
		out.WriteByte(begin)
		return
	}
	out.WriteByte(',')
}

func closeBracket(out *bytes.Buffer, begin, end byte) jsontext.Value {
	if out.Len() == 0 {
		out.WriteByte(begin)
	}
	out.WriteByte(end)
	return out.Bytes()
}
