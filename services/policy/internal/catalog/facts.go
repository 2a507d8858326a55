package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

func shortSum(sum [sha256.Size]byte) string { return base64.RawURLEncoding.EncodeToString(sum[:]) }

// ClassWith returns the tool's classification for calls that use the definition d, which may be nil. If an operator has
// set an override, the override replaces parts of the definition's classification.
func (t *Tool) ClassWith(d *Definition) Class {
	var c Class
	if d != nil {
		c = d.Class
	}
	if t == nil || t.Override == nil {
		return c
	}
	o := t.Override
	if o.Category != mcpv1.Category_CATEGORY_UNSPECIFIED {
		c.Category = o.Category
	}
	if o.Risk != 0 {
		c.Risk = o.Risk
	}
	c.Tags = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Tags, o.Tags))))
	return c
}

// Facts returns the facts about a tool for calls that use the definition with the given digest. s is nil if no gateway
// has reported a list from the server.
func (s *Server) Facts(name string, digest []byte, set Settings) engine.Facts {
	f := engine.Facts{Status: s.status(name, digest, set)}
	if s == nil || s.Tools[name] == nil {
		return f
	}
	t := s.Tools[name]
	d := t.findDefinition(digest)
	c := t.ClassWith(d)
	if category, risk := nameOf(engine.Categories(), int(c.Category)), nameOf(engine.Risks(), int(c.Risk)); category != "" && risk != "" {
		f.Category, f.Risk, f.Tags = category, risk, c.Tags
	}
	f.Arguments = c.Arguments
	f.Sure = c.Confidence >= classify.Unsure || t.Override != nil && (t.Override.Category != 0 || t.Override.Risk != 0)
	f.Believed = set.Trusted || t.Override != nil && t.Override.Risk != 0 || d != nil && d.State == Accepted && d.DecidedBy != ""
	if set.Trusted && d != nil {
		f.Hints = engine.Annotations()
		maps.Copy(f.Hints, d.Class.Hints)
	}
	return f
}

// ServerFacts returns the facts for methods other than tools/call. They contain only whether the server is in
// quarantine. s is nil if no gateway has reported a list from the server.
func (s *Server) ServerFacts() engine.Facts {
	if s != nil && s.Quarantine != nil {
		return engine.Facts{Status: engine.Quarantined}
	}
	return engine.Facts{Status: engine.Callable}
}

// nameOf returns the name of a protobuf enumeration value, or "" if the value has no name. The values start at 1.
func nameOf(names []string, value int) string {
	if value < 1 || value > len(names) {
		return ""
	}
	return names[value-1]
}

func (t *Tool) findDefinition(digest []byte) *Definition {
	if len(digest) != sha256.Size {
		return nil
	}
	return t.FindDefinition(Digest(digest))
}

func (s *Server) status(name string, digest []byte, set Settings) engine.Status {
	var t *Tool
	if s != nil {
		t = s.Tools[name]
	}
	switch {
	case s != nil && s.Quarantine != nil, t != nil && t.Quarantine != nil:
		return engine.Quarantined
	case set.Mode == Off:
		return engine.Callable
	}
	d := t.findDefinition(digest)
	switch {
	case d == nil && set.ForEachPerson && len(digest) > 0:
		return engine.NotStored
	case t == nil:
		return engine.Unlisted
	case d == nil || d.State != Accepted || t.StoppedByChange():
		return engine.Changed
	default:
		return engine.Callable
	}
}

// Sum returns a digest of the parts of a server's state that affect decisions. The digest also includes the version of
// the classifier.
func (s *Server) Sum(set Settings, classifier int) [sha256.Size]byte {
	var b []byte
	part := func(text string) { b = append(binary.AppendUvarint(b, uint64(len(text))), text...) }
	part(fmt.Sprintf("%s %d %t %d %t", s.Name, set.Mode, set.Trusted, classifier, s.Quarantine != nil))
	if set.ForEachPerson {
		part("for each person")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		t := s.Tools[name]
		if t.Override == nil && t.Quarantine == nil && !t.has(Accepted) {
			continue // all calls to the tool are refused
		}
		part(name)
		part(fmt.Sprintf("%t %t", t.Quarantine != nil, t.StoppedByChange()))
		if o := t.Override; o != nil {
			part(fmt.Sprintf("%d %d %q", o.Category, o.Risk, o.Tags))
		}
		accepted := slices.DeleteFunc(slices.Clone(t.Definitions), func(d Definition) bool { return d.State != Accepted })
		slices.SortFunc(accepted, func(a, b Definition) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
		for i := range accepted {
			c := accepted[i].Class
			part(fmt.Sprintf("%x %t %d %d %q %v %q", accepted[i].Digest, accepted[i].DecidedBy != "", c.Category, c.Risk, c.Tags, c.Hints, c.Arguments))
		}
	}
	return sha256.Sum256(b)
}
