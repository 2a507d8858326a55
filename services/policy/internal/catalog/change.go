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

// Errors of changes that people make.
var (
	// ErrUnknown means that no list was seen that has the tool.
	ErrUnknown = errors.New("no gateway has reported this tool")
	// ErrDefinition means that a digest is not in the tool's history.
	ErrDefinition = errors.New("the tool was never listed with such a definition")
	// ErrChanged means that what a person saw is not what there is any more.
	ErrChanged = errors.New("it has changed since it was looked at: look again")
)

// A By is who changes something, when and why.
type By struct {
	Who, Why string
	When     time.Time
}

// Unknown is [ErrUnknown] about a name.
func Unknown(name string) error { return fmt.Errorf("%w: %q", ErrUnknown, name) }

// Settle accepts or refuses a definition of a tool. It returns the same server where that
// was done before.
func (s *Server) Settle(name string, digest Digest, to State, by By) (*Server, error) {
	t := s.Tools[name]
	if t == nil {
		return nil, Unknown(name)
	}
	d := t.Of(digest)
	switch {
	case d == nil:
		return nil, ErrDefinition
	case d.State == to && (d.Settler != "" || to == Refused): // what the first list accepted, a person may vouch for
		return s, nil
	}
	t = t.clone()
	d = t.Of(digest)
	d.State, d.Settler, d.Settled, d.Reason = to, by.Who, by.When, by.Why
	return s.with(map[string]*Tool{name: t}), nil
}

// AcceptAll accepts the definitions that wait, if those are what the digest is over, but for those with a
// [Definition.Flag]. It returns how many it accepted, and the same server if that is none.
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

// Set replaces what the catalogue holds a tool to be; nil takes that back. etag is the
// tool's as the person saw it. It returns the same server where that was done before.
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

// Halt stops a tool, or the server where the name is empty, or lets it go on. It returns
// the same server where that was done before.
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

// Etag changes with everything that is known of a tool but when it was listed: 43
// characters of URL-safe base64.
func (t *Tool) Etag() string {
	bare := t.clone()
	for i := range bare.Definitions {
		bare.Definitions[i].Again = time.Time{}
	}
	text, err := json.Marshal(bare, json.Deterministic(true))
	if err != nil { // these fields can be written
		return ""
	}
	return shortSum(sha256.Sum256(text))
}
