package redaction

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// rpcMembers are the keys that a message may have (JSON-RPC 2.0, sections 4 and 5).
var rpcMembers = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// readDefined parses a message without the members that JSON-RPC does not define, because redactions do not search
// these members. removed is the number of these members.
func readDefined(raw []byte) (_ *jsonrpc.Answer, removed int64, err error) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.ReadToken(); err != nil {
		return nil, 0, err
	}
	defined := []byte{'{'}
	for dec.PeekKind() == jsontext.KindString {
		name, err := dec.ReadValue()
		if err != nil {
			return nil, 0, err
		}
		isDefined := slices.Contains(rpcMembers, jsonrpc.Unquote(name))
		if isDefined {
			if len(defined) > 1 {
				defined = append(defined, ',')
			}
			defined = append(append(defined, name...), ':')
		}
		value, err := dec.ReadValue()
		if err != nil {
			return nil, 0, err
		}
		if isDefined {
			defined = append(defined, value...)
		} else {
			removed++
		}
	}
	if removed > 0 {
		defined = append(defined, '}')
		raw = defined
	}
	a, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	return a, removed, err
}
