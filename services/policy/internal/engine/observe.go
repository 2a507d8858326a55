package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// Observe says which servers are in observe mode because of the configuration, and until when. Decisions for these
// servers are only recorded and not enforced. The zero Observe contains no servers.
type Observe struct {
	// All is the time when observe mode ends for every server, or zero if only some servers are in observe mode.
	All time.Time
	// Servers contains the time when observe mode ends for individual servers, by name.
	Servers map[string]time.Time
}

// An Observation is the decision on a call that would be made without observe mode.
type Observation struct {
	// Effect, Code, Message and Rule have the same meaning as in a [Decision].
	Effect  Effect
	Code    Code
	Message string
	Rule    RuleRef
	// Limits contains the limits that would apply in addition to those in the decision. It is set only if the call is
	// allowed, and would also be allowed without observe mode.
	Limits []Limit
}

// An Observed is a part of the policy that is in observe mode: a rule, a document or a server. If all names are empty,
// it means all servers.
type Observed struct {
	// Server is the name of a server. It is empty for a rule or document, whose names are in Rule.
	Server string
	// Rule is the reference to a rule. For a document, Rule.Rule is empty.
	Rule RuleRef
	// Until is the time when observe mode ends.
	Until time.Time
}

// String returns a description, for example "rule starter/only-drafts".
func (o Observed) String() string {
	switch {
	case o.Server != "":
		return "server " + o.Server
	case o.Rule.Rule != "":
		return "rule " + o.Rule.String()
	case o.Rule.Document != "":
		return "document " + o.Rule.Document
	default:
		return "every server"
	}
}

// observation contains the parts of a set that are in observe mode. The zero observation means that there are none.
type observation struct {
	// enforced is the set in which all documents are enforced. It is nil if nothing is in observe mode.
	enforced *Set
	observed []Observed // in the order of [Set.Observed]
	// documents and options are the arguments of [Compile], so that [Set.At] can compile the documents again.
	documents []Document
	options   Options
	// observesAll is true if all servers are in observe mode. observedServers contains true for each individual server in
	// observe mode.
	observesAll     bool
	observedServers map[string]bool
	// observedHomes contains the server patterns of the documents in observe mode. enforcedHomes contains those of the
	// other documents.
	observedHomes, enforcedHomes []patterns
}

// observedAt reports whether a part of the policy whose observe mode ends at the time until is in observe mode at the
// time now. It returns false if either time is zero.
func observedAt(until, now time.Time) bool { return !now.IsZero() && now.Before(until) }

// withoutObserved returns the documents without the documents and rules that are in observe mode at the given time.
func withoutObserved(documents []Document, now time.Time) []Document {
	var out []Document
	for _, d := range documents {
		if observedAt(d.ObserveUntil, now) {
			continue
		}
		if slices.ContainsFunc(d.Rules, func(r Rule) bool { return observedAt(r.ObserveUntil, now) }) {
			d.Rules = slices.DeleteFunc(slices.Clone(d.Rules), func(r Rule) bool { return observedAt(r.ObserveUntil, now) })
		}
		out = append(out, d)
	}
	return out
}

// observe sets the fields of s for observe mode. The given documents must be all documents of s.
func (s *Set) observe(documents []Document, options *Options, conditions map[conditionText]*condition.Condition) {
	if s.observed = observedParts(documents, options); len(s.observed) == 0 {
		return
	}
	s.documents, s.options = documents, *options
	s.enforced = newSet(documents, options, conditions)
	s.observesAll, s.observedServers = observedAt(options.Observe.All, options.Now), make(map[string]bool)
	for name, until := range options.Observe.Servers {
		s.observedServers[name] = observedAt(until, options.Now)
	}
	for i := range documents {
		home := homeOf(&documents[i])
		if observedAt(documents[i].ObserveUntil, options.Now) {
			s.observedHomes = append(s.observedHomes, home)
		} else {
			s.enforcedHomes = append(s.enforcedHomes, home)
		}
	}
	s.revision = s.observedRevision()
}

