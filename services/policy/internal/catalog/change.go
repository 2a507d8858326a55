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

// Errors of operators' changes.
var (
	// ErrUnknown means that no reported list has the tool.
	ErrUnknown = errors.New("no gateway has reported this tool")
	// ErrDefinition means that a digest is not in the tool's history.
	ErrDefinition = errors.New("the tool was never listed with such a definition")
	// ErrChanged means that what an operator saw has changed since.
	ErrChanged = errors.New("it has changed since you read it: read it again")
)

// A By is the operator who makes a change, the reason, and the time.
type By struct {
	Who, Why string
	When     time.Time
}

// Unknown returns [ErrUnknown] with the name.
func Unknown(name string) error { return fmt.Errorf("%w: %q", ErrUnknown, name) }

// Settle accepts or refuses a definition of a tool. It returns the same server if nothing changes. A definition that
// the first list accepted can still be accepted by an operator, which confirms it.
func (s *Server) Settle(name string, digest Digest, to State, by By) (*Server, error) {
	t := s.Tools[name]
	if t == nil {
		return nil, Unknown(name)
	}
	d := t.Of(digest)
	switch {
	case d == nil:
		return nil, ErrDefinition
	case d.State == to && (d.Settler != "" || to == Refused): // an operator may confirm what the first list accepted
		return s, nil
	}
	t = t.clone()
	d = t.Of(digest)
	d.State, d.Settler, d.Settled, d.Reason = to, by.Who, by.When, by.Why
	return s.with(map[string]*Tool{name: t}), nil
}

// AcceptAll accepts the definitions that wait, except those with a [Definition.Flag]. It returns [ErrChanged] unless
// the digest is [Server.WaitingDigest]. It returns how many it accepted, and the same server if it accepted none.
func (s *Server) AcceptAll(digest []byte, by By) (*Server, int, error) {
	if len(s.Waiting()) == 0 {
		return s, 0, nil
	}
	if !bytes.Equal(s.WaitingDigest(), digest) {
		return nil, 0, ErrChanged
	}
	changed, accepted, looks := make(map[string]*Tool), 0, s.Looks()
	for name, t := range s.Tools {
		if !t.has(Waiting) {
			continue
		}
		t = t.clone()
		for i := range t.Definitions {
			if d := &t.Definitions[i]; d.State == Waiting && d.Flag(name, looks) == "" {
				d.State, d.Settler, d.Settled, d.Reason = Accepted, by.Who, by.When, by.Why
				changed[name] = t
				accepted++
			}
		}
	}
	if accepted == 0 {
		return s, 0, nil
	}
	return s.with(changed), accepted, nil
}

// Set sets or, with nil, removes an override of a tool. etag is the tool's etag as the operator saw it. It returns the
// same server if nothing changes.
func (s *Server) Set(name string, o *Override, etag string) (*Server, error) {
	if o != nil {
		own := *o
		own.Tags = slices.Compact(slices.Sorted(slices.Values(o.Tags)))
		o = &own
	}
	t := s.Tools[name]
	switch {
	case t == nil:
		return nil, Unknown(name)
	case o.same(t.Override):
		return s, nil
	case etag != t.Etag():
		return nil, ErrChanged
	}
	t = t.clone()
	if d := t.Newest(); o != nil && d != nil {
		o.Digest = d.Digest
	}
	t.Override = o
	return s.with(map[string]*Tool{name: t}), nil
}

// Halt stops or releases a tool, or the whole server if the name is empty. It returns the same server if nothing
// changes.
func (s *Server) Halt(name string, stop bool, by By) (*Server, error) {
	var what *Stop
	if stop {
		what = &Stop{Reason: by.Why, By: by.Who, Time: by.When}
	}
	same := func(before *Stop) bool { return (before != nil) == stop }
	if name == "" {
		if same(s.Stop) {
			return s, nil
		}
		next := *s
		next.Stop = what
		return &next, nil
	}
	t := s.Tools[name]
	if t == nil {
		return nil, Unknown(name)
	}
	if same(t.Stop) {
		return s, nil
	}
	t = t.clone()
	t.Stop = what
	return s.with(map[string]*Tool{name: t}), nil
}

// Etag returns a value that changes with everything about a tool except when it was listed: 43 characters of URL-safe
// base64.
func (t *Tool) Etag() string {
	bare := t.clone()
	for i := range bare.Definitions {
		bare.Definitions[i].Again = time.Time{}
	}
	text, err := json.Marshal(bare, json.Deterministic(true))
	if err != nil { // these fields can always be encoded
		return ""
	}
	return shortSum(sha256.Sum256(text))
}
