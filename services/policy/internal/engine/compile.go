package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// Options contains the settings, apart from the documents, that affect decisions.
type Options struct {
	// SessionCap is a factor between 1 and [MaxSessionCap]. The limit for all sessions of a principal together is the
	// limit for one session multiplied by SessionCap.
	SessionCap int
	// Times contains the durations for approvals. They are the defaults for rules that set no durations.
	Times Times
	// Observe says which servers are in observe mode, in which decisions are recorded but not enforced.
	Observe Observe
	// Now is the time when the documents are compiled. If observe mode of a part of the policy ended before this time, the
	// part is enforced. If Now is zero, everything is enforced.
	Now time.Time
}

// A Set is a set of compiled documents. It is immutable and safe for concurrent use. Its methods do not retain their
// arguments.
type Set struct {
	rules      []*rule // sorted by document and rule
	others     []*rule // rules for methods other than tools/call
	tools      index   // finds the rules for tools/call by tool name
	methods    index   // finds the rules for other methods by method
	fallbacks  fallbacks
	revision   string
	sessionCap int64
	times      Times
	// conditions contains the compiled conditions of rules and grants.
	conditions map[conditionText]*condition.Condition
	// conditional is true if a rule has a condition or checks the arguments against the tool's schema.
	conditional bool
	// stops contains the emergency stops by operators.
	stops Stops

	observation
}

type rule struct {
	Rule
	ref    RuleRef
	order  int // index in Set.rules
	digest [32]byte
	limits []limit
	when   *condition.Condition // condition of the rule, or nil if it has none
	where  *condition.Condition // condition of the grant, or nil if it has none

	documentServers    patterns // servers to which the document applies
	documentServerText []string
	servers            patterns
	methods            patterns // never empty
	tools              patterns
	prompts            patterns
	uris               patterns
	// foldedURIs contains the URI patterns in lower case.
	foldedURIs patterns
	agents     patterns
	names      patterns
	groups     patterns
	tenants    patterns
	// matchesAnyone is true if the rule matches every principal.
	matchesAnyone bool
	// hasToolProperties is true if the rule matches by category, risk, tag or annotation.
	hasToolProperties bool
	// matchesTools is true if the rule can match tools/call. matchesMethods is true if it can match other methods.
	matchesTools, matchesMethods bool
}

// Compile compiles documents. The order of the documents does not matter. A set without documents denies every call.
// The returned error contains every error in every document.
func Compile(documents []Document, options Options) (*Set, error) {
	return compileWith(documents, options, make(map[conditionText]*condition.Condition))
}

// CompilePair compiles two versions of the documents for [Compare].
func CompilePair(before, after []Document, options Options) (old, next *Set, err error) {
	conditions := make(map[conditionText]*condition.Condition) // shared, so that equal conditions are evaluated only once
	if old, err = compileWith(before, options, conditions); err != nil {
		return nil, nil, err
	}
	next, err = compileWith(after, options, conditions)
	return old, next, err
}

// compileWith compiles documents. It reuses the compiled conditions in the map, and adds new ones to it.
func compileWith(documents []Document, options Options, conditions map[conditionText]*condition.Condition) (*Set, error) {
	if options.SessionCap < 1 || options.SessionCap > MaxSessionCap {
		return nil, fmt.Errorf("a session cap of %d is not between 1 and %d", options.SessionCap, MaxSessionCap)
	}
	if options.Times.Decide <= 0 || options.Times.Execute <= 0 {
		return nil, errors.New("the times to decide and to execute must be positive")
	}
	if err := checkDocuments(documents); err != nil {
		return nil, err
	}
	documents = slices.Clone(documents)
	slices.SortFunc(documents, func(a, b Document) int { return cmp.Compare(a.Name, b.Name) })
	s := newSet(withoutObserved(documents, options.Now), &options, conditions)
	s.observe(documents, &options, conditions)
	return s, nil
}

