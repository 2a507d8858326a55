// Package redaction replaces values in messages. It replaces the values that the paths in a policy select, and
// everything that the policy's detectors find.
//
// In a result, a path can begin at four places. These are the result itself, its structuredContent, the data of an
// error, and every string that contains JSON, even if that string is inside another string with JSON. The message stays
// valid JSON-RPC, and the parts that MCP defines keep their types. A result that can't be searched is replaced as a
// whole.
//
// Strings are searched in their decoded form. The base64 of images, audio and blobs is replaced only if a path selects
// it. If a value that MCP defines as base64 contains anything else, it is searched.
package redaction

import (
	"slices"
	"sync"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/detect"
	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

// Replacements are counted under these names and under the names of detectors.
const (
	// ByPath counts values that a path has selected.
	ByPath = "path"
	// Whole counts results and messages that were replaced or dropped as a whole because they could not be searched. It
	// also counts members that were removed from messages because JSON-RPC does not define them.
	Whole = "whole"
)

// Names returns all names under which replacements are counted.
func Names() []string { return append(detect.Names(), ByPath, Whole) }

// A Count states how many values were replaced under one name.
type Count struct {
	// Name is one of [Names].
	Name string
	// N is how many values were replaced. It is at least 1.
	N int64
}

// A Redactor replaces values in the messages of one call. A nil Redactor changes nothing. A Redactor is safe for
// concurrent use.
type Redactor struct {
	list               []*policyv1.Redaction
	results, arguments plan
	// timeslice waits until the caller may use a processor to search a message of the given size. It may be nil.
	timeslice func(bytes int) (end func(), err error)

	mu     sync.Mutex
	counts map[string]int64
}

// A plan contains what to replace in results or in arguments.
type plan struct {
	paths []valuepath.Path
	set   detect.Set
}

func (p *plan) isEmpty() bool { return len(p.paths) == 0 && p.set.IsEmpty() }

// Supports reports whether this package can apply all redactions in a decision's list.
func Supports(list []*policyv1.Redaction) bool {
	_, ok := compile(list)
	return ok
}

// New returns the redactor for a decision's list of redactions, which [Supports] must have accepted. It returns nil if
// the list is empty. The redactor calls timeslice before it searches a message, with the size of the message in bytes.
// timeslice may be nil.
func New(list []*policyv1.Redaction, timeslice func(bytes int) (end func(), err error)) *Redactor {
	if len(list) == 0 {
		return nil
	}
	r, _ := compile(list)
	r.list, r.timeslice = list, timeslice
	return r
}

// Makes reports whether the redactor applies all redactions in the list.
func (r *Redactor) Makes(list []*policyv1.Redaction) bool {
	return !slices.ContainsFunc(list, func(one *policyv1.Redaction) bool {
		return r == nil || !slices.ContainsFunc(r.list, func(own *policyv1.Redaction) bool {
			return own.GetTarget() == one.GetTarget() && own.GetPath() == one.GetPath() && own.GetDetector() == one.GetDetector()
		})
	})
}

// MakesInArguments reports whether the redactor applies all redactions of arguments in the list.
func (r *Redactor) MakesInArguments(list []*policyv1.Redaction) bool {
	return !slices.ContainsFunc(list, func(one *policyv1.Redaction) bool {
		return one.GetTarget() != policyv1.RedactionTarget_REDACTION_TARGET_RESULT && !r.Makes([]*policyv1.Redaction{one})
	})
}

// With returns a redactor that also applies the redactions of another decision on the same call. If the redactor
// already applies all of them, With returns it unchanged. timeslice has the same meaning as for [New].
func (r *Redactor) With(list []*policyv1.Redaction, timeslice func(bytes int) (end func(), err error)) *Redactor {
	if r.Makes(list) {
		return r
	}
	if r == nil {
		return New(list, timeslice)
	}
	out := New(slices.Concat(r.list, list), timeslice)
	for _, c := range r.Counts() {
		out.counts[c.Name] = c.N
	}
	return out
}

func compile(list []*policyv1.Redaction) (*Redactor, bool) {
	r, ok := &Redactor{counts: make(map[string]int64)}, true
	var results, arguments []string
	for _, one := range list {
		target := one.GetTarget()
		inResults, inArguments := target != policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS, target != policyv1.RedactionTarget_REDACTION_TARGET_RESULT
		ok = ok && target >= 0 && target <= policyv1.RedactionTarget_REDACTION_TARGET_RESULT && (one.GetPath() == "") != (one.GetDetector() == "")
		if name := one.GetDetector(); name != "" {
			results, arguments = appendIf(results, name, inResults), appendIf(arguments, name, inArguments)
			continue
		}
		path, err := valuepath.Parse(one.GetPath())
		ok = ok && err == nil
		r.results.paths, r.arguments.paths = appendIf(r.results.paths, path, inResults), appendIf(r.arguments.paths, path, inArguments)
	}
	var err, argumentsErr error
	r.results.set, err = detect.NewSet(results...)
	r.arguments.set, argumentsErr = detect.NewSet(arguments...)
	return r, ok && err == nil && argumentsErr == nil
}

func appendIf[T any](list []T, value T, add bool) []T {
	if add {
		return append(list, value)
	}
	return list
}

// Counts returns how many values were replaced so far under each name, in the order of [Names]. It omits names without
// replacements.
func (r *Redactor) Counts() (out []Count) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range Names() {
		if n := r.counts[name]; n > 0 {
			out = append(out, Count{name, n})
		}
	}
	return out
}

func (r *Redactor) count(found map[string]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, n := range found {
		r.counts[name] += n
	}
}
