// Package dialect translates policies in two other formats to policy documents of Sluice.
//
// [HostedJSON] is the JSON format of a hosted gateway:
//
//	{"version": "1", "default": "deny", "hide": ["delete_account"],
//	 "all_tools": {"limits": [{"counter": "all", "window": "minute", "max": 60, "scope": "grant"}]},
//	 "tools": {"create_refund": {
//	   "require": [{"conditions": [{"path": "args.reason", "op": "exists", "value": true}], "on_deny": "give a reason"}],
//	   "deny_if": [{"conditions": [{"path": "args.amount", "op": "gt", "value": 10000}]}],
//	   "limits": []}}}
//
// [OperatorYAML] is the older YAML format of a local proxy:
//
//	version: "1"
//	default: allow
//	hide: [delete_repository]
//	tools:
//	  create_issue:
//	    rules:
//	      - {name: hourly, rate_limit: 5/hour, on_deny: wait an hour}
//	      - {name: title, conditions: [{path: args.title, op: regex, value: "^[A-Z]"}]}
//	  "*":
//	    rules: [{name: all, rate_limit: 60/minute}]
//
// A translation denies every call that its source denies. If a rule can't be translated, the translation contains a
// rule that denies every call to the tool. Translate then reports a problem with the position of the rule. The
// translation compares values like the source formats, which compare numbers as 64-bit floating-point numbers, and
// other values as text. If this is not possible in Sluice, the call is denied.
package dialect

import (
	"context"
	"fmt"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// These constants limit the size of a policy. A larger policy is not translated.
const (
	// MaxRules limits the number of rules and limits for all tools together.
	MaxRules = 1000
	// MaxConditions limits the number of conditions in all rules together.
	MaxConditions = 2000
	// MaxTools limits the number of tools that a policy lists or hides.
	MaxTools = 10_000
)

// A Format is the format of a policy.
type Format int

// These are the formats. The zero value is not a format.
const (
	// HostedJSON is the JSON format of a hosted gateway.
	HostedJSON Format = iota + 1
	// OperatorYAML is the older YAML format of a local proxy.
	OperatorYAML
)

// String returns the name of the format in commands.
func (f Format) String() string {
	switch f {
	case HostedJSON:
		return "hosted-json"
	case OperatorYAML:
		return "operator-yaml"
	}
	return fmt.Sprintf("Format(%d)", int(f))
}

// Formats returns all formats.
func Formats() []Format { return []Format{HostedJSON, OperatorYAML} }

// A Source is a policy to translate.
type Source struct {
	// File is the name of the policy in messages.
	File string
	// Text is the text of the policy. It has at most [strictyaml.MaxBytes].
	Text []byte
	// Format is the format of Text.
	Format Format
	// Server is the name of the server to which the policy applies, or a pattern for names. It is given separately,
	// because the text of the policy does not contain it.
	Server string
}

// A Severity is how serious a problem is.
type Severity int

// These are the severities.
const (
	// Error means that a part of the policy is not translated. The translation denies all calls that this part could
	// affect.
	Error Severity = iota
	// Warning means that a part of the policy has no effect in the source format, or that its meaning is uncertain.
	Warning
	// Info means that a part of the policy does not affect decisions.
	Info
)

// A Problem is a part of the policy that can't be translated, or that a person should check.
type Problem struct { //nolint:errname // an item of a report
	strictyaml.Problem

	Severity Severity
}

// Translate translates a policy into a policy document in YAML. If the policy can't be read, the document is nil. The
// problems are in the order of their positions in the policy. Translate returns an error only if ctx is done.
func Translate(ctx context.Context, src *Source) (document []byte, problems []Problem, err error) {
	p, found := parse(src)
	if p == nil {
		return nil, found, nil
	}
	t := &translator{policy: p, problems: found, hidden: make(map[string]bool), names: make(map[string]bool)}
	if err := t.translate(ctx); err != nil {
		return nil, nil, err
	}
	return t.text(src), t.sorted(), nil
}

func parse(src *Source) (*policy, []Problem) {
	source, err := strictyaml.Parse(src.File, src.Text)
	if err != nil {
		return nil, problemsOf(err)
	}
	r := &reader{source: source}
	switch {
	case source.Empty():
		r.add(Error, "", "is empty", `a policy starts with version: "1"`)
		return nil, r.problems
	case src.Format == HostedJSON:
		return r.hosted(src.Text), r.problems
	default:
		return r.operator(), r.problems
	}
}
