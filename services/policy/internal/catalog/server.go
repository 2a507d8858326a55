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

// A Digest is the SHA-256 digest of a definition in canonical form.
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

// A Server is the state of a server. It is immutable. A function that changes it returns a new Server, which shares the
// unchanged parts with the original. The zero Server has no lists.
type Server struct {
	Name string `json:"name"`
	// Tools contains the tools by name, including tools that are not in the newest lists.
	Tools map[string]*Tool `json:"tools,omitempty"`
	// Lists contains the time of the newest whole list for each protocol version.
	Lists map[string]time.Time `json:"lists,omitempty"`
	// First is the protocol version of the first whole list whose definitions were accepted, or of the first whole list
	// that was reported in mode [Review]. It is empty if there is no such list.
	First string `json:"first,omitempty"`
	// Trusted is true if the server was trusted when its tools were classified.
	Trusted bool `json:"trusted,omitzero"`
	// LeftOut contains the names of tools in the newest whole list that exceed the limits or can't be parsed.
	LeftOut []string `json:"leftOut,omitempty"`
	// Quarantine stops all calls to the server. It is nil if the server is not in quarantine.
	Quarantine *Quarantine `json:"stop,omitempty"`
	// NotStored counts the reported definitions that were not stored because they exceeded the limits.
	NotStored int `json:"unkept,omitempty"`
}

// A Tool is the state of a tool.
type Tool struct {
	// Definitions contains the reported definitions in the order in which they were first reported.
	Definitions []Definition `json:"definitions"`
	// Override is an operator's classification of the tool, or nil.
	Override *Override `json:"override,omitempty"`
	// Quarantine stops calls with all definitions of the tool. It is nil if the tool is not in quarantine.
	Quarantine *Quarantine `json:"stop,omitempty"`
}

// A Definition is the state of a reported definition of a tool.
type Definition struct {
	Digest Digest `json:"digest"`
	State  State  `json:"state,omitzero"`
	// Class is the classification of the definition, without the override.
	Class Class `json:"class"`
	// Bytes is the length of the definition's JSON text.
	Bytes int `json:"bytes"`
	// FirstSeen is the time when the definition was first listed. LastSeen is the time when it was last listed,
	// accurate to an hour.
	FirstSeen time.Time `json:"seen"`
	LastSeen  time.Time `json:"again"`
	// ListedTo is the principal to whom the definition was first listed. It becomes empty when the gateway lists the
	// definition for itself.
	ListedTo string `json:"by,omitempty"`
	// Versions contains the protocol versions of all lists that contained the definition. WholeVersions contains the
	// protocol versions whose newest whole list contains the definition. Both are sorted.
	Versions      []string `json:"versions,omitempty"`
	WholeVersions []string `json:"whole,omitempty"`
	// DecidedBy is the operator who accepted or refused the definition. It is empty if no operator has decided.
	DecidedBy string `json:"settler,omitempty"`
	// DecidedAt is the time when the definition was accepted or refused. It is zero while State is [Waiting].
	DecidedAt time.Time `json:"settled,omitzero"`
	// Reason is why the definition was accepted or refused, or why it waits for a decision.
	Reason string `json:"reason,omitempty"`
}

// State says whether a definition was accepted or refused. The zero value is [Waiting]: the definition waits for a
// decision.
type State uint8

// These are the states.
const (
	Waiting State = iota
	Accepted
	Refused
)

// A Class is the classification of a tool without its evidence.
type Class struct {
	Category   mcpv1.Category `json:"category"`
	Risk       policyv1.Risk  `json:"risk"`
	Confidence float64        `json:"confidence"`
	Tags       []string       `json:"tags,omitempty"`
	// Hints contains the boolean annotations in the definition, by name.
	Hints map[string]bool `json:"hints,omitempty"`
	// Arguments contains the sorted names of the arguments that the definition allows. It is empty if other arguments
	// might be allowed.
	Arguments []string `json:"arguments,omitempty"`
}

