// Package document parses policy documents in YAML into documents of package engine. It reports unknown keys and
// invalid values as errors. A document has this form:
//
//	version: 1
//	name: starter                  # if absent: the file's name without its extension
//	server: claude-flow            # a name or a pattern; if absent: every server
//	default: deny                  # deny, allow or by_risk
//	tools:                         # by name
//	  wasm_agent_todos:     {action: allow}
//	  wasm_agent_export:    {rate_limit: {max: 10, window: 60}}
//	  wasm_agent_terminate: {action: deny, reason: ask the owner to stop the agent instead}
//	rules:                         # by patterns for tools, methods and callers
//	  - name: exports-need-finance
//	    match: {tool: "*_export", groups: [contractors, "guest-*"]}
//	    action: require_approval   # allow, deny, hide, require_approval, or none
//	    reason: exports carry the whole conversation
//	    rate_limit: {max: 30, window: 1h, per: [principal]}
//	    approvers: [finance]
//	    quorum: 2
//	    decide_within: 1h
//	    execute_within: 10m
//	    grant: {calls: 10, within: 1h, critical: true, where: args.format == "csv"}
//	    approve_with: {max_age: 5m, acr: [phr]}
//	    idempotent: true
//	    timeout: 20s
//	    forward: strict            # the arguments must satisfy the tool's input schema
//	    redact:                    # values that are replaced by a text such as [redacted: email]
//	      results: {detect: [secrets, email], paths: [/user/phone]}
//	      arguments: {detect: [secrets]}
//	    record: {arguments: redacted}  # an encrypted copy of the arguments is stored
//	  - name: only-drafts
//	    match: {tool: "create_*"}
//	    when: args.draft == true   # a condition; see package condition
//	    action: allow
//	    otherwise: {action: deny, reason: agents create drafts only}
//	tests:                         # calls with the decisions that the documents must give; see Set.RunTests
//	  - call: {tool: create_issue, args: {draft: false}}
//	    want: {action: deny, rule: only-drafts.otherwise}
//
// A rule or an entry with `when` decides a call only if the condition is true. `otherwise` decides the call if the
// condition is false. It can contain the same keys as a rule without a condition.
//
// In `match`, the values of the keys method, tool, prompt, uri, server, agent, principal, groups and tenant are a
// pattern or a list of patterns (see [engine.Match]). The values of category, risk and tags are a name or a list of
// names that the catalog assigns to tools. The key annotations maps names to values. An absent key matches everything,
// with one exception: a rule without method matches only tools/call. If it has prompt or uri, it matches the methods
// that name a prompt or a URI instead. `default` applies only to tools/call.
//
// An entry under `tools` that has a limit and no action allows the tool. All other entries and rules without an action
// decide nothing. Their limits, timeout, forward, redact and record apply if another rule or a default allows the call.
//
// A rule, an entry or a document with `mode: observe` is not enforced until the time in `until` (see package observe).
//
// `rate_limit` is a limit or a list of limits. The window is a number of seconds, or a duration such as 90s, 1h or 7d.
// `per` lists the dimensions by which calls are counted separately: session, principal, owner, agent, tenant, server
// and tool. The default for an entry is to count calls separately for each session, server and tool. The default for a
// rule is to count all calls that it matches separately for each session. All other durations have the same syntax as
// windows.
package document

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// maxProblems limits the number of problems that are reported for one document.
const maxProblems = 100

// A File is the text of one document.
type File struct {
	// Path is the path of the file for messages. If the text contains no name for the document, the name is derived from
	// Path.
	Path string
	// Text is YAML or JSON. It has at most [strictyaml.MaxBytes].
	Text []byte
}

// A Set contains documents that were parsed from several files.
type Set struct {
	// Documents contains the documents, in the order of the files.
	Documents []engine.Document
	// Warnings contains problems in rules that probably do not do what their author meant. Documents with warnings can
	// still be loaded.
	Warnings strictyaml.Errors
	// Tests contains the tests of all documents. Run them with [Set.RunTests].
	Tests []Test
}

// ParseSet parses documents that would be active together. The parameter now is the current time. If people is not nil,
// ParseSet also checks that there are enough people to approve calls. The error is a [strictyaml.Errors] with all
// problems in all files.
func ParseSet(files []File, people *engine.Approvers, now time.Time) (*Set, error) {
	var problems strictyaml.Errors
	set := &Set{Documents: make([]engine.Document, 0, len(files))}
	owners := make(map[string]string)
	var readers []*reader
	for _, f := range files {
		r, d, err := parse(f.Path, f.Text, people, now)
		if found, ok := errors.AsType[strictyaml.Errors](err); ok {
			problems = append(problems, found...)
			continue
		} else if err != nil {
			return nil, err
		}
		if owner, taken := owners[d.Name]; taken {
			problems = append(problems, r.source.Problem("name",
				fmt.Sprintf("another document has the name %q: %s", d.Name, owner), "give each document a different name"))
			continue
		}
		owners[d.Name] = f.Path
		set.Documents = append(set.Documents, d)
		set.Warnings = append(set.Warnings, r.warnings...)
		set.Tests = append(set.Tests, r.read...)
		readers = append(readers, r)
	}
	if len(problems) > 0 {
		return nil, problems // sorted by file, and by position in each file
	}
	for _, w := range engine.CheckOverlaps(set.Documents) {
		set.Warnings = append(set.Warnings, readers[w.Document].problem(w.ParseError))
	}
	return set, nil
}

