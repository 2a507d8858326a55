// Package document reads policy documents: their YAML form, strictly, into rules
// of the engine.
//
//	version: 1
//	name: starter                  # the file's name without its extension where absent
//	server: claude-flow            # a name or a pattern; every server where absent
//	default: deny                  # deny, allow or by_risk
//	tools:                         # by name
//	  wasm_agent_todos:     {action: allow}
//	  wasm_agent_export:    {rate_limit: {max: 10, window: 60}}
//	  wasm_agent_terminate: {action: deny, reason: ask the owner to stop the agent instead}
//	rules:                         # by pattern, and for whom
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
//	    idempotent: true
//
// `match` has the keys method, tool, prompt, uri, server, agent, principal, groups and tenant, each
// a pattern or a list of them; [engine.Match] has the language of patterns. It also knows what
// the catalog gives a tool: category, risk and tags, each a name or a list of
// them, and annotations by name. An absent key matches everything, except method:
// without it a rule concerns only tools/call, or the methods that name a prompt or a URI
// if it has such a key; `default` always concerns tools/call.
//
// Under `tools` an entry with only a limit allows the tool. Under `rules` a rule
// without an action decides nothing; its limits hold if something else allows the call.
//
// `rate_limit` is one limit or a list of them. Its window is a number of seconds
// or a duration such as 90s, 1h or 7d; `per` lists session, principal, owner, agent, tenant, server, tool. Without
// `per`, an entry's limit is counted per session, server and tool, and a rule's per session, shared by all that the
// rule matches. Other times are written in the same form as windows.
package document

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// maxProblems bounds how many problems of one document are reported.
const maxProblems = 100

// A File is the text of one document.
type File struct {
	// Path names the file in messages, and the document if it has no name.
	Path string
	// Text is YAML or JSON, at most [strictyaml.MaxBytes].
	Text []byte
}

// A Set is the content of files.
type Set struct {
	// Documents are the documents of the files, in their order.
	Documents []engine.Document
	// Warnings are about rules that probably do not do what their author meant. The documents load nevertheless.
	Warnings strictyaml.Errors
}

// ParseSet reads documents that are to be active together. people are the holders of tokens; nil if they are not
// known, and then nothing is checked about them. The error is a [strictyaml.Errors] with every problem of every file.
func ParseSet(files []File, people *engine.People) (*Set, error) {
	var problems strictyaml.Errors
	set := &Set{Documents: make([]engine.Document, 0, len(files))}
	owners := make(map[string]string)
	for _, f := range files {
		r, d, err := parse(f.Path, f.Text, people)
		if found, ok := errors.AsType[strictyaml.Errors](err); ok {
			problems = append(problems, found...)
			continue
		} else if err != nil {
			return nil, err
		}
		if owner, taken := owners[d.Name]; taken {
			problems = append(problems, r.source.Problem("name",
				fmt.Sprintf("another document has the name %q: %s", d.Name, owner), "give each a name of its own"))
			continue
		}
		owners[d.Name] = f.Path
		set.Documents = append(set.Documents, d)
		set.Warnings = append(set.Warnings, r.warnings...)
	}
	if len(problems) > 0 {
		return nil, problems // by file, each sorted
	}
	return set, nil
}

// parse reads one document, and returns it with its reader. The error is a [strictyaml.Errors].
func parse(file string, text []byte, people *engine.People) (*reader, engine.Document, error) {
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
	r := &reader{source: source}
	if found, ok := errors.AsType[strictyaml.Errors](source.Decode(&f)); ok {
		r.problems = found // what could be read is looked at all the same
	}
	d := r.document(&f)
	if people != nil && len(r.problems) == 0 {
		for _, fault := range people.Faults(&d) {
			r.fault(fault, &f)
		}
	}
	if err := r.problems.Err(); err != nil {
		return nil, engine.Document{}, err
	}
	return r, d, nil
}

// A reader turns one form into a document and collects its problems.
type reader struct {
	source   *strictyaml.Source
	problems strictyaml.Errors
	warnings strictyaml.Errors
	// places are the paths of the document's rules.
	places []string
}

// add reports a problem, unless one is known at the same place or inside it, because what could not be read is not
// also missing.
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
		r.add("", "says nothing", "give it default, tools or rules")
	}
	r.version(f.Version)
	d := engine.Document{Name: nameOf(r.source.File()), Default: r.fallback(f.Default)}
	if f.Name != nil {
		d.Name = *f.Name
	}
	if f.Server != nil {
		d.Server = *f.Server
		r.filled("server", d.Server != "", "take it out for every server")
	}
	r.filled("tools", f.Tools == nil || len(f.Tools) > 0, "take it out")
	r.filled("rules", f.Rules == nil || len(f.Rules) > 0, "take it out")
	r.rules(f, &d)
	for _, fault := range d.Faults() {
		r.fault(fault, f)
	}
	return d
}

// fault reports a fault that the engine found in the document.
func (r *reader) fault(fault engine.Fault, f *form) {
	if fault.Rule < 0 {
		if fault.Field == "name" && f.Name == nil {
			fault.Suggestion = "the file's name can't be the document's: add name"
		}
		r.add(fault.Field, fault.Message, fault.Suggestion)
		return
	}
	at := r.places[fault.Rule]
	if fault.Field != "" {
		at += "." + fault.Field
	}
	if fault.Warning {
		r.warnings = append(r.warnings, r.source.Problem(at, fault.Message, fault.Suggestion))
		return
	}
	r.add(at, fault.Message, fault.Suggestion)
}

// filled reports a value that is present but empty.
func (r *reader) filled(at string, ok bool, suggestion string) {
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

func (r *reader) fallback(text *string) engine.Default {
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

// nameOf returns the document name that a file name gives.
func nameOf(file string) string {
	base := path.Base(filepath.ToSlash(file))
	return strings.TrimSuffix(base, path.Ext(base))
}
