package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A Digest is the SHA-256 of a definition's canonical form.
type Digest [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(d) {
		return hex.ErrLength
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// A Server is the state of a server. It is immutable: a change returns another Server, which shares unchanged parts.
// The zero Server was never listed.
type Server struct {
	Name string `json:"name"`
	// Tools are the tools by name, including tools that no list has any more.
	Tools map[string]*Tool `json:"tools,omitempty"`
	// Lists has, for each protocol version, when its whole list was last seen.
	Lists map[string]time.Time `json:"lists,omitempty"`
	// First is the protocol version of the first whole list that was accepted, or was reviewed in mode [Review]; empty
	// if there was none.
	First string `json:"first,omitempty"`
	// Trusted says whether the server was trusted when the classes were computed.
	Trusted bool `json:"trusted,omitzero"`
	// LeftOut are names of entries of the newest whole list that exceed the bounds.
	LeftOut []string `json:"leftOut,omitempty"`
	// Stop says that the whole server is stopped; nil if it is not.
	Stop *Stop `json:"stop,omitempty"`
	// Unkept is the number of definitions that were seen and not stored.
	Unkept int `json:"unkept,omitempty"`
}

// A Tool is the state of a tool.
type Tool struct {
	// Definitions are the definitions that were seen, in the order in which they were first seen.
	Definitions []Definition `json:"definitions"`
	// Override is an operator's classification; nil if there is none.
	Override *Override `json:"override,omitempty"`
	// Stop says that the tool is stopped regardless of its definition; nil if it is not.
	Stop *Stop `json:"stop,omitempty"`
}

// A Definition is a definition that was seen.
type Definition struct {
	Digest Digest `json:"digest"`
	State  State  `json:"state,omitzero"`
	// Class is the classification by this definition alone.
	Class Class `json:"class"`
	// Bytes is the length of its text.
	Bytes int `json:"bytes"`
	// Seen is when it was first listed, and Again when it was last listed, accurate to the hour.
	Seen  time.Time `json:"seen"`
	Again time.Time `json:"again"`
	// By is the principal to whom it was first listed; empty if the gateway has listed it itself, then or later.
	By string `json:"by,omitempty"`
	// Versions are the protocol versions under which it was listed, and Whole those whose newest whole list has it;
	// both sorted.
	Versions []string `json:"versions,omitempty"`
	Whole    []string `json:"whole,omitempty"`
	// Settler is the operator who accepted or refused it; empty if no operator did.
	Settler string `json:"settler,omitempty"`
	// Settled is when it was accepted or refused; zero while it waits.
	Settled time.Time `json:"settled,omitzero"`
	// Reason is why it was accepted or refused, or why it waits.
	Reason string `json:"reason,omitempty"`
}

// State is the decision about a definition. The zero value waits.
type State uint8

// The states.
const (
	Waiting State = iota
	Accepted
	Refused
)

// A Class is the classification of a tool, without the evidence.
type Class struct {
	Category   mcpv1.Category `json:"category"`
	Risk       policyv1.Risk  `json:"risk"`
	Confidence float64        `json:"confidence"`
	Tags       []string       `json:"tags,omitempty"`
	// Hints are the annotations in the definition.
	Hints map[string]bool `json:"hints,omitempty"`
}

// An Override is an operator's classification that replaces the catalog's.
type Override struct {
	// Category and Risk are unspecified if the catalog's apply.
	Category mcpv1.Category `json:"category,omitzero"`
	Risk     policyv1.Risk  `json:"risk,omitzero"`
	// Tags are added to those of the definition.
	Tags   []string  `json:"tags,omitempty"`
	Reason string    `json:"reason"`
	Author string    `json:"author"`
	Time   time.Time `json:"time"`
	// Digest is the definition that was the newest when the override was made.
	Digest Digest `json:"digest"`
}

// same reports whether two overrides are equal, including the author, but not time and digest.
func (o *Override) same(p *Override) bool {
	if o == nil || p == nil {
		return o == p
	}
	return o.Category == p.Category && o.Risk == p.Risk && o.Reason == p.Reason && o.Author == p.Author && slices.Equal(o.Tags, p.Tags)
}

// A Stop says that a tool or server is stopped.
type Stop struct {
	Reason string `json:"reason"`
	// By is the operator who stopped it; empty if the catalog did.
	By   string    `json:"by,omitempty"`
	Time time.Time `json:"time"`
}

// ListedNow returns the names of the tools in the newest whole lists, sorted; never nil.
func (s *Server) ListedNow() []string {
	out := []string{}
	for name, tool := range s.Tools {
		if slices.ContainsFunc(tool.Definitions, func(d Definition) bool { return len(d.Whole) > 0 }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// with returns a server with the tools replaced by name.
func (s *Server) with(tools map[string]*Tool) *Server {
	out := *s
	out.Tools = maps.Clone(s.Tools)
	if out.Tools == nil {
		out.Tools = make(map[string]*Tool, len(tools))
	}
	maps.Copy(out.Tools, tools)
	return &out
}

// clone returns a copy of a tool whose definitions may be changed.
func (t *Tool) clone() *Tool {
	if t == nil {
		return new(Tool)
	}
	out := *t
	out.Definitions = slices.Clone(t.Definitions)
	return &out
}

// Of returns the definition with a digest; nil if none was seen.
func (t *Tool) Of(digest Digest) *Definition {
	if t == nil {
		return nil
	}
	for i := range t.Definitions {
		if t.Definitions[i].Digest == digest {
			return &t.Definitions[i]
		}
	}
	return nil
}

// Newest returns the definition that was listed last, preferring those of the newest whole lists; nil if none was
// seen.
func (t *Tool) Newest() *Definition {
	if t == nil {
		return nil
	}
	var best *Definition
	for i := range t.Definitions {
		d := &t.Definitions[i]
		if best == nil || len(d.Whole) > 0 && len(best.Whole) == 0 || (len(d.Whole) > 0) == (len(best.Whole) > 0) && !d.Again.Before(best.Again) {
			best = d
		}
	}
	return best
}

// Stopped reports whether the tool has an accepted definition, and another one waits that the gateway has listed
// itself. Then no session can call the tool. A definition that only sessions have listed stops only those sessions,
// whose calls carry it. Otherwise a server could stop a tool for every tenant by what it shows one caller.
func (t *Tool) Stopped() bool { return t.has(Accepted) && t.waitsForAll() }

// waitsForAll reports whether a definition waits that the gateway has listed itself.
func (t *Tool) waitsForAll() bool {
	return slices.ContainsFunc(t.Definitions, func(d Definition) bool { return d.State == Waiting && (d.By == "" || len(d.Whole) > 0) })
}

func (t *Tool) has(state State) bool {
	return slices.ContainsFunc(t.Definitions, func(d Definition) bool { return d.State == state })
}

// Waiting returns the digests of all definitions that wait, in the order of the tools' names and then of the digests.
func (s *Server) Waiting() []Digest {
	var out []Digest
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		out = append(out, s.Tools[name].Waiting()...)
	}
	return out
}

// Waiting returns the digests of the definitions that wait, sorted.
func (t *Tool) Waiting() []Digest {
	var out []Digest
	for i := range t.Definitions {
		if t.Definitions[i].State == Waiting {
			out = append(out, t.Definitions[i].Digest)
		}
	}
	slices.SortFunc(out, func(a, b Digest) int { return bytes.Compare(a[:], b[:]) })
	return out
}

// WaitingDigest returns the SHA-256 over the digests of all definitions that wait; nil if none waits.
func (s *Server) WaitingDigest() []byte {
	all := s.Waiting()
	if len(all) == 0 {
		return nil
	}
	h := sha256.New()
	for _, d := range all {
		_, _ = h.Write(d[:]) // a hash never returns an error
	}
	return h.Sum(nil)
}
