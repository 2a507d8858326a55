package strictyaml

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// maxProblems limits how many problems are reported for one document.
const maxProblems = 100

// A Problem describes what is wrong at one position in a document.
type Problem struct { //nolint:errname // an item of a list of errors
	// File is the name of the document that the caller passed.
	File string
	// Line and Column are the position of the problem, counted from 1. Column counts characters. Both fields are 0 if
	// the problem concerns the whole document.
	Line, Column int
	// Path is the path of the value, for example `tools.export.rate_limit.max`. It is empty for the document itself. For
	// an unknown key, it is the path of the mapping.
	Path string
	// Message describes the problem.
	Message string
	// Suggestion describes how to solve the problem. It may be empty.
	Suggestion string
}

// Error returns `file:line:column: path: message; suggestion` without empty parts.
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

// Errors contains all problems of a document, in the order of the document. There is at least one problem. Use
// errors.AsType[Errors] to find an Errors in an error.
type Errors []Problem

// Error returns one line for each problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems, sorted by position, or nil if there are none. Returning nil ensures that an empty list
// never becomes a non-nil error.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}
