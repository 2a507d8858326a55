package strictyaml

import (
	"go.yaml.in/yaml/v4"
)

const noAnchors = "anchors and aliases are not supported"

// A reader collects the problems of one document. It must not be reused.
type reader struct {
	file     string
	problems Errors
}

func (r *reader) report(at location, path *valuePath, message, suggestion string) {
	if len(r.problems) >= maxProblems {
		return
	}
	line, column := at.position()
	r.problems = append(r.problems, Problem{
		File: r.file, Line: line, Column: column, Path: path.String(), Message: message, Suggestion: suggestion,
	})
}

// checkSyntax reports all problems that do not depend on the type of the target.
func (r *reader) checkSyntax(at location, path *valuePath) {
	n := at.value
	switch {
	case len(r.problems) >= maxProblems:
		return // no more problems are reported
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.report(location{value: n}, path, noAnchors, "write the value out in each place")
		return
	case n.Style&yaml.TaggedStyle != 0 || n.Tag == "!":
		r.report(location{value: n}, path, "tags are not supported", "quote the value if it is text")
		return
	}
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			r.checkSyntax(location{value: item}, path.toItem(i))
		}
		return
	}
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !r.checkKey(key, path) {
			continue
		}
		if seen[key.Value] {
			r.report(location{value: key}, path, "the key "+quote(key.Value)+" occurs twice", "keep one of them")
		}
		seen[key.Value] = true
		r.checkSyntax(location{key, value}, path.toKey(key.Value))
	}
}

// checkKey reports whether a key is allowed. If it is not, checkKey adds a problem.
func (r *reader) checkKey(key *yaml.Node, path *valuePath) bool {
	at := location{value: key}
	switch {
	case key.Kind == yaml.AliasNode || key.Anchor != "":
		r.report(at, path, noAnchors, "write the key out")
	case key.Kind != yaml.ScalarNode:
		r.report(at, path, "a key is a mapping or a list", "keys are text")
	case key.Tag == mergeTag:
		r.report(at, path, `the merge key "<<" is not supported`, "write the merged keys out")
	case key.Style&yaml.TaggedStyle != 0 || key.Tag == "!":
		r.report(at, path, "tags are not supported", "quote the key if it is text")
	case key.Tag != strTag:
		r.report(at, path, "a key is not text", "put it in quotes")
	default:
		return true
	}
	return false
}
