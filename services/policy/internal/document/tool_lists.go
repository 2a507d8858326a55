package document

import (
	"time"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// A Finding is a problem from package engine with its position.
type Finding struct {
	Problem strictyaml.Problem
	// Check is the name of the check that found the problem. Names of checks never change.
	Check string
	// Warning and Info have the same meaning as in [engine.Finding]. If both are false, the finding is an error.
	Warning, Info bool
}

// CheckLists checks the documents against the tool lists of servers. It skips files that can't be loaded.
func CheckLists(files []File, lists *engine.ToolLists) []Finding {
	var readers []*reader
	var documents []engine.Document
	for _, f := range files {
		if r, d, err := parse(f.Path, f.Text, nil, time.Now()); err == nil {
			readers, documents = append(readers, r), append(documents, d)
		}
	}
	var out []Finding
	for _, f := range lists.Check(documents) {
		one := Finding{Problem: strictyaml.Problem{Message: f.Message, Suggestion: f.Suggestion}, Check: f.Check, Warning: f.Warning, Info: f.Info}
		if f.Document >= 0 {
			one.Problem = readers[f.Document].problem(f.ParseError)
		}
		out = append(out, one)
	}
	return out
}

// problem converts a problem from package engine, and adds its position.
func (r *reader) problem(fault engine.ParseError) strictyaml.Problem {
	at := fault.Field
	if fault.Rule >= 0 {
		at = r.rulePaths[fault.Rule]
		if fault.Field != "" {
			at += "." + fault.Field
		}
	}
	return r.source.Problem(at, fault.Message, fault.Suggestion)
}
