package condition

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxKeys limits the number of keys and elements in the arguments that are checked.
const maxKeys = 20_000

var errTooManyKeys = errors.New("the arguments have too many keys to check")

// A shape contains the keys that an expression reads by name in an object in the arguments. A nil shape contains no
// keys.
type shape struct {
	// keys contains the keys in this object.
	keys []readKey
	// each is the shape of every value in the object or list.
	each *shape
}

// newShape returns the shape of a location. It returns nil if the expression reads no key by name at or below the
// location.
func newShape(p *location) *shape {
	if p == nil {
		return nil
	}
	s := &shape{each: newShape(p.each)}
	for _, name := range slices.Sorted(maps.Keys(p.keys)) {
		s.keys = append(s.keys, readKey{name, fold(name), newShape(p.keys[name])})
	}
	if len(s.keys) == 0 && s.each == nil {
		return nil
	}
	return s
}

// A readKey is a key that an expression reads by name.
type readKey struct {
	// folded is the result of fold for the name.
	name, folded string
	// below is the shape of the key's value.
	below *shape
}

// find returns the shape of the value of the key with the given name. If the expression does not read this key, but
// reads a key that differs only by case, `_` or `-`, alike is the name of that key. Otherwise alike is empty.
func (s *shape) find(name string) (below *shape, alike string) {
	for i := range s.keys {
		if s.keys[i].name == name {
			return s.keys[i].below, ""
		}
	}
	if len(s.keys) == 0 {
		return nil, ""
	}
	folded := fold(name)
	for i := range s.keys {
		if s.keys[i].folded == folded {
			alike = s.keys[i].name
		}
	}
	return nil, alike
}

// check returns an error if an object in the given value contains a different spelling of a key that the expression
// reads. Different spellings differ only by case, `_` or `-`. A server might accept this spelling, and would then use a
// value that the condition has not tested. remaining points to the number of keys and elements that can still be
// checked.
func (s *shape) check(value ref.Val, remaining *int) error {
	if s == nil {
		return nil
	}
	switch value := value.(type) {
	case *object:
		return s.checkObject(value, remaining)
	case traits.Lister:
		for it := value.Iterator(); s.each != nil && it.HasNext() == types.True; {
			if *remaining--; *remaining < 0 {
				return errTooManyKeys
			}
			if err := s.each.check(it.Next(), remaining); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *shape) checkObject(o *object, remaining *int) error {
	for _, m := range o.members {
		if *remaining--; *remaining < 0 {
			return errTooManyKeys
		}
		name := string(m.name)
		below, known := s.find(name)
		if known != "" {
			return fmt.Errorf("the key %s may be read as %s, which the condition reads", strconv.Quote(clip(name)), strconv.Quote(known))
		}
		if err := below.check(m.value, remaining); err != nil {
			return err
		}
		if err := s.each.check(m.value, remaining); err != nil {
			return err
		}
	}
	return nil
}

// checkProperties returns an error if an argument is not one of the given properties. If there are no properties, it
// accepts all arguments.
func checkProperties(arguments ref.Val, properties []string) error {
	if len(properties) == 0 {
		return nil
	}
	for _, m := range arguments.(*object).members {
		name := string(m.name)
		if _, found := slices.BinarySearch(properties, name); !found {
			return fmt.Errorf("the tool's schema has no argument %s", strconv.Quote(clip(name)))
		}
	}
	return nil
}

// fold returns the same string for all spellings of a key that differ only by case, `_` or `-`.
func fold(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '_' || r == '-':
			return -1
		case 'a' <= r && r <= 'z' || '0' <= r && r <= '9':
			return r
		}
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return unicode.ToLower(least)
	}, name)
}
