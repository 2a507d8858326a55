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

// Observe specifies which servers are in observe mode according to the configuration, and until when. Policy for these
// servers is not enforced but only recorded. The zero Observe specifies no servers.
type Observe struct {
	// All is the time until which every server is in observe mode.
	All time.Time
	// Servers maps the name of a server to the time until which this server is in observe mode.
	Servers map[string]time.Time
}

// An Observation is the decision on a call that would be made if everything were enforced.
type Observation struct {
	// Effect, Code, Message and Rule have the same meaning as in a [Decision].
	Effect  Effect
	Code    Code
	Message string
	Rule    RuleRef
	// Limits contains the limits that would apply in addition to those in the decision. It is set only if the call is
	// allowed both by the decision and by the observation.
	Limits []Limit
}

// An Observed is a part of the policy in observe mode, which is not enforced but only recorded. It is a rule, a
// document or a server, or everything if all names are empty.
type Observed struct {
	// Server is the name of a server in observe mode. Rule.Document is the name of a document. Rule.Rule is empty if
	// the whole document is in observe mode.
	Server string
	Rule   RuleRef
	// Until is the time at which observe mode ends.
	Until time.Time
}

// String describes the part in observe mode, for example "rule starter/only-drafts".
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

// observation describes which parts of a set are in observe mode. The zero observation means that everything is
// enforced.
type observation struct {
	// enforced is the set with the same documents in which everything is enforced. It is nil if nothing is in observe
	// mode.
	enforced *Set
	observed []Observed // in the order of [Set.Observed]
	// documents and options are the parameters of [Compile]. [Set.At] uses them.
	documents []Document
	options   Options
	// observesAll is true if every server is in observe mode. observedServers contains the names of single servers in
	// observe mode.
	observesAll     bool
	observedServers map[string]bool
	// observedHomes contains the server patterns of the documents in observe mode. enforcedHomes contains the server
	// patterns of the other documents.
	observedHomes, enforcedHomes []patterns
}

// observedAt reports whether observe mode is active at now if it lasts until the given time. If the parameter until is
// zero, observe mode is never active. If the parameter now is zero, the time is unknown, and observe mode is not
// active.
func observedAt(until, now time.Time) bool { return !now.IsZero() && now.Before(until) }

// withoutObserved returns only the documents and the rules that are enforced at now.
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

// observe initializes the fields of s that describe which parts of the policy are in observe mode. The parameter
// documents are all documents of s.
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

// observedParts returns everything that is in observe mode: every server, single servers, documents and rules. Each
// kind is sorted by name.
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

// withoutDuplicates removes parts that occur earlier in the list. There are duplicates because a rule with a condition
// and the rule for its `otherwise` are listed under the same name.
func withoutDuplicates(list []Observed) []Observed {
	seen := make(map[Observed]bool)
	return slices.DeleteFunc(list, func(o Observed) bool {
		again := seen[o]
		seen[o] = true
		return again
	})
}

// observedRevision returns the revision of a set in which something is in observe mode.
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

// Observed returns the parts of the policy that are in observe mode: every server, single servers, documents and rules.
// Each kind is sorted by name.
func (s *Set) Observed() []Observed { return slices.Clone(s.observed) }

// Until returns the earliest time at which observe mode ends for a part of the policy, or the zero time if no part is
// in observe mode. At that time the documents must be compiled again.
func (s *Set) Until() time.Time {
	var first time.Time
	for _, o := range s.observed {
		if first.IsZero() || o.Until.Before(first) {
			first = o.Until
		}
	}
	return first
}

// At returns a set with the same documents and stops, compiled for another time. If everything is enforced, the result
// is s. The documents must not have changed since [Compile].
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

// withoutObservation returns the set in which everything is enforced.
func (s *Set) withoutObservation() *Set {
	if s.enforced == nil {
		return s
	}
	return s.enforced
}

// observesServer reports whether a server is in observe mode, either because of the configuration, or because every
// document that applies to the server is in observe mode. If no document applies to a server, only the configuration
// can put it in observe mode.
func (o *observation) observesServer(server string) bool {
	if o.observesAll || o.observedServers[server] {
		return true
	}
	applies := func(home patterns) bool { return home.match(server) }
	return slices.ContainsFunc(o.observedHomes, applies) && !slices.ContainsFunc(o.enforcedHomes, applies)
}

// opens reports whether a call that rules and defaults refuse or hold for approval is allowed because the server is in
// observe mode. It returns false for calls to the model tool that need a rule of their own, because these calls cost
// money.
func (s *Set) opens(call *Call) bool {
	return s.enforced != nil && !call.needsModelRule() && s.observesServer(call.Server)
}

// openableCodes contains the codes of refusals by rules and defaults. A decision with any other code stays the same
// even if the server is in observe mode. The code ToolUnknown is also used if the tool or the server does not exist. In
// this case, [Decision.open] does not allow the call.
var openableCodes = []Code{DeniedByRule, DeniedByDefault, MethodDenied, ToolUnknown, TypeError, ScopeMissing, ApprovalRequired}

// open returns the decision on a call to a server in observe mode. It allows calls that rules and defaults refuse or
// hold for approval. It removes the rules' limits, timeouts and redactions, and does not record arguments. It refuses
// calls that the catalog does not accept, and calls that were refused before any rule was evaluated.
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

// decideObserved makes the decision on a call. If a part of the policy is in observe mode, and the decision would be
// different if everything were enforced, the result also contains the decision that would then be made.
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

// observationOf returns the observation for the decision d. The parameter would is the decision that would be made if
// everything were enforced. The observation is nil if both decisions have the same result. If both allow the call, only
// additional limits count as a difference.
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

// observedRules returns the rules that are in observe mode, whether or not they match the call. These are all rules if
// [Set.opens] is true for the call. observedRules finds these rules in the set in which everything is enforced.
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

// whyObserved explains a decision, and the decision that would be made if everything were enforced.
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
