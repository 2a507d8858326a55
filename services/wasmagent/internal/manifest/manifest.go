// Package manifest checks tool calls and questions to models against the manifest and the grants of an agent.
// Everything that no right allows is denied. In addition, the policy service evaluates each call when the gateway
// receives it. Package agent uses the package.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/go-json-experiment/json/jsontext"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

const (
	// maxName limits the length of a tool or server name in a manifest, in bytes.
	maxName = 128
	// MaxConditions limits how many conditions a manifest and its grants may have together.
	MaxConditions = 64
	// maxArguments limits the size, in bytes, of arguments to which conditions can be applied. Larger arguments satisfy
	// no condition. The limit is necessary because each condition searches all arguments, which takes time.
	maxArguments = 64 << 10
	// maxNumber limits the length of a number in a comparison, in bytes. The absolute value of the number's decimal
	// exponent must be less than maxExponent. As a float64, a number with a larger exponent would be infinite or zero.
	maxNumber   = 64
	maxExponent = 400
)

// Calls that the rights do not allow fail with these errors. Compare them with [errors.Is].
var (
	// ErrNotAllowed means that no right applies to the tool or the model, or that the conditions of the rights are not
	// satisfied.
	ErrNotAllowed = errors.New("the agent's manifest does not allow this call")
	// ErrSpent means that the rights that allow the call are used up.
	ErrSpent = errors.New("the agent has made as many such calls as its manifest allows")
)

// Rights contains the rights of a manifest and of its grants. A Rights is immutable. The zero value allows nothing.
type Rights struct{ parts []part }

// part is the manifest or a grant. For a grant, id is the grant's id, and until is when the grant expires. For the
// manifest, both are zero.
type part struct {
	id       string
	manifest *wasmagentv1.Manifest
	until    time.Time
}

// A Match is a right that allows a call.
type Match struct {
	// Grant is the id of the grant that contains the right, or empty if the manifest contains the right. Index is the
	// index of the right in the grant or manifest, counted from 0.
	Grant string
	Index int
	// MaxUses limits how often the right may be used. 0 means that there is no limit.
	MaxUses int64
}

// New returns the rights of a manifest and its grants. The caller must not change the manifest or the grants
// afterwards. A nil manifest has no rights.
func New(m *wasmagentv1.Manifest, grants ...*wasmagentv1.RightsGrant) *Rights {
	r := &Rights{parts: []part{{manifest: m}}}
	for _, g := range grants {
		grant := part{id: g.GetId(), manifest: g.GetRights()}
		if g.GetExpiresAt() != nil {
			grant.until = g.GetExpiresAt().AsTime()
		}
		r.parts = append(r.parts, grant)
	}
	return r
}

func (r *Rights) unexpired(now time.Time) []part {
	return slices.DeleteFunc(slices.Clone(r.parts), func(p part) bool { return !p.until.IsZero() && !now.Before(p.until) })
}

// Union returns a manifest with all rights of the manifest and the unexpired grants. The result is never nil.
func (r *Rights) Union(now time.Time) *wasmagentv1.Manifest {
	out := new(wasmagentv1.Manifest)
	for _, p := range r.unexpired(now) {
		m := p.manifest
		out.Tools = append(out.Tools, m.GetTools()...)
		out.Models = append(out.Models, m.GetModels()...)
		out.Clock, out.Random = out.GetClock() || m.GetClock(), out.GetRandom() || m.GetRandom()
		out.StopOnDenial = out.GetStopOnDenial() || m.GetStopOnDenial()
		if f := m.GetFiles(); f != nil {
			out.Files = &wasmagentv1.FileRight{Bytes: addSaturating(out.GetFiles().GetBytes(), f.GetBytes()), Count: addSaturating(out.GetFiles().GetCount(), f.GetCount())}
		}
		if c := m.GetChildren(); c != nil {
			out.Children = &wasmagentv1.ChildRight{Depth: max(out.GetChildren().GetDepth(), c.GetDepth()), Count: addSaturating(out.GetChildren().GetCount(), c.GetCount())}
		}
	}
	return out
}

func addSaturating(a, b int32) int32 { return int32(min(int64(a)+int64(b), math.MaxInt32)) }

