package inputschema

import (
	"errors"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxPattern limits the size of a pattern, which is roughly the number of instructions in the compiled pattern.
	maxPattern = 4_000
	// maxPatterns limits the total size of all patterns in a schema.
	maxPatterns = 40_000
)

var errPatternSize = errors.New("the pattern is too large")

// A pattern is a regular expression with its size.
type pattern struct {
	*regexp.Regexp

	size int
}

// steps returns the number of steps for searching the pattern in a text. A search takes at most about ten nanoseconds
// for each pair of a byte in the text and an instruction in the pattern.
func (p *pattern) steps(text string) int { return 1 + (len(text)+1)*p.size/32 }

// A patternCompiler compiles the patterns of one schema.
type patternCompiler struct {
	// size is the total size of all patterns compiled so far.
	size int
	// err is the first error that occurred.
	err error
}

// compile implements [jsonschema.RegexpEngine].
func (c *patternCompiler) compile(text string) (jsonschema.Regexp, error) {
	compiled, err := c.compilePattern(text)
	if err != nil && c.err == nil {
		c.err = err
	}
	return compiled, err
}

func (c *patternCompiler) compilePattern(text string) (jsonschema.Regexp, error) {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := sizeOf(tree)
	if c.size += size; size > maxPattern || c.size > maxPatterns {
		return nil, errPatternSize
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return &pattern{compiled, size}, nil
}

// sizeOf returns the size of a pattern. It multiplies the size of an expression by the number of its repetitions,
// because package regexp compiles `x{1000}` into a thousand copies of the instructions for `x`.
func sizeOf(tree *syntax.Regexp) int {
	size := 1 + len(tree.Rune)
	for _, sub := range tree.Sub {
		size += min(sizeOf(sub), maxPattern+1)
	}
	if tree.Op == syntax.OpRepeat {
		size *= max(tree.Min, tree.Max, 1)
	}
	return min(size, maxPattern+1)
}
