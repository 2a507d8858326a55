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

// A Server is a server as it is known. It does not change: what changes it returns
// another one, which shares what is the same. The zero Server was never listed.
type Server struct {
	Name string `json:"name"`
	// Tools are by name; those that nobody lists any more are among them.
	Tools map[string]*Tool `json:"tools,omitempty"`
	// Lists are the protocol versions under which a whole list was seen, and when last.
	Lists map[string]time.Time `json:"lists,omitempty"`
	// First is the protocol version of the first list that was accepted as a whole; empty
	// where none was.
	First string `json:"first,omitempty"`
	// Trusted says whether annotations were believed as the classes were made.
	Trusted bool `json:"trusted,omitzero"`
	// LeftOut are names of entries of the newest whole list that break its bounds.
	LeftOut []string `json:"leftOut,omitempty"`
	// Stop says that the whole server is stopped; nil where it is not.
	Stop *Stop `json:"stop,omitempty"`
	// Unkept is how many definitions were seen and not kept.
	Unkept int `json:"unkept,omitempty"`
}

// A Tool is a tool as it is known.
type Tool struct {
	// Definitions are those that were seen, in the order in which they were first.
	Definitions []Definition `json:"definitions"`
	// Override is a person's answer in place of the catalogue's; nil for none.
	Override *Override `json:"override,omitempty"`
	// Stop says that the tool is stopped, whatever its definition; nil where it is not.
	Stop *Stop `json:"stop,omitempty"`
}

// A Definition is one that was seen.
type Definition struct {
	Digest Digest `json:"digest"`
	State  State  `json:"state,omitzero"`
	// Class is what the definition alone makes of the tool.
	Class Class `json:"class"`
	// Bytes is how long its text is.
	Bytes int `json:"bytes"`
	// Seen is when it was listed first, and Again when last, to the hour.
	Seen  time.Time `json:"seen"`
	Again time.Time `json:"again"`
	// By is to whom it was listed first; empty where the gateway has listed it itself, then or later.
	By string `json:"by,omitempty"`
	// Versions are those under which it was listed, and Whole those whose newest whole
	// list has it; both sorted.
	Versions []string `json:"versions,omitempty"`
	Whole    []string `json:"whole,omitempty"`
	// Settler is the operator who accepted or refused it; empty where nobody did.
	Settler string `json:"settler,omitempty"`
	// Settled is when it was accepted or refused; zero where it waits.
	Settled time.Time `json:"settled,omitzero"`
	// Reason is why it was accepted or refused, or why it waits.
	Reason string `json:"reason,omitempty"`
}

// State is what was decided on a definition. The zero value waits.
type State uint8

// The states.
const (
	Waiting State = iota
	Accepted
	Refused
)

// A Class is what a tool is held to be, without the evidence.
type Class struct {
	Category   mcpv1.Category `json:"category"`
	Risk       policyv1.Risk  `json:"risk"`
	Confidence float64        `json:"confidence"`
	Tags       []string       `json:"tags,omitempty"`
	// Hints are the annotations as the definition gives them.
	Hints map[string]bool `json:"hints,omitempty"`
}

// An Override is a person's answer in place of the catalogue's.
type Override struct {
	// Category and Risk are unspecified where the catalogue's hold.
	Category mcpv1.Category `json:"category,omitzero"`
	Risk     policyv1.Risk  `json:"risk,omitzero"`
	// Tags are added.
	Tags   []string  `json:"tags,omitempty"`
	Reason string    `json:"reason"`
	Author string    `json:"author"`
	Time   time.Time `json:"time"`
	// Digest is the definition that was the newest then.
	Digest Digest `json:"digest"`
}

// same reports whether two overrides by one person say the same.
func (o *Override) same(p *Override) bool {
	if o == nil || p == nil {
		return o == p
	}
	return o.Category == p.Category && o.Risk == p.Risk && o.Reason == p.Reason && o.Author == p.Author && slices.Equal(o.Tags, p.Tags)
}

// A Stop says that something is stopped.
type Stop struct {
	Reason string `json:"reason"`
	// By is the operator who did; empty where the catalogue did.
	By   string    `json:"by,omitempty"`
	Time time.Time `json:"time"`
}

// ListedNow returns the names of the tools in the newest whole lists, sorted; not nil.
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

// with returns a server with other tools in place of those of the same names.
func (s *Server) with(tools map[string]*Tool) *Server {
	out := *s
	out.Tools = maps.Clone(s.Tools)
	if out.Tools == nil {
		out.Tools = make(map[string]*Tool, len(tools))
	}
	maps.Copy(out.Tools, tools)
	return &out
}

// clone returns a tool whose definitions may be changed.
func (t *Tool) clone() *Tool {
	if t == nil {
		return new(Tool)
	}
	out := *t
	out.Definitions = slices.Clone(t.Definitions)
	return &out
}

// Of returns the definition of a digest; nil where none was seen.
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

// Newest is the definition that was listed last: of the newest whole lists where one is
// there; nil where none was seen.
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

// Stopped reports whether a definition that the gateway has listed itself waits beside one that was accepted: then no
// session can call the tool. A definition that only sessions were shown stops those sessions, because their calls are
// judged by it, and no other: else a server could stop a tool for every tenant by what it shows one caller.
func (t *Tool) Stopped() bool { return t.has(Accepted) && t.waitsForAll() }

// waitsForAll reports whether a definition waits that the gateway has listed itself.
func (t *Tool) waitsForAll() bool {
	return slices.ContainsFunc(t.Definitions, func(d Definition) bool { return d.State == Waiting && (d.By == "" || len(d.Whole) > 0) })
}

func (t *Tool) has(state State) bool {
	return slices.ContainsFunc(t.Definitions, func(d Definition) bool { return d.State == state })
}

// Waiting are the digests of all definitions that wait, in the order of the tools' names
// and then of the digests.
func (s *Server) Waiting() []Digest {
	var out []Digest
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		out = append(out, s.Tools[name].Waiting()...)
	}
	return out
}

// Waiting are the digests of the definitions that wait, in their order.
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

// WaitingDigest identifies all that waits: the SHA-256 over the digests; nil where nothing
// does.
func (s *Server) WaitingDigest() []byte {
	all := s.Waiting()
	if len(all) == 0 {
		return nil
	}
	h := sha256.New()
	for _, d := range all {
		_, _ = h.Write(d[:]) // a hash takes everything
	}
	return h.Sum(nil)
}