// MatchTool returns the rights that allow a tool call. The call may be made if at least one of these rights is not used
// up. arguments must be a JSON object. MatchTool returns an error that wraps [ErrNotAllowed] if no right allows the
// call.
func (r *Rights) MatchTool(server, tool string, arguments []byte, now time.Time) ([]Match, error) {
	if len(server) > maxName || len(tool) > maxName {
		return nil, fmt.Errorf("%w: the name of the server or the tool is too long", ErrNotAllowed)
	}
	var found []Match
	for _, p := range r.unexpired(now) {
		for i, right := range p.manifest.GetTools() {
			if right.GetServer() == server && matches(right.GetTool(), tool) && conditionsHold(right.GetConditions(), arguments) {
				found = append(found, Match{p.id, i, int64(right.GetCalls())})
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %s of %s", ErrNotAllowed, tool, server)
	}
	return found, nil
}

// NamesTool reports whether a right applies to a tool, even if the right has conditions.
func (r *Rights) NamesTool(server, tool string, now time.Time) bool {
	if len(server) > maxName || len(tool) > maxName {
		return false
	}
	for _, p := range r.unexpired(now) {
		for _, right := range p.manifest.GetTools() {
			if right.GetServer() == server && matches(right.GetTool(), tool) {
				return true
			}
		}
	}
	return false
}

// A ModelMatch is a right that allows questions to a model.
type ModelMatch struct {
	Match
	// Tokens limits the number of tokens, and Nanos limits the cost, in billionths of a US dollar. -1 means that there
	// is no limit.
	Tokens, Nanos int64
}

// IsUnbounded reports whether the right limits neither the tokens nor the cost.
func (f ModelMatch) IsUnbounded() bool { return f.Tokens < 0 && f.Nanos < 0 }

// MatchModel returns the rights that allow questions to a model, which is written as `provider:name`. It returns an
// error that wraps [ErrNotAllowed] if there are none.
func (r *Rights) MatchModel(model string, now time.Time) ([]ModelMatch, error) {
	var found []ModelMatch
	for _, p := range r.unexpired(now) {
		for i, right := range p.manifest.GetModels() {
			if len(model) > maxName || !matches(right.GetModel(), model) {
				continue
			}
			match := ModelMatch{Match{Grant: p.id, Index: i}, -1, -1}
			if right.Tokens != nil {
				match.Tokens = int64(right.GetTokens())
			}
			if right.Cost != nil {
				match.Nanos = dollarsToNanos(right.GetCost())
			}
			found = append(found, match)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: the model %.64q", ErrNotAllowed, model)
	}
	return found, nil
}

// dollarsToNanos converts an amount of dollars to billionths of a dollar. For an invalid amount, it returns 0, which
// allows nothing.
func dollarsToNanos(text string) int64 {
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Negative {
		return 0
	}
	if _, err := apd.BaseContext.WithPrecision(30).Quantize(d, d, -9); err != nil || !d.Coeff.IsInt64() {
		return 0
	}
	return d.Coeff.Int64()
}

// matches reports whether a glob matches a whole name. In a glob, `*` matches any sequence of characters.
func matches(glob, name string) bool {
	first, rest, some := strings.Cut(glob, "*")
	if !some {
		return glob == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, parts[len(parts)-1])
}

func conditionsHold(conditions []*wasmagentv1.ArgumentCondition, arguments []byte) bool {
	// JSON with a duplicate name is not valid, so it satisfies no condition.
	if len(conditions) > 0 && (len(arguments) > maxArguments || !jsontext.Value(arguments).IsValid()) {
		return false
	}
	for _, c := range conditions {
		if !conditionHolds(c, valueAt(arguments, c.GetPath())) {
			return false
		}
	}
	return true
}

// conditionHolds reports whether a value satisfies a condition. A missing value or a value of the wrong type does not
// satisfy it.
func conditionHolds(c *wasmagentv1.ArgumentCondition, value jsontext.Value) bool {
	if most, ok := c.GetTest().(*wasmagentv1.ArgumentCondition_AtMost); ok {
		if value.Kind() != '0' {
			return false
		}
		bound, _, err := apd.NewFromString(most.AtMost)
		if err != nil || len(value) > maxNumber { // the gateway refuses longer numbers
			return false
		}
		n, _, err := apd.NewFromString(string(value))
		return err == nil && n.Exponent < maxExponent && n.Exponent > -maxExponent && n.Cmp(bound) <= 0
	}
	raw, err := jsontext.AppendUnquote(nil, value)
	if value.Kind() != '"' || err != nil {
		return false
	}
	text := string(raw)
	switch test := c.GetTest().(type) {
	case *wasmagentv1.ArgumentCondition_Equals:
		return text == test.Equals
	case *wasmagentv1.ArgumentCondition_Prefix:
		return strings.HasPrefix(text, test.Prefix)
	case *wasmagentv1.ArgumentCondition_Below:
		return isClean(text) && isClean(test.Below) && (text == test.Below || strings.HasPrefix(text, strings.TrimSuffix(test.Below, "/")+"/"))
	}
	return false
}

// isClean reports whether a path is clean. A clean path contains no `.` or `..` elements, doubled slashes, backslashes
// or NUL characters.
func isClean(p string) bool {
	return p != "" && path.Clean(p) == p && p != "." && p != ".." && !strings.HasPrefix(p, "../") && !strings.ContainsAny(p, "\x00\\")
}

// valueAt returns the value to which a JSON Pointer (RFC 6901) refers, or nil if there is no such value.
func valueAt(text []byte, pointer string) jsontext.Value {
	value := jsontext.Value(text)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		if value = memberOf(value, token); value == nil {
			return nil
		}
	}
	return value
}

// memberOf returns the member of an object, or the element of an array, to which a token of a JSON Pointer refers. It
// returns nil if there is none. It also returns nil if the object has another member whose name differs only in case,
// because the server may use that member instead.
func memberOf(value jsontext.Value, token string) jsontext.Value {
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	begin, err := dec.ReadToken()
	if err != nil {
		return nil
	}
	index, isIndex := -1, begin.Kind() == '['
	switch {
	case isIndex:
		if index, err = strconv.Atoi(token); err != nil || strconv.Itoa(index) != token {
			return nil
		}
	case begin.Kind() != '{':
		return nil
	}
	var found jsontext.Value
	for i := 0; dec.PeekKind() != '}' && dec.PeekKind() != ']'; i++ {
		is := i == index
		if !isIndex {
			key, err := dec.ReadToken()
			if err != nil {
				return nil
			}
			if is = key.String() == token; !is && strings.EqualFold(key.String(), token) {
				return nil
			}
		}
		element, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		if is {
			found = element.Clone()
		}
	}
	return found
}