// newSet returns a set that enforces all documents. The documents must be sorted and have no errors. The map contains
// the conditions of all sets that decide on the same calls, so that each condition is evaluated only once for a call.
func newSet(documents []Document, options *Options, conditions map[conditionText]*condition.Condition) *Set {
	s := &Set{tools: newIndex(), methods: newIndex(), fallbacks: newFallbacks(), conditions: conditions, sessionCap: int64(options.SessionCap), times: options.Times}
	for i := range documents {
		s.add(&documents[i])
	}
	for i, r := range s.rules {
		r.order = i
		s.conditional = s.conditional || r.when != nil || r.where != nil || r.Strict
		if r.matchesTools {
			s.tools.add(r, r.tools)
		}
		if r.matchesMethods {
			s.methods.add(r, r.methods)
			s.others = append(s.others, r)
		}
	}
	s.tools.finish()
	s.methods.finish()
	s.revision = revisionOf(documents, s.rules)
	return s
}

// Revision returns the SHA-256 digest of the content of the documents, as 64 hexadecimal digits. It does not depend on
// the order of documents, rules or patterns.
func (s *Set) Revision() string { return s.revision }

func checkDocuments(documents []Document) error {
	var errs []error
	seen := make(map[string]bool)
	for i := range documents {
		d := &documents[i]
		if seen[d.Name] {
			errs = append(errs, fmt.Errorf("two documents have the name %q", d.Name))
		}
		seen[d.Name] = true
		for _, f := range d.Check() {
			if !f.Warning {
				errs = append(errs, f.describe(d))
			}
		}
	}
	return errors.Join(append(errs, checkAllScopes(documents))...)
}

