package strictyaml

import (
	"encoding"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// An Explainer is a struct that can explain unknown keys.
type Explainer interface {
	// ExplainKey describes the problem with a key and how to solve it. It returns false if it has no explanation for
	// the key.
	ExplainKey(key string) (message, suggestion string, ok bool)
}

// OneOrMany is a list. If it has only one item, the item may be written directly instead of as a list.
type OneOrMany[T any] []T

func (OneOrMany[T]) oneOrMany() {}

// Decode decodes the document into the value to which the argument points. Decode does not change values whose keys are
// missing in the document. It adds map entries and replaces lists. An empty document changes nothing. The error has the
// type [Errors]. After an error, the value must not be used.
//
// The key of a field is the name in its tag `yaml:"name"`, or the field's name in lower case if it has no such tag. The
// tag `yaml:"-"` excludes a field. The tag `yaml:",inline"` adds the fields of a struct to its parent. Fields may be
// booleans, numbers, strings, time.Duration, structs, pointers, slices, maps with string keys, any, [yaml.Node],
// [OneOrMany], [encoding.TextUnmarshaler] and [yaml.Unmarshaler]. Decode panics for other types.
func (s *Source) Decode(into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		panic(fmt.Sprintf("strictyaml: Decode into %T, which is not a pointer", into))
	}
	if s.root == nil {
		return nil
	}
	d := decoder{reader: reader{file: s.file}, fields: make(map[reflect.Type][]field)}
	d.checkSyntax(location{value: s.root}, nil)
	d.decode(location{value: s.root}, nil, v.Elem())
	return d.problems.Err()
}

// A decoder sets Go values from nodes. It does not report problems that checkSyntax has already reported.
type decoder struct {
	reader
	fields map[reflect.Type][]field
}

func (d *decoder) decode(at location, path *valuePath, v reflect.Value) {
	n := at.value
	switch {
	case len(d.problems) >= maxProblems: // no more problems are reported
	case n.Kind == yaml.AliasNode || n.Style&yaml.TaggedStyle != 0 || n.Tag == "!":
	case v.Type() == reflect.TypeFor[yaml.Node]():
		v.Set(reflect.ValueOf(*n))
	case v.Type() == reflect.TypeFor[any]():
		v.SetZero()
		if value := untyped(n); value != nil {
			v.Set(reflect.ValueOf(value))
		}
	case n.Tag == nullTag:
		d.report(at, path, "has no value", "give it a value, or remove the key")
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.decode(at, path, v.Elem())
	case d.decodeItself(at, path, v):
	default:
		d.decodeKind(at, path, v)
	}
}

// decodeItself calls the decoding method of the value's type, if the type has such a method. It reports whether the
// type has one.
func (d *decoder) decodeItself(at location, path *valuePath, v reflect.Value) bool {
	var err error
	switch target := v.Addr().Interface().(type) {
	case yaml.Unmarshaler:
		err = target.UnmarshalYAML(at.value)
	case encoding.TextUnmarshaler:
		var text string
		if !d.decodeText(at, path, reflect.ValueOf(&text).Elem()) {
			return true
		}
		err = target.UnmarshalText([]byte(text))
	default:
		return false
	}
	if p, ok := errors.AsType[Problem](err); ok {
		d.report(at, path, p.Message, p.Suggestion)
	} else if err != nil {
		d.report(at, path, printable(err.Error()), "")
	}
	return true
}

func (d *decoder) decodeKind(at location, path *valuePath, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d.decodeDuration(at, path, v)
		return
	}
	switch v.Kind() { //nolint:exhaustive // other kinds are refused
	case reflect.Struct:
		d.decodeStruct(at, path, v)
	case reflect.Map:
		d.decodeMap(at, path, v)
	case reflect.Slice:
		d.decodeSlice(at, path, v)
	case reflect.String:
		d.decodeText(at, path, v)
	case reflect.Bool:
		d.decodeBool(at, path, v)
	default:
		d.decodeNumber(at, path, v)
	}
}

