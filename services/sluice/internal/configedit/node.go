package configedit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// A Kind is the type of a [Node].
type Kind int

// These are the kinds of nodes. Other is a value that JSON can't represent, such as a date or a YAML alias.
const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Map
	Other
)

// A Node is a value in a parsed file.
type Node struct {
	Kind Kind
	// Text is the value of a scalar: the decoded value of a string, or the source of any other scalar.
	Text    string
	Items   []*Node
	Members []Member
	// mark contains the anchor and the tag of a YAML value. It begins with a question mark if a key is not a string.
	mark string
}

// A Member is a member of a map.
type Member struct {
	Name  string
	Value *Node
}

// Get returns the value at a path of keys, or nil if it does not exist.
func (n *Node) Get(path ...string) *Node {
	for _, key := range path {
		if n = n.member(key); n == nil {
			return nil
		}
	}
	return n
}

func (n *Node) member(name string) *Node {
	if n == nil || n.Kind != Map {
		return nil
	}
	for _, m := range n.Members {
		if m.Name == name {
			return m.Value
		}
	}
	return nil
}

// Entry is a named entry of a container.
type Entry struct {
	Name  string
	Value *Node
}

// Entries returns the entries of the container at path. It skips list items that have no name.
func (n *Node) Entries(l Layout, path ...string) []Entry {
	container := n.Get(path...)
	if container == nil {
		return nil
	}
	var out []Entry
	for _, m := range container.Members {
		out = append(out, Entry(m))
	}
	for _, item := range container.Items {
		if name := item.Get(l.NameKey); l.NameKey != "" && name != nil && name.Kind == String {
			out = append(out, Entry{name.Text, item})
		}
	}
	return out
}

// find returns an entry, or nil if it does not exist.
func (n *Node) find(l Layout, path []string) *Node {
	for _, e := range n.Entries(l, path[:len(path)-1]...) {
		if e.Name == path[len(path)-1] {
			return e.Value
		}
	}
	return nil
}

// missing returns the number of containers on the path to an entry that do not exist.
func (n *Node) missing(path []string) int {
	for i := range len(path) - 1 {
		if n.Get(path[:i+1]...) == nil {
			return len(path) - 1 - i
		}
	}
	return 0
}

// with returns a copy of the tree in which an entry has the given value. If the value is nil, the copy omits the entry.
func (n *Node) with(l Layout, path []string, value *Node) *Node {
	if len(path) == 1 && l.NameKey != "" {
		return n.withItem(l.NameKey, path[0], value)
	}
	out := &Node{Kind: Map}
	if n != nil && n.Kind == Map {
		out.Members = slices.Clone(n.Members)
	}
	at := slices.IndexFunc(out.Members, func(m Member) bool { return m.Name == path[0] })
	if len(path) > 1 {
		value = n.member(path[0]).with(l, path[1:], value)
	}
	switch {
	case at >= 0 && value == nil:
		out.Members = slices.Delete(out.Members, at, at+1)
	case at >= 0:
		out.Members[at].Value = value
	case value != nil:
		out.Members = append(out.Members, Member{path[0], value})
	}
	return out
}

func (n *Node) withItem(nameKey, name string, value *Node) *Node {
	out := &Node{Kind: List}
	if n != nil && n.Kind == List {
		out.Items = slices.Clone(n.Items)
	}
	at := slices.IndexFunc(out.Items, func(item *Node) bool {
		have := item.member(nameKey)
		return have != nil && have.Kind == String && have.Text == name
	})
	switch {
	case at >= 0 && value == nil:
		out.Items = slices.Delete(out.Items, at, at+1)
	case at >= 0:
		out.Items[at] = value
	case value != nil:
		out.Items = append(out.Items, value)
	}
	return out
}

// pruned returns a copy of the tree without the empty containers on a path.
func (n *Node) pruned(path []string) *Node {
	for i := len(path) - 1; i > 0; i-- {
		if c := n.Get(path[:i]...); c == nil || c.empty() {
			n = n.with(Layout{}, path[:i], nil)
		}
	}
	return n
}

func (n *Node) empty() bool {
	return n.Kind == Null || (n.Kind == Map || n.Kind == List) && len(n.Members)+len(n.Items) == 0
}

// Equal reports whether two values are equal. It ignores the order of members.
func (n *Node) Equal(other *Node) bool { return n.equal(other) }

func (n *Node) equal(other *Node) bool { return n.digest() == other.digest() }

// digest returns a hash that does not depend on the order of members.
func (n *Node) digest() string { return digest(n.appendTo(nil)) }

func (n *Node) appendTo(b []byte) []byte {
	if n == nil {
		return append(b, "none"...)
	}
	b = append(b, byte('0'+n.Kind), '(')
	b = strconv.AppendQuote(strconv.AppendQuote(b, n.Text), n.mark)
	for _, item := range n.Items {
		b = item.appendTo(append(b, ','))
	}
	sorted := slices.SortedFunc(slices.Values(n.Members), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range sorted {
		b = m.Value.appendTo(append(strconv.AppendQuote(append(b, ','), m.Name), ':'))
	}
	return append(b, ')')
}

// nodeOf converts the value of an [Edit] to a node.
func nodeOf(value any) *Node {
	switch v := value.(type) {
	case bool:
		return &Node{Kind: Bool, Text: strconv.FormatBool(v)}
	case int:
		return &Node{Kind: Number, Text: strconv.Itoa(v)}
	case string:
		return &Node{Kind: String, Text: v}
	case []string:
		n := &Node{Kind: List}
		for _, item := range v {
			n.Items = append(n.Items, nodeOf(item))
		}
		return n
	case *Node:
		return v
	case Object:
		n := &Node{Kind: Map}
		for _, f := range v {
			n.Members = append(n.Members, Member{f.Name, nodeOf(f.Value)})
		}
		return n
	default:
		panic(fmt.Sprintf("configedit: a value of type %T", value))
	}
}