func (f *ParseError) describe(d *Document) error {
	parts := []string{fmt.Sprintf("document %q", d.Name)}
	if f.Rule >= 0 {
		parts = append(parts, fmt.Sprintf("rule %q", d.Rules[f.Rule].label()))
	}
	for _, part := range []string{f.Field, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return errors.New(strings.TrimSuffix(strings.Join(parts, ": ")+"; "+f.Suggestion, "; "))
}

// add compiles the rules of one document, which must have no errors.
func (s *Set) add(d *Document) {
	home := homeOf(d)
	s.fallbacks.add(d, home)
	rules := make([]*rule, len(d.Rules))
	for i := range d.Rules {
		rules[i] = compileRule(d, &d.Rules[i], home)
		rules[i].when = s.compileCondition(conditionText{d.Rules[i].When, d.Rules[i].ExtraArgs})
		rules[i].where = s.compileCondition(conditionText{d.Rules[i].Grant.Where, d.Rules[i].Grant.ExtraArgs})
	}
	slices.SortFunc(rules, func(a, b *rule) int { return cmp.Compare(a.ref.Rule, b.ref.Rule) })
	s.rules = append(s.rules, rules...)
}

// homeOf returns the pattern for the servers to which a document applies, or nil if the document applies to every
// server.
func homeOf(d *Document) patterns {
	if d.Server == "" {
		return nil
	}
	return compilePatterns([]string{d.Server})
}

func compileRule(d *Document, source *Rule, home patterns) *rule {
	r := &rule{
		Rule:            *source,
		ref:             RuleRef{Document: d.Name, Rule: source.label()},
		digest:          digestOf(d, source),
		documentServers: home,
		servers:         compilePatterns(source.Match.Server),
		methods:         compilePatterns(source.Match.methods()),
		tools:           compilePatterns(source.Match.Tool),
		prompts:         compilePatterns(source.Match.Prompt),
		uris:            compilePatterns(source.Match.URI),
		agents:          compilePatterns(source.Match.Agent),
		names:           compilePatterns(source.Match.Principal),
		groups:          compilePatterns(source.Match.Groups),
		tenants:         compilePatterns(source.Match.Tenant),
	}
	if source.Tool != "" {
		r.tools = patterns{{prefix: source.Tool, exact: true}}
	}
	r.foldedURIs = foldPatterns(r.uris)
	r.matchesAnyone = len(r.agents)+len(r.names)+len(r.groups)+len(r.tenants) == 0
	r.hasToolProperties = source.Match.hasProperties()
	r.matchesTools, r.matchesMethods = source.Match.scope()
	if d.Server != "" {
		r.documentServerText = []string{d.Server}
	}
	r.Match = Match{ // copied, because the caller may later change its lists
		Method: slices.Clone(source.Match.Method), Tool: slices.Clone(source.Match.Tool), Server: slices.Clone(source.Match.Server),
		Prompt: slices.Clone(source.Match.Prompt), URI: slices.Clone(source.Match.URI),
		Agent: slices.Clone(source.Match.Agent), Principal: slices.Clone(source.Match.Principal),
		Groups: slices.Clone(source.Match.Groups), Tenant: slices.Clone(source.Match.Tenant),
		Category: slices.Clone(source.Match.Category), Risk: slices.Clone(source.Match.Risk),
		Tags: slices.Clone(source.Match.Tags), Annotations: maps.Clone(source.Match.Annotations),
	}
	r.Approvers = slices.Sorted(slices.Values(source.Approvers))
	r.ApproveWith.ACR = slices.Sorted(slices.Values(source.ApproveWith.ACR))
	r.Redactions = slices.Clone(source.Redactions)
	r.NeedsScope = slices.Sorted(slices.Values(source.NeedsScope))
	r.Limits = nil
	for _, l := range source.Limits {
		r.limits = append(r.limits, compileLimit(r.ref, l))
	}
	slices.SortFunc(r.limits, compareLimits)
	return r
}

// A conditionText is the source text of a condition.
type conditionText struct {
	text      string
	extraArgs bool
}

// compileCondition returns the compiled condition, or nil if the text is empty. It returns the same condition for equal
// texts, so that the condition is evaluated only once for a call.
func (s *Set) compileCondition(source conditionText) *condition.Condition {
	if source.text == "" {
		return nil
	}
	if known := s.conditions[source]; known != nil {
		return known
	}
	c, err := condition.Compile(source.text)
	switch {
	case err != nil: // this can't happen, because Check has compiled the condition before; the zero Condition can't be evaluated
		c = &condition.Condition{}
	case source.extraArgs:
		c = c.WithExtra()
	}
	s.conditions[source] = c
	return c
}

func compilePatterns(texts []string) patterns {
	var ps patterns
	for _, text := range texts {
		g, _, _ := compileGlob(text) // the patterns are valid, because the document has no errors
		ps = append(ps, g)
	}
	return ps
}

// matchesCall reports whether the rule matches the call. It ignores the principal. For a tool call, r.matchesTools must
// be true. For any other call, r.matchesMethods must be true.
func (r *rule) matchesCall(call *Call) bool {
	if !r.documentServers.match(call.Server) || !r.servers.match(call.Server) {
		return false
	}
	if call.OfTool() {
		return r.tools.match(call.Tool) && r.matchesProperties(&call.Facts)
	}
	return r.methods.match(call.Method) && r.matchesName(call)
}

// matchesPrincipal reports whether the rule matches a principal.
func (r *rule) matchesPrincipal(p *Principal) bool {
	return r.matchesAnyone || r.agents.match(p.Agent) && r.names.match(p.Name) &&
		r.groups.matchAny(p.Groups) && r.tenants.match(p.Tenant)
}

// fallbacks contains the defaults in the documents, by the servers to which the documents apply.
type fallbacks struct {
	everywhere fallback
	exact      map[string]fallback
	globs      []fallback
}

// A fallback is the strictest default in several documents, and the first document that has this default. The zero
// fallback means that none of the documents has a default.
type fallback struct {
	value    Default
	document string
	servers  glob
	// table contains the rules that implement `default: by_risk`, and is nil for other defaults.
	table *byRisk
}

func newFallbacks() fallbacks { return fallbacks{exact: make(map[string]fallback)} }

// add adds the default of a document for the servers that match home, or for every server if home is nil. Documents
// must be added in the order of their names.
func (f *fallbacks) add(d *Document, home patterns) {
	own := fallback{value: d.Default, document: d.Name}
	if d.Default == DefaultByRisk {
		own.table = newByRisk(d)
	}
	switch {
	case d.Default == DefaultNone:
	case len(home) == 0:
		f.everywhere = f.everywhere.stricter(own)
	case home[0].exact:
		f.exact[home[0].prefix] = f.exact[home[0].prefix].stricter(own)
	default:
		own.servers = home[0]
		f.globs = append(f.globs, own)
	}
}

func (f *fallbacks) find(server string) fallback {
	best := f.everywhere.stricter(f.exact[server])
	for i := range f.globs {
		if f.globs[i].servers.match(server) {
			best = best.stricter(f.globs[i])
		}
	}
	return best
}

func (f fallback) stricter(o fallback) fallback {
	if o.value > f.value || o.value == f.value && o.document < f.document {
		return o
	}
	return f
}
