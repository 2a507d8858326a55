package document

import (
	"fmt"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// redactions returns the redactions in a rule's key redact.
func (r *reader) redactions(at string, f *redact) (out []engine.Redaction) {
	if f == nil {
		return nil
	}
	if f.Results == nil && f.Arguments == nil && !r.has(at) {
		r.add(at, "is empty", redactExample)
	}
	out = r.redactPart(nil, at+".results", engine.RedactResults, f.Results)
	return r.redactPart(out, at+".arguments", engine.RedactArguments, f.Arguments)
}

const (
	redactForm    = "redact: {results: {detect: [secrets, email], paths: [/user/token]}}"
	redactExample = "write for example " + redactForm
)

func (r *reader) redactPart(out []engine.Redaction, at string, target engine.RedactionTarget, f *redactPart) []engine.Redaction {
	if f == nil {
		return out
	}
	if len(f.Paths) == 0 && len(f.Detect) == 0 && !r.has(at) {
		r.add(at, "is empty", redactExample)
	}
	for _, path := range f.Paths {
		if path == "" { // package engine would treat this redaction as one with a detector
			r.add(at+".paths", `the path "" selects the whole value`, "write a JSON Pointer, for example /user/email")
			continue
		}
		out = append(out, engine.Redaction{Target: target, Path: path})
	}
	for _, name := range f.Detect {
		out = append(out, engine.Redaction{Target: target, Detector: name})
	}
	return out
}

// ExplainKey implements strictyaml.Explainer.
func (*redact) ExplainKey(key string) (message, suggestion string, ok bool) {
	switch {
	case key == "result", key == "answer", key == "output", key == "response":
		return fmt.Sprintf("unknown key %q", key), "write results", true
	case key == "args", key == "params", key == "input":
		return fmt.Sprintf("unknown key %q", key), "write arguments", true
	case slices.Contains([]string{"paths", "detect"}, key):
		return fmt.Sprintf("unknown key %q", key), "write it under results or arguments, for example " + redactForm, true
	}
	return "", "", false
}