// An Override is an operator's classification of a tool. It replaces parts of the catalog's classification.
type Override struct {
	// Category and Risk replace the catalog's values unless they are unspecified.
	Category mcpv1.Category `json:"category,omitzero"`
	Risk     policyv1.Risk  `json:"risk,omitzero"`
	// Tags contains tags that are added to the catalog's tags.
	Tags   []string  `json:"tags,omitempty"`
	Reason string    `json:"reason"`
	Author string    `json:"author"`
	Time   time.Time `json:"time"`
	// Digest is the digest of the newest definition at the time when the operator set the override.
	Digest Digest `json:"digest"`
}

// equal reports whether two overrides are equal, apart from their times and digests.
func (o *Override) equal(p *Override) bool {
	if o == nil || p == nil {
		return o == p
	}
	return o.Category == p.Category && o.Risk == p.Risk && o.Reason == p.Reason && o.Author == p.Author && slices.Equal(o.Tags, p.Tags)
}

// A Quarantine stops all calls to a tool or a server.
type Quarantine struct {
	Reason string `json:"reason"`
	// By is the operator who started the quarantine. It is empty if the catalog started the quarantine.
	By   string    `json:"by,omitempty"`
	Time time.Time `json:"time"`
}

// ListedNow returns the sorted names of the tools in the newest whole lists. The result is never nil.
func (s *Server) ListedNow() []string {
	out := []string{}
	for name, tool := range s.Tools {
		if slices.ContainsFunc(tool.Definitions, func(d Definition) bool { return len(d.WholeVersions) > 0 }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Server) withTools(tools map[string]*Tool) *Server {
	out := *s
	out.Tools = maps.Clone(s.Tools)
	if out.Tools == nil {
		out.Tools = make(map[string]*Tool, len(tools))
	}
	maps.Copy(out.Tools, tools)
	return &out
}

// clone returns a copy of a tool whose definitions can be modified.
func (t *Tool) clone() *Tool {
	if t == nil {
		return new(Tool)
	}
	out := *t
	out.Definitions = slices.Clone(t.Definitions)
	return &out
}

// FindDefinition returns the definition with the given digest, or nil if the tool has none.
func (t *Tool) FindDefinition(digest Digest) *Definition {
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

// Newest returns the definition that was listed last. It prefers definitions that are in a newest whole list. It
// returns nil if the tool has no definitions.
func (t *Tool) Newest() *Definition {
	if t == nil {
		return nil
	}
	var best *Definition
	for i := range t.Definitions {
		d := &t.Definitions[i]
		if best == nil || len(d.WholeVersions) > 0 && len(best.WholeVersions) == 0 || (len(d.WholeVersions) > 0) == (len(best.WholeVersions) > 0) && !d.LastSeen.Before(best.LastSeen) {
			best = d
		}
	}
	return best
}

// StoppedByChange reports whether a changed definition stops all calls to the tool. This is so if the tool has an
// accepted definition, and the gateway itself has listed a different definition that waits for a decision.
//
// If only certain sessions have listed the waiting definition, only these sessions' calls are refused, because only
// these calls contain its digest. Otherwise a server could stop a tool for all tenants by listing a different
// definition to a single caller.
func (t *Tool) StoppedByChange() bool { return t.has(Accepted) && t.hasWaitingForAll() }

// hasWaitingForAll reports whether a waiting definition affects all sessions, because the gateway itself has listed it
// or because it is in a newest whole list.
func (t *Tool) hasWaitingForAll() bool {
	return slices.ContainsFunc(t.Definitions, func(d Definition) bool { return d.State == Waiting && (d.ListedTo == "" || len(d.WholeVersions) > 0) })
}

func (t *Tool) has(state State) bool {
	return slices.ContainsFunc(t.Definitions, func(d Definition) bool { return d.State == state })
}

// Waiting returns the digests of all definitions that wait for a decision, ordered by tool name and then by digest.
func (s *Server) Waiting() []Digest {
	var out []Digest
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		out = append(out, s.Tools[name].Waiting()...)
	}
	return out
}

// Waiting returns the sorted digests of the tool's definitions that wait for a decision.
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

// WaitingDigest returns the SHA-256 digest of the concatenated digests from [Server.Waiting], or nil if there are none.
func (s *Server) WaitingDigest() []byte {
	all := s.Waiting()
	if len(all) == 0 {
		return nil
	}
	h := sha256.New()
	for _, d := range all {
		_, _ = h.Write(d[:]) // Write never returns an error
	}
	return h.Sum(nil)
}
