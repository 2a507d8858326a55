package condition

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxKeys bounds how many keys and elements are checked.
const maxKeys = 20_000

var errTooManyKeys = errors.New("the arguments have too many keys to look through")

// A shape is what an expression reads of a value, ready to be compared with a value. The nil shape reads nothing by
// name.
type shape struct {
	keys map[string]*shape
	// alike maps folded keys to the keys.
	alike map[string]string
	each  *shape
}

// newShape returns the shape of a place; nil if no key is read by name there.
func newShape(p *place) *shape {
	if p == nil {
		return nil
	}
	s := &shape{keys: make(map[string]*shape, len(p.keys)), alike: make(map[string]string, len(p.keys)), each: newShape(p.each)}
	for name, below := range p.keys {
		s.keys[name] = newShape(below)
		s.alike[fold(name)] = name
	}
	if len(s.keys) == 0 && s.each == nil {
		return nil
	}
	return s
}

// check returns an error if an object that is read has a key that is not read but that a reader could take for one
// that is, by case, `_` or `-`. The server may be such a reader, and would then act on another value than the one that
// the condition held for.
func (s *shape) check(value ref.Val, left *int) error {
	if s == nil {
		return nil
	}
	switch value := value.(type) {
	case object:
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

func (s *shape) checkObject(o object, left *int) error {
	for it := o.Iterator(); it.HasNext() == types.True; {
		if *left--; *left < 0 {
			return errTooManyKeys
		}
		key := it.Next()
		name := string(key.(types.String))
		below, read := s.keys[name]
		if known, alike := s.alike[fold(name)]; alike && !read {
			return fmt.Errorf("the key %s may be taken for %s, which the condition reads", strconv.Quote(clip(name)), strconv.Quote(known))
		}
		for _, deeper := range []*shape{below, s.each} {
			if err := deeper.check(o.Get(key), left); err != nil {
				return err
			}
		}
	}
	return nil
}

// fold returns the same text for all keys that readers may confuse.
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
