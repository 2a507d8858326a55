package jsonrpc

import (
	"bytes"
	"slices"
	"unicode"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// A nameStack contains the keys of all objects that have begun but not ended at the current position. The keys of the
// innermost object are last. A nameStack needs no allocation for most messages.
type nameStack struct {
	size int
	near [32][]byte
	far  [][]byte
}

func (n *nameStack) push(name []byte) {
	if n.size < len(n.near) {
		n.near[n.size] = name
	} else {
		n.far = append(n.far[:n.size-len(n.near)], name)
	}
	n.size++
}

func (n *nameStack) at(i int) []byte {
	if i < len(n.near) {
		return n.near[i]
	}
	return n.far[i-len(n.near)]
}

// maxNames is the maximum total number of keys in all objects that have begun but not ended. It is limited because each
// key needs more memory than its bytes in the message.
const maxNames = 100_000

// linearKeys is the largest number of keys in an object for which each new key is compared with all previous keys. If
// an object has more keys, duplicates are found by sorting the keys at the end of the object.
const linearKeys = 16

func (s *scanner) key(f *frame) error {
	if err := s.token(); err != nil {
		return err
	}
	body, escaped, err := s.quoted()
	if err != nil {
		return err
	}
	if escaped {
		if s.repair != nil && s.repair.last > f.start {
			return s.fail(commonv1.Code_CODE_JSON_ENCODING, f.start, "a key contains half of a surrogate pair")
		}
		body, _ = s.unescape(s.raw[f.start:s.pos])
	}
	if len(body) > s.limits.KeyBytes {
		return s.fail(commonv1.Code_CODE_JSON_KEY, f.start, "a key is too long")
	}
	if s.client && (escaped || s.controls) && bytes.ContainsFunc(body, unicode.IsControl) {
		return s.fail(commonv1.Code_CODE_JSON_KEY, f.start, "a key contains a control character")
	}
	if s.names.size == maxNames {
		return s.fail(commonv1.Code_CODE_JSON_TOO_MANY_TOKENS, f.start, "objects have too many keys")
	}
	if s.names.size-f.base < linearKeys {
		for i := f.base; i < s.names.size; i++ {
			if bytes.Equal(s.names.at(i), body) {
				return s.duplicate(f.start)
			}
		}
	}
	f.key = body
	s.names.push(body)
	return nil
}

// popKeys removes the keys of an object that ends at the current position. If the object has many keys, popKeys first
// checks the keys for duplicates.
func (s *scanner) popKeys(f *frame) error {
	count := s.names.size - f.base
	if count > linearKeys {
		names := make([][]byte, count)
		for i := range names {
			names[i] = s.names.at(f.base + i)
		}
		slices.SortFunc(names, bytes.Compare)
		for i := 1; i < len(names); i++ {
			if bytes.Equal(names[i-1], names[i]) {
				return s.duplicate(s.pos)
			}
		}
	}
	s.names.size = f.base
	return nil
}

func (s *scanner) duplicate(offset int) error {
	return s.fail(commonv1.Code_CODE_JSON_DUPLICATE_KEY, offset, "an object has the same key twice")
}
