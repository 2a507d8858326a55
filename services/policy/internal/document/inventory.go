package document

import (
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// UnknownNames returns warnings about names of servers and tools in documents that are not in the inventory. It skips
// documents that do not load.
func UnknownNames(files []File, inventory engine.Inventory) strictyaml.Errors {
	var out strictyaml.Errors
	for _, f := range files {
		r, d, err := parse(f.Path, f.Text, nil)
		if err != nil {
			continue
		}
		for _, fault := range inventory.Check(&d) {
			out = append(out, r.problem(fault))
		}
	}
	return out
}

// problem returns a problem that package engine found, with its position.
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
