package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// These constants limit the scopes in rules.
const (
	// MaxRuleScopes limits the number of scopes in a rule. MaxScopeBytes limits the length of a scope in bytes.
	MaxRuleScopes = 16
	MaxScopeBytes = 128
	// MaxScopes limits the number of different scopes in all rules together. MaxScopesBytes limits the total length in
	// bytes of these scopes with separators, because the gateway lists all of them in HTTP headers.
	MaxScopes      = 64
	MaxScopesBytes = 4096
)

// scopeOffline is the scope with which a client requests a refresh token. It grants no access at a server.
const scopeOffline = "offline_access"

// validScope reports whether a string is a scope (RFC 6749, section 3.3) of at most [MaxScopeBytes].
func validScope(text string) bool {
	if text == "" || len(text) > MaxScopeBytes {
		return false
	}
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// checkScopes checks the scopes that a rule requires.
func (c *checker) checkScopes(r *Rule) {
	switch {
	case len(r.NeedsScope) == 0:
		return
	case r.Action != ActionAllow && r.Action != ActionRequireApproval:
		c.add("needs_scope", "has no effect without action: allow or require_approval", "")
	case len(r.NeedsScope) > MaxRuleScopes:
		c.add("needs_scope", fmt.Sprintf("has more than %d scopes", MaxRuleScopes), "")
	}
	for i, scope := range r.NeedsScope {
		field := fmt.Sprintf("needs_scope[%d]", i)
		switch {
		case !validScope(scope):
			c.add(field, fmt.Sprintf("%q is not a scope", scope), `use 1 to 128 printable ASCII characters except space, " and \`)
		case scope == scopeOffline:
			c.add(field, "requests a refresh token, and permits nothing at a server", "remove it")
		case slices.Contains(r.NeedsScope[:i], scope):
			c.add(field, "is listed twice", "keep one of them")
		}
	}
}

// checkAllScopes returns an error if the rules in all documents together require too many scopes.
func checkAllScopes(documents []Document) error {
	var all []string
	for i := range documents {
		for j := range documents[i].Rules {
			all = append(all, documents[i].Rules[j].NeedsScope...)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > MaxScopes || len(strings.Join(all, " ")) > MaxScopesBytes {
		return errors.New(tooManyScopes)
	}
	return nil
}

var tooManyScopes = fmt.Sprintf("the rules of all documents need more than %d different scopes, or scopes of more than %d bytes in total: let rules share scopes", MaxScopes, MaxScopesBytes)

// missingScope returns a decision that refuses a call because a principal lacks a scope, and a rule that requires this
// scope. If no scope is missing, the rule is nil. A principal needs the scopes in all rules that apply to it, including
// rules whose condition can't be evaluated. All given rules must match the call.
func (c *Call) missingScope(rules []*rule) (Decision, *rule) {
	for first := 0; first < c.Subject.size(); first = c.Subject.tokenEnd(first) {
		if d, by := c.missingScopeOf(rules, first); by != nil {
			return d, by
		}
	}
	return Decision{}, nil
}

// missingScopeOf is like [Call.missingScope], but checks only the principals from the same token as the principal with
// index first. The decision contains all scopes that these principals need, so that the caller can request them at
// once.
func (c *Call) missingScopeOf(rules []*rule, first int) (d Decision, by *rule) {
	for i, end := first, c.Subject.tokenEnd(first); i < end; i++ {
		for _, r := range rules {
			if len(r.NeedsScope) == 0 || !c.limits(r, i) {
				continue
			}
			d.NeededScopes = append(d.NeededScopes, r.NeedsScope...)
			lacks := c.Subject.at(i).lacking(r.NeedsScope)
			if d.MissingScopes = append(d.MissingScopes, lacks...); len(lacks) > 0 && by == nil {
				by, d.ChainIndex = r, i
			}
		}
	}
	if by == nil {
		return Decision{}, nil
	}
	d.NeededScopes, d.MissingScopes = distinct(d.NeededScopes), distinct(d.MissingScopes)
	d.Code, d.Rule, d.RuleDigest = ScopeMissing, by.ref, by.digest
	d.Message = c.scopeText(&d)
	if by.Reason != "" {
		d.Message += "; " + by.Reason
	}
	return d, by
}

// tokenEnd returns the index after the last principal from the same token as the principal with index first. A JWT can
// contain several principals: an actor and its prior actors (RFC 8693, section 4.1). All of them have the issuer, the
// client and the scopes in the JWT.
func (s *Subject) tokenEnd(first int) int {
	p, end := s.at(first), first+1
	for p.Issuer != "" && end < s.size() {
		next := s.at(end)
		if next.Issuer != p.Issuer || next.Client != p.Client || !slices.Equal(next.Scopes, p.Scopes) {
			break
		}
		end++
	}
	return end
}

func (p *Principal) lacking(scopes []string) []string {
	return slices.DeleteFunc(slices.Clone(scopes), func(scope string) bool { return slices.Contains(p.Scopes, scope) })
}

// distinct sorts texts and removes duplicates.
func distinct(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// scopeText says which scopes a call needs, which scopes are missing, and how to fix this.
func (c *Call) scopeText(d *Decision) string {
	text := "the call needs the OAuth " + scopeList(d.NeededScopes) + ", and "
	p := c.Subject.at(d.ChainIndex)
	switch {
	case d.ChainIndex >= c.Subject.tokenEnd(0):
		return text + fmt.Sprintf("%s, for whom the caller works, did not have the %s: create the agent again with a token that has them", p.Name, scopeList(d.MissingScopes))
	case p.Issuer == "":
		return text + "a caller without a JWT of an issuer has no scopes: sign in at an issuer of the mesh, or ask an operator for a rule for such callers"
	default:
		return text + "the token does not have the " + scopeList(d.MissingScopes) + ": sign in again with all scopes that the call needs"
	}
}

// scopeList formats scopes for a sentence, for example "scopes repo and user".
func scopeList(scopes []string) string {
	if len(scopes) == 1 {
		return "scope " + scopes[0]
	}
	last := len(scopes) - 1
	return "scopes " + strings.Join(scopes[:last], ", ") + " and " + scopes[last]
}

// checkScope returns the check of the scopes for an explanation. It compares the scopes that the rule requires with the
// scopes of the principal with index i.
func (r *rule) checkScope(call *Call, i int) Check {
	p := call.Subject.at(i)
	return Check{Name: "needs_scope", Want: strings.Join(r.NeedsScope, ", "), Got: strings.Join(p.Scopes, ", "), Held: len(p.lacking(r.NeedsScope)) == 0}
}

// NeededScopes returns the scopes that rules require for calls to a server, sorted and without duplicates. Rules in
// observe mode do not count.
func (s *Set) NeededScopes(server string) (out []string) {
	if s.enforced != nil && s.observesServer(server) {
		return nil
	}
	for _, r := range s.rules {
		if len(r.NeedsScope) > 0 && r.documentServers.match(server) && r.servers.match(server) {
			out = append(out, r.NeedsScope...)
		}
	}
	return distinct(out)
}
