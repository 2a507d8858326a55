package strictyaml

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// maxProblems bounds how much is said about one document.
const maxProblems = 100

// A Problem is one thing that is wrong with a document.
type Problem struct { //nolint:errname // one of many things that are wrong, shown as a list
	// File is the name that the caller gave the document.
	File string
	// Line and Column are where it stands, both from 1, the column in characters.
	// Both are 0 where it is about the whole document.
	Line, Column int
	// Path is what it is about, for example `tools.export.rate_limit.max`; empty
	// for the document itself. For an unknown key it is the mapping that has it.
	Path string
	// Message says what is wrong.
	Message string
	// Suggestion says what to do about it; may be empty.
	Suggestion string
}

// Error returns `file:line:column: path: message; suggestion` without the parts
// that are empty.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		b.WriteString(":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column))
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Suggestion != "" {
		b.WriteString("; " + p.Suggestion)
	}
	return b.String()
}

// Errors is every problem of a document, at least one, in the order of the
// document. It is found with errors.AsType[Errors].
type Errors []Problem

// Error returns one line a problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems in the order of their places, or nil where there are
// none, so that a nil list is never a non-nil error.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}