// observedParts returns all parts of the policy in observe mode. All servers together come first. Individual servers,
// documents and rules follow, each sorted by name.
func observedParts(documents []Document, options *Options) []Observed {
	var out []Observed
	add := func(o Observed) {
		if observedAt(o.Until, options.Now) {
			out = append(out, o)
		}
	}
	add(Observed{Until: options.Observe.All})
	for _, name := range slices.Sorted(maps.Keys(options.Observe.Servers)) {
		add(Observed{Server: name, Until: options.Observe.Servers[name]})
	}
	for i := range documents {
		add(Observed{Rule: RuleRef{Document: documents[i].Name}, Until: documents[i].ObserveUntil})
	}
	for i := range documents {
		d := &documents[i]
		rules := slices.SortedFunc(slices.Values(d.Rules), func(a, b Rule) int { return strings.Compare(a.label(), b.label()) })
		for j := range rules {
			label := strings.TrimSuffix(rules[j].label(), otherwiseSuffix)
			add(Observed{Rule: RuleRef{Document: d.Name, Rule: label}, Until: rules[j].ObserveUntil})
		}
	}
	return withoutDuplicates(out)
}

// withoutDuplicates removes duplicates from a list. Duplicates occur because a rule and the rule for its `otherwise`
// have the same name in the list.
func withoutDuplicates(list []Observed) []Observed {
	seen := make(map[Observed]bool)
	return slices.DeleteFunc(list, func(o Observed) bool {
		again := seen[o]
		seen[o] = true
		return again
	})
}

// observedRevision returns the revision of a set in which a part is in observe mode.
func (s *Set) observedRevision() string {
	var c canonicalForm
	c.text("sluice.revision.observed.v1")
	c.text(s.enforced.revision)
	for _, o := range s.observed {
		for _, part := range []string{o.Server, o.Rule.Document, o.Rule.Rule} {
			c.text(part)
		}
		c.number(o.Until.UnixNano())
	}
	sum := sha256.Sum256(c)
	return hex.EncodeToString(sum[:])
}

// Observed returns the parts of the policy in observe mode. All servers together come first. Individual servers,
// documents and rules follow, each sorted by name.
func (s *Set) Observed() []Observed { return slices.Clone(s.observed) }

// Until returns the earliest time when observe mode ends for a part of the policy. At that time, the documents must be
// compiled again. If nothing is in observe mode, Until returns the zero time.
func (s *Set) Until() time.Time {
	var first time.Time
	for _, o := range s.observed {
		if first.IsZero() || o.Until.Before(first) {
			first = o.Until
		}
	}
	return first
}

// At compiles the same documents for the given time, and returns a set with the same stops. If nothing is in observe
// mode, At returns s. The documents must not have changed since [Compile].
func (s *Set) At(now time.Time) (*Set, error) {
	if s.enforced == nil {
		return s, nil
	}
	options := s.options
	options.Now = now
	next, err := Compile(s.documents, options)
	if err != nil {
		return nil, err
	}
	return next.WithStops(s.stops), nil
}

// withoutObservation returns the set without observe mode.
func (s *Set) withoutObservation() *Set {
	if s.enforced == nil {
		return s
	}
	return s.enforced
}

// observesServer reports whether a server is in observe mode. A server is in observe mode if the configuration says so,
// or if at least one document applies to it and all documents that apply to it are in observe mode.
func (o *observation) observesServer(server string) bool {
	if o.observesAll || o.observedServers[server] {
		return true
	}
	applies := func(home patterns) bool { return home.match(server) }
	return slices.ContainsFunc(o.observedHomes, applies) && !slices.ContainsFunc(o.enforcedHomes, applies)
}

// opens reports whether the server of a call is in observe mode. If so, the call is allowed even if rules or defaults
// would refuse it or hold it for approval. If [Call.needsModelRule] is true, opens returns false, because the call
// costs money.
func (s *Set) opens(call *Call) bool {
	return s.enforced != nil && !call.needsModelRule() && s.observesServer(call.Server)
}

