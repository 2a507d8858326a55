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
	// ErrUnknown means that no reported list contains the tool.
	ErrUnknown = errors.New("no gateway has reported this tool")
	// ErrDefinition means that the tool has no definition with a digest.
	ErrDefinition = errors.New("the tool was never listed with this definition")
	// ErrChanged means that the tool or server has changed since the operator read it.
	ErrChanged = errors.New("the catalog has changed since you read it: read it again")
)

// ChangeInfo has the operator who makes a change, the reason, and the time.
type By struct {
	Who, Why string
	When     time.Time
}

// UnknownTool returns [ErrUnknown] with the name of a tool.
func Unknown(name string) error { return fmt.Errorf("%w: %q", ErrUnknown, name) }

// Decide accepts or refuses a definition of a tool. It returns the same server if nothing changes. A definition that
// was accepted automatically changes when an operator accepts it, because that confirms the classification.
func (s *Server) Settle(name string, digest Digest, to State, by By) (*Server, error) {
	t := s.Tools[name]
	if t == nil {
		return nil, Unknown(name)
	}
	d := t.Of(digest)
	switch {
	case d == nil:
		return nil, ErrDefinition
	case d.State == to && (d.Settler != "" || to == Refused): // an operator has already made this decision
		return s, nil
	}
	t = t.clone()
	d = t.Of(digest)
	d.State, d.Settler, d.Settled, d.Reason = to, by.Who, by.When, by.Why
	return s.with(map[string]*Tool{name: t}), nil
}

// AcceptAll accepts the definitions that wait and for which [Definition.Flag] returns "". It returns the number of
// accepted definitions, and the same server if the number is zero. It returns [ErrChanged] unless digest equals
// [Server.WaitingDigest].
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

// SetOverride sets the override of a tool, or removes it if o is nil. etag is the etag of the tool that the operator
// saw; SetOverride returns [ErrChanged] if the tool has another one. It returns the same server if nothing changes.
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

// SetQuarantine sets or ends the quarantine of a tool, or of the whole server if the name is empty. It returns the same
// server if nothing changes.
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

// Etag returns 43 characters of URL-safe base64, which change when anything about a tool changes except the times at
// which it was last listed.
func (t *Tool) Etag() string {
	hashed := t.clone()
	for i := range hashed.Definitions {
		hashed.Definitions[i].Again = time.Time{}
	}
	text, err := json.Marshal(hashed, json.Deterministic(true))
	if err != nil { // these fields can always be encoded
		return ""
	}
	return shortSum(sha256.Sum256(text))
}
