package catalog

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// These errors are the reasons why an operator's change can't be made.
var (
	// ErrUnknownTool means that no gateway has reported a list that contains the tool.
	ErrUnknownTool = errors.New("no gateway has reported this tool")
	// ErrUnknownDefinition means that the tool has no definition with the requested digest.
	ErrUnknownDefinition = errors.New("the tool was never listed with this definition")
	// ErrChanged means that the tool or server has changed since the operator read it.
	ErrChanged = errors.New("the catalog has changed since you read it: read it again")
)

// ChangeInfo says who makes a change, when, and why.
type ChangeInfo struct {
	Operator, Reason string
	Time             time.Time
}

// UnknownTool returns an error that wraps [ErrUnknownTool] and contains the tool's name.
func UnknownTool(name string) error { return fmt.Errorf("%w: %q", ErrUnknownTool, name) }

// Decide records that an operator has accepted or refused a tool definition. It returns the changed server, or the same
// server if nothing changes. Accepting a definition that was accepted automatically is a change, because it confirms
// the classification.
func (s *Server) Decide(name string, digest Digest, to State, by ChangeInfo) (*Server, error) {
	t := s.Tools[name]
	if t == nil {
		return nil, UnknownTool(name)
	}
	d := t.FindDefinition(digest)
	switch {
	case d == nil:
		return nil, ErrUnknownDefinition
	case d.State == to && (d.DecidedBy != "" || to == Refused): // an operator has already made this decision
		return s, nil
	}
	t = t.clone()
	d = t.FindDefinition(digest)
	d.State, d.DecidedBy, d.DecidedAt, d.Reason = to, by.Operator, by.Time, by.Reason
	return s.withTools(map[string]*Tool{name: t}), nil
}

// AcceptAll accepts the waiting definitions for which [Definition.Flag] returns "". It returns the changed server and
// the number of accepted definitions. If no definition is accepted, it returns the same server. If the digest differs
// from [Server.WaitingDigest], AcceptAll returns [ErrChanged], because the operator has not seen all waiting
// definitions.
func (s *Server) AcceptAll(digest []byte, by ChangeInfo) (*Server, int, error) {
	if len(s.Waiting()) == 0 {
		return s, 0, nil
	}
	if !bytes.Equal(s.WaitingDigest(), digest) {
		return nil, 0, ErrChanged
	}
	bySkeleton := s.NamesBySkeleton()
	next, accepted := s.acceptWaiting(by, func(name string, d *Definition) bool { return d.Flag(name, bySkeleton) == "" })
	return next, accepted, nil
}

// AcceptFlagged accepts all waiting definitions, including those that [Server.AcceptAll] skips. If no definition is
// waiting, it returns the same server.
func (s *Server) AcceptFlagged(by ChangeInfo) *Server {
	next, _ := s.acceptWaiting(by, func(string, *Definition) bool { return true })
	return next
}

// acceptWaiting accepts the waiting definitions for which the function may returns true. It returns the changed server
// and the number of accepted definitions. If no definition is accepted, it returns the same server.
func (s *Server) acceptWaiting(by ChangeInfo, may func(name string, d *Definition) bool) (*Server, int) {
	changed, accepted := make(map[string]*Tool), 0
	for name, t := range s.Tools {
		if !t.has(Waiting) {
			continue
		}
		t = t.clone()
		for i := range t.Definitions {
			if d := &t.Definitions[i]; d.State == Waiting && may(name, d) {
				d.State, d.DecidedBy, d.DecidedAt, d.Reason = Accepted, by.Operator, by.Time, by.Reason
				changed[name] = t
				accepted++
			}
		}
	}
	if accepted == 0 {
		return s, 0
	}
	return s.withTools(changed), accepted
}

// SetOverride sets the override of a tool, or removes it if o is nil. The parameter etag is the tool's etag from the
// time when the operator read it. If the current etag differs, SetOverride returns [ErrChanged]. If nothing changes, it
// returns the same server.
func (s *Server) SetOverride(name string, o *Override, etag string) (*Server, error) {
	if o != nil {
		own := *o
		own.Tags = slices.Compact(slices.Sorted(slices.Values(o.Tags)))
		o = &own
	}
	t := s.Tools[name]
	switch {
	case t == nil:
		return nil, UnknownTool(name)
	case o.equal(t.Override):
		return s, nil
	case etag != t.Etag():
		return nil, ErrChanged
	}
	t = t.clone()
	if d := t.Newest(); o != nil && d != nil {
		o.Digest = d.Digest
	}
	t.Override = o
	return s.withTools(map[string]*Tool{name: t}), nil
}

// SetQuarantine starts the quarantine of a tool if stop is true, and otherwise ends it. If the name is empty,
// SetQuarantine starts or ends the quarantine of the whole server. If nothing changes, SetQuarantine returns the same
// server.
func (s *Server) SetQuarantine(name string, stop bool, by ChangeInfo) (*Server, error) {
	var what *Quarantine
	if stop {
		what = &Quarantine{Reason: by.Reason, By: by.Operator, Time: by.Time}
	}
	same := func(before *Quarantine) bool { return (before != nil) == stop }
	if name == "" {
		if same(s.Quarantine) {
			return s, nil
		}
		next := *s
		next.Quarantine = what
		return &next, nil
	}
	t := s.Tools[name]
	if t == nil {
		return nil, UnknownTool(name)
	}
	if same(t.Quarantine) {
		return s, nil
	}
	t = t.clone()
	t.Quarantine = what
	return s.withTools(map[string]*Tool{name: t}), nil
}

// Etag returns a string that changes whenever the tool changes. It does not depend on the times when the tool was last
// listed. The string consists of 43 characters of URL-safe base64.
func (t *Tool) Etag() string {
	hashed := t.clone()
	for i := range hashed.Definitions {
		hashed.Definitions[i].LastSeen = time.Time{}
	}
	text, err := json.Marshal(hashed, json.Deterministic(true))
	if err != nil { // a Tool can always be encoded
		return ""
	}
	return shortSum(sha256.Sum256(text))
}

// WithoutQuarantine returns a copy of the server in which neither the server nor the named tool is in quarantine.
func (s *Server) WithoutQuarantine(name string) *Server {
	out := *s
	out.Quarantine = nil
	if t := s.Tools[name]; t != nil && t.Quarantine != nil {
		t = t.clone()
		t.Quarantine = nil
		return out.withTools(map[string]*Tool{name: t})
	}
	return &out
}