// openableCodes contains the codes of refusals by rules and defaults. Observe mode does not change decisions with other
// codes. ToolUnknown can also mean that the tool or the server does not exist. In that case [Decision.open] still
// refuses the call.
var openableCodes = []Code{DeniedByRule, DeniedByDefault, MethodDenied, ToolUnknown, TypeError, ScopeMissing, ApprovalRequired}

// open relaxes a decision for a server in observe mode. It allows a call that a rule or a default would refuse or hold
// for approval. The limits, timeouts and redactions in rules do not apply, and arguments are not recorded. Calls that
// the catalog does not permit, or that were refused before rules were evaluated, are still refused.
func (d Decision) open(call *Call) Decision {
	if refusal(call) != "" || d.Effect != Allow && !slices.Contains(openableCodes, d.Code) {
		return d
	}
	if code, why := call.Facts.Status.refusal(call.Server); code != "" {
		return Decision{Code: code, Message: why, ChainIndex: d.ChainIndex}
	}
	if d.Effect != Allow {
		return Decision{Effect: Allow}
	}
	d.Limits, d.Timeout, d.TimeoutRule, d.Redactions, d.Record = nil, 0, RuleRef{}, nil, false
	return d
}

// decideObserved makes the decision on a call. If the decision would be different without observe mode, the result also
// contains that other decision.
func (s *Set) decideObserved(call *Call) (Decision, verdict) {
	d, v := s.decide(call)
	if s.enforced == nil {
		return d, v
	}
	if s.opens(call) {
		d = d.open(call)
	}
	would, _ := s.enforced.decide(call)
	d.Observed = observationOf(&d, &would)
	return d, v
}

// observationOf compares a decision with the decision that would be made without observe mode. It returns nil if both
// have the same effects. If both allow the call, only additional limits count as a difference.
func observationOf(d, would *Decision) *Observation {
	o := &Observation{Effect: would.Effect, Code: would.Code, Message: would.Message, Rule: would.Rule}
	if d.Effect != Allow || would.Effect != Allow {
		if o.Effect == d.Effect && o.Code == d.Code && o.Message == d.Message && o.Rule == d.Rule {
			return nil
		}
		return o
	}
	for _, l := range would.Limits {
		if !slices.ContainsFunc(d.Limits, func(own Limit) bool { return own.Bucket == l.Bucket }) {
			o.Limits = append(o.Limits, l)
		}
	}
	if o.Limits == nil {
		return nil
	}
	return o
}

// observedRules returns the rules that are in observe mode for a call, even if they do not match it. If [Set.opens] is
// true for the call, these are all rules.
func (s *Set) observedRules(call *Call) map[RuleRef]bool {
	out := make(map[RuleRef]bool)
	if s.enforced == nil {
		return out
	}
	for _, r := range s.enforced.rules {
		out[r.ref] = true
	}
	if s.opens(call) {
		return out
	}
	for _, r := range s.rules {
		delete(out, r.ref)
	}
	return out
}

// whyObserved explains a decision, and also the decision that would be made without observe mode.
func (s *Set) whyObserved(d Decision, v verdict, call *Call) string {
	text := s.why(d, v, call)
	code, _ := call.Facts.Status.refusal(call.Server)
	switch opened := s.opens(call); {
	case opened && code != "" && d.Code == code:
		text = fmt.Sprintf("The catalog allows no call of the tool with this definition: it is %s.", call.Facts.Status)
	case opened && d.Effect == Allow && v.action != ActionAllow:
		text = "The server is only observed, so calls that rules or defaults would refuse or ask about are allowed."
	}
	if d.Observed == nil {
		return text
	}
	would, of := s.enforced.decide(call)
	result := map[Effect]string{Deny: "denied", Allow: "allowed", RequireApproval: "held for approval"}[would.Effect]
	switch limits := len(d.Observed.Limits); {
	case limits == 1:
		result += ", with one more limit"
	case limits > 1:
		result += fmt.Sprintf(", with %d more limits", limits)
	}
	return text + " If nothing were observed, the call would be " + result + ": " + s.enforced.why(would, of, call)
}
