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

// Observe specifies the servers that are observed by the configuration, and until when. The zero Observe observes
// nothing.
type Observe struct {
	// All is the time until which every server is observed.
	All time.Time
	// Servers are the times until which single servers are observed, by name.
	Servers map[string]time.Time
}

// An Observation is the decision about a call that would apply if nothing were observed.
type Observation struct {
	// Effect, Code, Message and Rule have the meaning of these fields in a [Decision].
	Effect  Effect
	Code    Code
	Message string
	Rule    RuleRef
	// Limits are the limits that would apply in addition to those of the decision. They are set only if both the decision
	// and the observation allow the call.
	Limits []Limit
}

// An Observed is a part of the policy that is observed: a rule, a document, a server, or, if all names are empty,
// everything.
type Observed struct {
	// Server is the name of a server. Rule.Document is the name of a document. Rule.Rule is empty if the whole document
	// is observed.
	Server string
	Rule   RuleRef
	// Until is the time at which the observation ends.
	Until time.Time
}

// String describes the observed part, for example "rule starter/only-drafts".
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

// observation contains what a set observes. The zero observation observes nothing.
type observation struct {
	// enforced is the set with the same documents in which nothing is observed. It is nil if nothing is observed.
	enforced *Set
	observed []Observed // in the order of [Set.Observed]
	// documents and options are the parameters of [Compile], for [Set.At].
	documents []Document
	options   Options
	// observesAll reports whether every server is observed. observedServers contains the names of single observed servers.
	observesAll     bool
	observedServers map[string]bool
	// observedHomes and enforcedHomes contain the servers of the documents that are observed, and of the others.
	observedHomes, enforcedHomes []patterns
}

// observedAt reports whether something that is observed until a time is observed at the time now. The zero time means
// that it is never observed. Nothing is observed if now is unknown.
func observedAt(until, now time.Time) bool { return !now.IsZero() && now.Before(until) }

// withoutObserved returns the documents and the rules that are enforced at the time now.
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

// observe sets what the set observes. documents are all documents of the set.
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

// observedParts returns everything that is observed: every server, single servers, documents, rules, each sorted by
// name.
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

// withoutDuplicates removes observed parts that are in the list before: both halves of a rule have the same name.
func withoutDuplicates(list []Observed) []Observed {
	seen := make(map[Observed]bool)
	return slices.DeleteFunc(list, func(o Observed) bool {
		again := seen[o]
		seen[o] = true
		return again
	})
}

// observedRevision returns the revision of a set that observes something.
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

// Observed returns the parts of the policy that are observed: every server, single servers, documents, rules, each
// sorted by name.
func (s *Set) Observed() []Observed { return slices.Clone(s.observed) }

// Until returns the earliest time at which something is no longer observed, or the zero time if nothing is observed. At
// that time the documents must be compiled again.
func (s *Set) Until() time.Time {
	var first time.Time
	for _, o := range s.observed {
		if first.IsZero() || o.Until.Before(first) {
			first = o.Until
		}
	}
	return first
}

// At returns the set of the same documents and stops, compiled at another time. If nothing is observed, the result is
// s. The documents must be unchanged since [Compile].
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

// withoutObservation returns the set in which nothing is observed.
func (s *Set) withoutObservation() *Set {
	if s.enforced == nil {
		return s
	}
	return s.enforced
}

// observesServer reports whether a server is observed: by the configuration, or because every document that applies to
// it is observed. If no document applies to a server, only the configuration can make it observed.
func (o *observation) observesServer(server string) bool {
	if o.observesAll || o.observedServers[server] {
		return true
	}
	applies := func(home patterns) bool { return home.match(server) }
	return slices.ContainsFunc(o.observedHomes, applies) && !slices.ContainsFunc(o.enforcedHomes, applies)
}

// opens reports whether the set allows a call that its rules and defaults refuse or ask about, because the server is
// observed. Calls of the model tool cost money, so those that need a rule of their own are decided as if the server
// were not observed.
func (s *Set) opens(call *Call) bool {
	return s.enforced != nil && !call.needsModelRule() && s.observesServer(call.Server)
}

// openableCodes are the codes of refusals by rules and defaults. A decision with any other code is the same on an
// observed server. A refusal because the tool or the server does not exist also has the code ToolUnknown, and
// [Decision.open] does not open it.
var openableCodes = []Code{DeniedByRule, DeniedByDefault, MethodDenied, ToolUnknown, TypeError, ApprovalRequired}

// open returns the decision about a call to an observed server. It allows what rules and defaults refuse or ask about,
// and removes the limits, timeouts, redactions and records of arguments of rules. It refuses what the catalog does not accept, and what was
// refused before any rule was consulted.
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

// decideObserved decides a call. If something is observed and the decision with everything enforced is another, the
// decision contains that decision.
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

// observationOf returns the observation for a decision if would is the decision with everything enforced. It is nil if
// both have the same result. If both allow the call, only additional limits are a difference.
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

// observedRules returns the rules that are observed, among the rules of the set in which nothing is observed.
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

// whyObserved explains a decision, and the decision that would apply if nothing were observed.
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
