package condition

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxKeys is the largest number of keys and elements that are checked.
const maxKeys = 20_000

var errTooManyKeys = errors.New("the arguments have too many keys to check")

// A shape contains the keys that an expression reads by name in a value. The nil shape contains no keys.
type shape struct {
	// keys are the keys that the expression reads in the value, with the shapes of their values.
	keys map[string]*shape
	// byFolded maps each key, as fold returns it, to the key.
	byFolded map[string]string
	// each is the shape of all values of the object or list.
	each *shape
}

// newShape returns the shape of a location in the arguments, or nil if the expression reads no key by name at that
// location.
func newShape(p *location) *shape {
	if p == nil {
		return nil
	}
	s := &shape{keys: make(map[string]*shape, len(p.keys)), byFolded: make(map[string]string, len(p.keys)), each: newShape(p.each)}
	for name, below := range p.keys {
		s.keys[name] = newShape(below)
		s.byFolded[fold(name)] = name
	}
	if len(s.keys) == 0 && s.each == nil {
		return nil
	}
	return s
}

// check returns an error if an object in value has a key that differs only by case, `_` or `-` from a key that the
// expression reads. A server might accept that spelling, and would then use a value that the condition has not tested.
// left is the number of keys and elements that may still be checked.
func (s *shape) check(value ref.Val, left *int) error {
	if s == nil {
		return nil
	}
	switch value := value.(type) {
	case *object:
		return s.checkObject(value, left)
	case traits.Lister:
		for it := value.Iterator(); s.each != nil && it.HasNext() == types.True; {
			if *left--; *left < 0 {
				return errTooManyKeys
			}
			if err := s.each.check(it.Next(), left); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *shape) checkObject(o *object, left *int) error {
	for _, m := range o.members {
		if *left--; *left < 0 {
			return errTooManyKeys
		}
		name := string(m.name)
		below, read := s.keys[name]
		if !read && len(s.keys) > 0 {
			if known, alike := s.byFolded[fold(name)]; alike {
				return fmt.Errorf("the key %s may be read as %s, which the condition reads", strconv.Quote(clip(name)), strconv.Quote(known))
			}
		}
		if err := below.check(m.value, left); err != nil {
			return err
		}
		if err := s.each.check(m.value, left); err != nil {
			return err
		}
	}
	return nil
}

// checkProperties returns an error if the arguments contain a name that is not in properties. It accepts all names if
// properties is empty.
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

// fold returns the same text for all spellings of a key that differ only by case, `_` or `-`.
func fold(name string) string {
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