func (d *decoder) decodeStruct(at location, path *valuePath, v reflect.Value) {
	if at.value.Kind != yaml.MappingNode {
		d.report(at, path, "wanted a mapping, found "+kindOf(at.value), "")
		return
	}
	fields := d.fieldsOf(v.Type())
	for key, value := range pairs(at.value) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		if i < 0 && len(d.problems) >= maxProblems {
			return // explaining a key takes time
		}
		if i < 0 {
			message, suggestion := d.unknown(key.Value, v)
			d.report(location{value: key}, path, message, suggestion)
			continue
		}
		d.decode(location{key, value}, path.toKey(key.Value), v.FieldByIndex(fields[i].index))
	}
}

func (d *decoder) unknown(key string, v reflect.Value) (message, suggestion string) {
	if e, ok := reflect.TypeAssert[Explainer](v.Addr()); ok {
		if message, suggestion, ok = e.ExplainKey(key); ok {
			return message, suggestion
		}
	}
	var known []string
	for _, f := range d.fieldsOf(v.Type()) {
		known = append(known, f.name)
	}
	if word, rest, _ := strings.Cut(key, ":"); rest != "" && slices.Contains(known, word) {
		return "unknown key " + quote(key), "write a space after the colon"
	}
	if word, rest, _ := strings.Cut(key, " "); rest != "" && slices.Contains(known, word) {
		return "unknown key " + quote(key), "write a colon after " + word
	}
	return "unknown key " + quote(key), Suggest(key, known)
}

func (d *decoder) decodeMap(at location, path *valuePath, v reflect.Value) {
	if v.Type().Key().Kind() != reflect.String {
		panic(fmt.Sprintf("strictyaml: the keys of %s are not text", v.Type()))
	}
	if at.value.Kind != yaml.MappingNode {
		d.report(at, path, "wanted a mapping, found "+kindOf(at.value), "write each entry as KEY: VALUE")
		return
	}
	if v.IsNil() {
		v.Set(reflect.MakeMapWithSize(v.Type(), len(at.value.Content)/2))
	}
	for key, value := range pairs(at.value) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.decode(location{key, value}, path.toKey(key.Value), item)
		v.SetMapIndex(reflect.ValueOf(key.Value).Convert(v.Type().Key()), item)
	}
}

func (d *decoder) decodeSlice(at location, path *valuePath, v reflect.Value) {
	if at.value.Kind != yaml.SequenceNode {
		if _, ok := reflect.TypeAssert[interface{ oneOrMany() }](v); !ok {
			suggestion := "put it in [ ]"
			switch {
			case at.value.Kind == yaml.MappingNode:
				suggestion = "begin each item with -"
			case strings.Contains(at.value.Value, " "):
				suggestion = "put it in [ ], with a comma after each item"
			}
			d.report(at, path, "wanted a list, found "+kindOf(at.value), suggestion)
			return
		}
		one := reflect.MakeSlice(v.Type(), 1, 1)
		d.decode(at, path, one.Index(0))
		v.Set(one)
		return
	}
	items := reflect.MakeSlice(v.Type(), len(at.value.Content), len(at.value.Content))
	for i, item := range at.value.Content {
		d.decode(location{value: item}, path.toItem(i), items.Index(i))
	}
	v.Set(items)
}

// pairs yields the entries of a mapping whose keys are strings.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Tag == strTag && !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// A field is a key in a document together with the struct field that the key sets.
type field struct {
	name  string
	index []int
}

func (d *decoder) fieldsOf(t reflect.Type) []field {
	if known, ok := d.fields[t]; ok {
		return known
	}
	var fields []field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline": // the fields of an embedded struct are exported, even if its type is not
			for _, inner := range d.fieldsOf(f.Type) {
				fields = append(fields, field{inner.name, append(slices.Clone(f.Index), inner.index...)})
			}
		case !f.IsExported() || name == "-":
		case name == "":
			fields = append(fields, field{strings.ToLower(f.Name), f.Index})
		default:
			fields = append(fields, field{name, f.Index})
		}
	}
	d.fields[t] = fields
	return fields
}
