package condition

import (
	"cmp"
	"errors"
	"reflect"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// object is a map with strings as keys. It is iterated in the order of its keys, because otherwise a condition could
// have a different result each time. The zero value is empty.
type object struct {
	members []member // sorted by name
}

type member struct {
	name  types.String
	value ref.Val
}

var _ traits.Mapper = (*object)(nil)

// sort sorts the members by name. Their names must be distinct.
func (o *object) sort() {
	slices.SortFunc(o.members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
}

// Find implements [traits.Mapper].
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	at, found := slices.BinarySearchFunc(o.members, name, func(m member, name types.String) int { return cmp.Compare(m.name, name) })
	if !found {
		return nil, false
	}
	return o.members[at].value, true
}

// Get implements [traits.Indexer].
func (o *object) Get(key ref.Val) ref.Val {
	value, found := o.Find(key)
	if !found {
		return types.ValOrErr(key, "no such key: %v", key)
	}
	return value
}

// Contains implements [traits.Container].
func (o *object) Contains(key ref.Val) ref.Val {
	_, found := o.Find(key)
	return types.Bool(found)
}

// Size implements [traits.Sizer].
func (o *object) Size() ref.Val { return types.Int(len(o.members)) }

// Equal implements [ref.Val].
func (o *object) Equal(other ref.Val) ref.Val {
	with, ok := other.(traits.Mapper)
	if !ok || o.Size() != with.Size() {
		return types.False
	}
	for _, m := range o.members {
		value, found := with.Find(m.name)
		if !found || types.Equal(m.value, value) == types.False {
			return types.False
		}
	}
	return types.True
}

// ConvertToNative implements [ref.Val]. It returns an error, because conditions never need the Go value of an object.
func (o *object) ConvertToNative(reflect.Type) (any, error) {
	return nil, errors.New("an object has no Go value")
}

// ConvertToType implements [ref.Val].
func (o *object) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.MapType:
		return o
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("an object can't be converted to %s", to)
}

// Type implements [ref.Val].
func (o *object) Type() ref.Type { return types.MapType }

// Value implements [ref.Val].
func (o *object) Value() any { return o.members }

// Iterator implements [traits.Iterable].
func (o *object) Iterator() traits.Iterator {
	keys := make([]ref.Val, len(o.members))
	for i, m := range o.members {
		keys[i] = m.name
	}
	return types.NewRefValList(types.DefaultTypeAdapter, keys).Iterator()
}