// parse parses one document. It returns the document and its reader, which knows the positions of the rules. The error
// is a [strictyaml.Errors].
func parse(file string, text []byte, people *engine.Approvers, now time.Time) (*reader, engine.Document, error) {
	source, err := strictyaml.Parse(file, text)
	if err != nil {
		return nil, engine.Document{}, err
	}
	if source.Empty() {
		return nil, engine.Document{}, strictyaml.Errors{
			source.Problem("", "is empty", "a policy starts with version: 1"),
		}
	}
	var f form
	r := &reader{source: source, now: now}
	if found, ok := errors.AsType[strictyaml.Errors](source.Decode(&f)); ok {
		addKindHints(found)
		if slices.ContainsFunc(found, func(p strictyaml.Problem) bool { return p.Message == notAPolicy }) {
			return nil, engine.Document{}, found
		}
		r.problems = found // the decoded parts are checked too
	}
	d := r.document(&f)
	if people != nil && len(r.problems) == 0 {
		for _, fault := range people.Check(&d) {
			r.addParseError(fault, &f)
		}
	}
	if err := r.problems.Err(); err != nil {
		return nil, engine.Document{}, err
	}
	return r, d, nil
}

// A reader converts the YAML form of a document to an [engine.Document], and collects the problems in it.
type reader struct {
	source   *strictyaml.Source
	now      time.Time
	problems strictyaml.Errors
	warnings strictyaml.Errors
	// rulePaths contains the YAML path of each engine rule, in the order of the rules.
	rulePaths []string
	// read contains the tests that were read from the document.
	read []Test
}

// add adds a problem with the value at a path, unless there already is a problem at or below the path. Otherwise a
// value that could not be decoded would also be reported as missing.
func (r *reader) add(at, message, suggestion string) {
	if len(r.problems) >= maxProblems {
		return
	}
	p := r.source.Problem(at, message, suggestion)
	inside := func(known strictyaml.Problem) bool {
		rest, ok := strings.CutPrefix(known.Path, p.Path)
		return ok && (p.Path == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	if !slices.ContainsFunc(r.problems, inside) {
		r.problems = append(r.problems, p)
	}
}

func (r *reader) document(f *form) engine.Document {
	if f.Default == nil && f.Tools == nil && f.Rules == nil {
		r.add("", "has no content", "add default, tools or rules")
	}
	r.version(f.Version)
	d := engine.Document{Name: nameOf(r.source.File()), Default: r.defaultAction(f.Default)}
	if f.Name != nil {
		d.Name = *f.Name
	}
	if f.Server != nil {
		d.Server = *f.Server
		r.checkFilled("server", d.Server != "", "remove it if the document applies to every server")
	}
	r.checkFilled("tools", f.Tools == nil || len(f.Tools) > 0, "remove it")
	r.checkFilled("rules", f.Rules == nil || len(f.Rules) > 0, "remove it")
	d.ObserveUntil = r.observe("", "document", f.Mode, f.Until)
	r.addRules(f, &d)
	for _, fault := range d.Check() {
		r.addParseError(fault, f)
	}
	r.read = r.tests(f, &d)
	return d
}

// addParseError adds a problem or warning from package engine.
func (r *reader) addParseError(fault engine.ParseError, f *form) {
	if fault.Rule < 0 {
		if fault.Field == "name" && f.Name == nil {
			fault.Suggestion = "the document can't have the file's name: add name"
		}
		r.add(fault.Field, fault.Message, fault.Suggestion)
		return
	}
	at := r.rulePaths[fault.Rule]
	if fault.Field != "" {
		at += "." + fault.Field
	}
	if fault.Warning {
		r.warnings = append(r.warnings, r.source.Problem(at, fault.Message, fault.Suggestion))
		return
	}
	r.add(at, fault.Message, fault.Suggestion)
}

// checkFilled adds a problem for an empty value at the given path, unless ok is true.
func (r *reader) checkFilled(at string, ok bool, suggestion string) {
	if !ok {
		r.add(at, "is empty", suggestion)
	}
}

func (r *reader) version(version *int) {
	switch {
	case version == nil:
		r.add("version", "is required", "start with version: 1")
	case *version != 1:
		r.add("version", fmt.Sprintf("%d is not supported by this version", *version), "write version: 1")
	}
}

func (r *reader) defaultAction(text *string) engine.Default {
	switch {
	case text == nil:
		return engine.DefaultNone
	case *text == "deny":
		return engine.DefaultDeny
	case *text == "allow":
		return engine.DefaultAllow
	case *text == "by_risk":
		return engine.DefaultByRisk
	default:
		r.add("default", fmt.Sprintf("unknown default %q", *text), strictyaml.Suggest(*text, []string{"deny", "allow", "by_risk"}))
	}
	return engine.DefaultDeny
}

// nameOf derives the name of a document without a name from the path of its file.
func nameOf(file string) string {
	base := path.Base(filepath.ToSlash(file))
	return strings.TrimSuffix(base, path.Ext(base))
}
