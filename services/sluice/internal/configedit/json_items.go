package configedit

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// AddItem appends an item to the list at path in a JSON file. All other bytes stay unchanged. If the list does not
// exist, AddItem creates it and returns the manifest of this change. Otherwise the manifest is nil, and [RemoveItems]
// can undo the change. The error is an [*EditError].
func AddItem(data []byte, path []string, item Object) (after []byte, created *Manifest, err error) {
	l := Layout{Format: JSON}
	list := &Node{Kind: List, Items: []*Node{nodeOf(item)}}
	doc, err := parse(l, data)
	if err != nil {
		return nil, nil, err
	}
	old := doc.tree().Get(path...)
	if old == nil {
		change, err := Apply(l, data, Edit{Path: path, Value: list})
		if err != nil {
			return nil, nil, err
		}
		created, err = change.Manifest()
		return change.After, created, err
	}
	d, array, err := arrayAt(doc, path)
	if err != nil {
		return nil, nil, withSnippet(err, l, Edit{Path: path, Value: list})
	}
	want := &Node{Kind: List, Items: append(slices.Clone(old.Items), list.Items...)}
	after, err = checked(l, doc, data, path, want, []splice{d.itemSplice(array, list.Items[0])})
	return after, nil, err
}

// arrayAt returns the array at a path, which must exist.
func arrayAt(doc syntax, path []string) (*jsonDocument, *hujson.Value, error) {
	d := doc.(*jsonDocument) //nolint:forcetypeassert // the layout is JSON
	at, err := d.locate(path)
	if err != nil {
		return nil, nil, err
	}
	value := &at.object.Members[at.index].Value
	if _, ok := value.Value.(*hujson.Array); !ok {
		return nil, nil, d.refuse(d.offset(value.StartOffset), "the value is not a list", "replace it with a list")
	}
	return d, value, nil
}

// itemSplice returns the splice that appends an item to an array.
func (d *jsonDocument) itemSplice(array *hujson.Value, item *Node) splice {
	elements := array.Value.(*hujson.Array).Elements //nolint:forcetypeassert // as arrayAt has checked
	s := style{newline: d.newline, unit: d.unit, compact: true}
	if len(elements) == 0 {
		point := d.offset(array.StartOffset + 1)
		return splice{point, point, encodeJSON(item, s)}
	}
	last := elements[len(elements)-1]
	between := " "
	if indent, first := d.indent(d.offset(last.StartOffset)); first {
		s.indent, s.compact = indent, !bytes.Contains(d.body()[last.StartOffset:last.EndOffset], []byte{'\n'})
		between = d.newline + indent
	}
	if last.AfterExtra != nil { // a comma follows
		point := d.offset(last.EndOffset + len(last.AfterExtra) + 1)
		return splice{point, point, between + encodeJSON(item, s) + ","}
	}
	point := d.offset(last.EndOffset)
	return splice{point, point, "," + between + encodeJSON(item, s)}
}

// RemoveItems removes the items for which ours returns true from the list at path in a JSON file. It returns the number
// of removed items. If the list does not exist, nothing is removed. The error is an [*EditError].
func RemoveItems(data []byte, path []string, ours func(*Node) bool) (after []byte, n int, err error) {
	l := Layout{Format: JSON}
	for {
		doc, err := parse(l, data)
		if err != nil {
			return nil, 0, err
		}
		list := doc.tree().Get(path...)
		if list == nil || list.Kind != List {
			return data, n, nil
		}
		i := slices.IndexFunc(list.Items, ours)
		if i < 0 {
			return data, n, nil
		}
		d, array, err := arrayAt(doc, path)
		if err != nil {
			return nil, 0, err
		}
		want := &Node{Kind: List, Items: slices.Delete(slices.Clone(list.Items), i, i+1)}
		if data, err = checked(l, doc, data, path, want, d.itemRemoval(array, i)); err != nil {
			return nil, 0, err
		}
		n++
	}
}

// itemRemoval returns the splices that remove an element. Comments before the element stay.
func (d *jsonDocument) itemRemoval(array *hujson.Value, i int) []splice {
	elements := array.Value.(*hujson.Array).Elements //nolint:forcetypeassert // as arrayAt has checked
	e := elements[i]
	start, end := d.offset(e.StartOffset), d.offset(e.EndOffset)
	comma := func(v hujson.Value) int { return d.offset(v.EndOffset + len(v.AfterExtra)) }
	followed := i < len(elements)-1 || e.AfterExtra != nil
	commented := strings.Contains(string(e.BeforeExtra), "/")
	if followed {
		end = comma(e) + 1
	}
	switch {
	case i == 0:
		return []splice{{start, end, ""}}
	case followed && !commented:
		return []splice{{comma(elements[i-1]) + 1, end, ""}}
	case followed:
		return []splice{{start, end, ""}}
	case commented:
		return []splice{{comma(elements[i-1]), comma(elements[i-1]) + 1, ""}, {start, end, ""}}
	default:
		return []splice{{comma(elements[i-1]), end, ""}}
	}
}
