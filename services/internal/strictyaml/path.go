package strictyaml

import (
	"iter"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// maxShown is the maximum number of bytes of a key that are shown.
const maxShown = 64

// Key returns the path of the value that a key has in the mapping at path. The empty path is the path of the whole
// document. If a key would make the path ambiguous, it is quoted, as in `tools["a.b"].action`.
func Key(path, key string) string {
	switch {
	case !isPlainKey(key):
		return path + "[" + quote(key) + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}

// Index returns the path of item i in the list at path. The first item has the index 0.
func Index(path string, i int) string {
	return path + "[" + strconv.Itoa(i) + "]"
}

// isPlainKey reports whether a key needs no quotes in a path.
func isPlainKey(key string) bool {
	special := func(r rune) bool {
		return !unicode.IsPrint(r) || unicode.IsSpace(r) || strings.ContainsRune(`.[]"`, r)
	}
	return key != "" && len(key) <= maxShown && !strings.ContainsFunc(key, special)
}

// quote quotes a string from the document as one line without control characters, and truncates it if it is too long.
func quote(text string) string {
	if len(text) <= maxShown {
		return strconv.Quote(text)
	}
	return strconv.Quote(strings.ToValidUTF8(text[:maxShown], "") + "…")
}

// A valuePath is the path to a value while a document is being read. It is formatted only if there is a problem. The
// nil valuePath is the path of the whole document.
type valuePath struct {
	up    *valuePath
	key   string
	index int // the index in a list if item is true
	item  bool
}

func (t *valuePath) toKey(key string) *valuePath { return &valuePath{up: t, key: key} }

func (t *valuePath) toItem(i int) *valuePath { return &valuePath{up: t, index: i, item: true} }

func (t *valuePath) String() string {
	switch {
	case t == nil:
		return ""
	case t.item:
		return Index(t.up.String(), t.index)
	default:
		return Key(t.up.String(), t.key)
	}
}

// A location is a value in a document. If the value is in a mapping, the location also contains the key.
type location struct{ key, value *yaml.Node }

// find returns the value that is at path below the given location. If this value does not exist, find returns the
// nearest ancestor that exists. find also returns the complete path in the form that the document uses. In this form,
// the path of an item that is written without a list has no index.
func find(at location, walked, path string) (location, string) {
	if rest, ok := strings.CutPrefix(path, "[0]"); ok && at.value.Kind != yaml.SequenceNode {
		return find(at, walked, rest)
	}
	for name, child := range children(at.value) {
		rest, ok := strings.CutPrefix(strings.TrimPrefix(path, "."), name)
		if !ok || rest != "" && rest[0] != '.' && rest[0] != '[' {
			continue
		}
		if child.key != nil {
			return find(child, Key(walked, child.key.Value), rest)
		}
		return find(child, walked+name, rest)
	}
	if walked == "" {
		return at, strings.TrimPrefix(path, ".")
	}
	return at, walked + path
}

// children yields each child of n with its name in a path.
func children(n *yaml.Node) iter.Seq2[string, location] {
	return func(yield func(string, location) bool) {
		switch n.Kind { //nolint:exhaustive // nodes of other kinds have no children with paths
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if !yield(Key("", n.Content[i].Value), location{n.Content[i], n.Content[i+1]}) {
					return
				}
			}
		case yaml.SequenceNode:
			for i, item := range n.Content {
				if !yield(Index("", i), location{value: item}) {
					return
				}
			}
		}
	}
}

// position returns the line and column of a location. For a scalar, this is the position of the scalar itself, unless
// the scalar is omitted. For any other value, it is the position of the key, because people look there for a mapping or
// a list.
func (s location) position() (line, column int) {
	n := s.value
	if s.key != nil && (n.Kind != yaml.ScalarNode || n.Tag == nullTag && n.Value == "") {
		n = s.key
	}
	return n.Line, n.Column
}
