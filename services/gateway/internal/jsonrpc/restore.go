package jsonrpc

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/binding"
)

// Restore returns a request that repeats a stored call. The request has the stored params, the id and method of m, and
// the `_meta` members of m that belong to the current attempt. m must be a request for the same call. The result must
// be parsed before it is sent.
func Restore(m *Message, params string) ([]byte, error) {
	if params == "" {
		params = "{}"
	}
	base := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%s,"params":%s}`, m.ID.Of(m.Raw), quote(m.Method), params)
	members, err := attemptMeta(m)
	if err != nil || members == nil {
		return base, err
	}
	limits := DefaultLimits()
	limits.Bytes += len(m.Raw)
	stored, err := Parse(base, limits)
	if err != nil {
		return nil, err
	}
	return ApplyEdits(base, stored.insertMeta(members, stored.Meta.members))
}

// attemptMeta returns the raw members of a request's `_meta` that belong to the current attempt, or nil if there are
// none.
func attemptMeta(m *Message) ([]byte, error) {
	if !m.Meta.Object.Present() {
		return nil, nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(m.Meta.Object.Of(m.Raw)))
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
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
		if binding.IsPerRequest(name, value) {
			members = appendMember(members, name, value)
		}
	}
	return members, nil
}
