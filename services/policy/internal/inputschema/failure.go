package inputschema

import (
	"slices"
	"strconv"
	"strings"
)

// A failure is the reason why a value is refused. Its text contains names and kinds, but no values.
type failure struct {
	path []segment
	why  string
	// These fields are set if the value has the wrong kind. kinds contains the allowed kinds, and is contains the kind of
	// the value. Otherwise both fields are zero.
	kinds, is kind
}

// A segment is one step in a path: the name of a member, or the index of an item.
type segment struct {
	name   string
	index  int
	isName bool
}

const (
	// maxPrinted and maxPrintedPath limit the length in bytes of names and paths in messages. Longer ones are shortened.
	maxPrinted     = 64
	maxPrintedPath = 256
)

// Error implements error.
func (f *failure) Error() string {
	if len(f.path) == 0 {
		return "the arguments: " + f.why
	}
	path := "arguments"
	for _, s := range f.path {
		if len(path) > maxPrintedPath {
			path += "…"
			break
		}
		path += s.String()
	}
	return path + " " + f.why
}

// String returns the segment as it appears in a path after earlier segments.
func (s segment) String() string {
	switch printed := printName(s.name); {
	case !s.isName:
		return "[" + strconv.Itoa(s.index) + "]"
	case strings.HasPrefix(printed, `"`):
		return "[" + printed + "]"
	default:
		return "." + printed
	}
}

// printName formats a name for messages. It shortens a long name, and quotes a name unless the name contains only
// letters, digits, _ and -.
func printName(name string) string {
	if len(name) > maxPrinted {
		name = strings.ToValidUTF8(name[:maxPrinted], "") + "…"
	}
	plain := func(r rune) bool {
		return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return strconv.QuoteToASCII(name)
	}
	return name
}

// fail returns a failure at the path of the value that is being checked.
func (c *checker) fail(why string) *failure {
	c.spend(2 + len(c.path)/4)
	return &failure{path: slices.Clone(c.path), why: why}
}

// failAt returns a failure at the path of a member of the object that is being checked.
func (c *checker) failAt(name, why string) *failure {
	f := c.fail(why)
	f.path = append(f.path, segment{name: name, isName: true})
	return f
}

// noneHolds returns the failure for a value that matches none of several alternatives. The parameter failed contains
// the failure of each alternative. If exactly one alternative allows the kind of the value, noneHolds returns the
// failure of that alternative, because it is more specific.
func (c *checker) noneHolds(failed []*failure) *failure {
	kinds, is := kind(0), kind(0)
	var deeper []*failure
	for _, f := range failed {
		if f.kinds != 0 && len(f.path) == len(c.path) {
			kinds, is = kinds|f.kinds, f.is
		} else {
			deeper = append(deeper, f)
		}
	}
	switch len(deeper) {
	case 0:
		f := c.fail("must be " + kinds.String() + ", not " + is.String())
		f.kinds, f.is = kinds, is
		return f
	case 1:
		return deeper[0]
	}
	return c.fail("fits none of the forms that the schema allows")
}

// String returns the names of the kinds in a set, with articles.
func (k kind) String() string {
	var names []string
	for _, known := range []struct {
		kind kind
		name string
	}{
		{kindNull, "null"}, {kindBoolean, "a boolean"}, {kindNumber, "a number"}, {kindInteger, "an integer"},
		{kindString, "a string"}, {kindArray, "an array"}, {kindObject, "an object"},
	} {
		if k&known.kind != 0 {
			names = append(names, known.name)
		}
	}
	return strings.Join(names, " or ")
}
