// Package manifest decides which calls the manifest and the grants of an agent allow. Calls that they do not name are
// denied. The gateway applies policy in addition. Package agent uses the package.
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
	// maxName bounds the name of a tool or server in a manifest, in bytes.
	maxName = 128
	// MaxConditions is the maximum number of conditions in a manifest and its grants.
	MaxConditions = 64
	// maxLooked is the maximum size of arguments to which conditions are applied, in bytes. No condition holds for
	// larger arguments. The bound limits the time of a check, because each condition searches all of the arguments.
	maxLooked = 64 << 10
	// maxNumber is the maximum length of a number that is compared, in bytes of its text. maxExponent bounds the
	// absolute value of its decimal exponent; a float64 beyond that is infinite or zero.
	maxNumber   = 64
	maxExponent = 400
)

// Errors of rights, for [errors.Is].
var (
	// ErrNotNamed means that no right names the tool or the model, or that the conditions of the rights do not hold.
	ErrNotNamed = errors.New("the agent's manifest does not allow this call")
	// ErrSpent means that the rights that allow the call are used up.
	ErrSpent = errors.New("the agent has made as many such calls as its manifest allows")
)

// Rights are the rights of a manifest and of its grants. They do not change. The zero value allows nothing.
type Rights struct{ parts []part }

// part is the manifest or a grant. id is the id of the grant, and until the time at which it expires. For the manifest,
// both are zero.
type part struct {
	id       string
	manifest *wasmagentv1.Manifest
	until    time.Time
}

// A Fit is a right that allows a call.
type Fit struct {
	// Grant is the id of the right's grant; empty for the manifest. Place is the index of the right in the grant or
	// manifest, from 0.
	Grant string
	Place int
	// Most is the maximum number of uses of the right; 0 means that there is no maximum.
	Most int64
}

// Of returns the rights of a manifest and its grants, which the caller must not change afterwards. A nil manifest has
// no rights.
func Of(m *wasmagentv1.Manifest, grants ...*wasmagentv1.RightsGrant) *Rights {
	r := &Rights{parts: []part{{manifest: m}}}
	for _, g := range grants {
		one := part{id: g.GetId(), manifest: g.GetRights()}
		if g.GetExpiresAt() != nil {
			one.until = g.GetExpiresAt().AsTime()
		}
		r.parts = append(r.parts, one)
	}
	return r
}

// live returns the parts that have not expired.
func (r *Rights) live(now time.Time) []part {
	return slices.DeleteFunc(slices.Clone(r.parts), func(p part) bool { return !p.until.IsZero() && !now.Before(p.until) })
}

// Manifest returns the union of the manifest and of the grants that have not expired. The result is never nil.
func (r *Rights) Manifest(now time.Time) *wasmagentv1.Manifest {
	out := new(wasmagentv1.Manifest)
	for _, p := range r.live(now) {
		m := p.manifest
		out.Tools = append(out.Tools, m.GetTools()...)
		out.Models = append(out.Models, m.GetModels()...)
		out.Clock, out.Random = out.GetClock() || m.GetClock(), out.GetRandom() || m.GetRandom()
		out.StopOnDenial = out.GetStopOnDenial() || m.GetStopOnDenial()
		if f := m.GetFiles(); f != nil {
			out.Files = &wasmagentv1.FileRight{Bytes: add(out.GetFiles().GetBytes(), f.GetBytes()), Count: add(out.GetFiles().GetCount(), f.GetCount())}
		}
		if c := m.GetChildren(); c != nil {
			out.Children = &wasmagentv1.ChildRight{Depth: max(out.GetChildren().GetDepth(), c.GetDepth()), Count: add(out.GetChildren().GetCount(), c.GetCount())}
		}
	}
	return out
}

// add returns a + b, at most the largest int32.
func add(a, b int32) int32 { return int32(min(int64(a)+int64(b), math.MaxInt32)) }

// Tool returns the rights that allow a call of a tool. The call may be made if one of these rights is not used up.
// arguments is a JSON object. Errors: [ErrNotNamed].
func (r *Rights) Tool(server, tool string, arguments []byte, now time.Time) ([]Fit, error) {
	if len(server) > maxName || len(tool) > maxName {
		return nil, fmt.Errorf("%w: the name of the server or the tool is too long", ErrNotNamed)
	}
	var fits []Fit
	for _, p := range r.live(now) {
		for i, right := range p.manifest.GetTools() {
			if right.GetServer() == server && matches(right.GetTool(), tool) && holds(right.GetConditions(), arguments) {
				fits = append(fits, Fit{p.id, i, int64(right.GetCalls())})
			}
		}
	}
	if len(fits) == 0 {
		return nil, fmt.Errorf("%w: %s of %s", ErrNotNamed, tool, server)
	}
	return fits, nil
}

// Names reports whether a right names a tool, regardless of the right's conditions.
func (r *Rights) Names(server, tool string, now time.Time) bool {
	if len(server) > maxName || len(tool) > maxName {
		return false
	}
	for _, p := range r.live(now) {
		for _, right := range p.manifest.GetTools() {
			if right.GetServer() == server && matches(right.GetTool(), tool) {
				return true
			}
		}
	}
	return false
}

// A ModelFit is a right that allows questions to a model.
type ModelFit struct {
	Fit
	// Tokens bounds the number of tokens, and Nanos the cost in billionths of a US dollar; -1 means that there is no
	// bound.
	Tokens, Nanos int64
}

// Unbounded reports whether the right bounds neither the tokens nor the cost.
func (f ModelFit) Unbounded() bool { return f.Tokens < 0 && f.Nanos < 0 }

// Model returns the rights that allow questions to a model, which is `provider:name`. Errors: [ErrNotNamed].
func (r *Rights) Model(model string, now time.Time) ([]ModelFit, error) {
	var fits []ModelFit
	for _, p := range r.live(now) {
		for i, right := range p.manifest.GetModels() {
			if len(model) > maxName || !matches(right.GetModel(), model) {
				continue
			}
			fit := ModelFit{Fit{Grant: p.id, Place: i}, -1, -1}
			if right.Tokens != nil {
				fit.Tokens = int64(right.GetTokens())
			}
			if right.Cost != nil {
				fit.Nanos = nanos(right.GetCost())
			}
			fits = append(fits, fit)
		}
	}
	if len(fits) == 0 {
		return nil, fmt.Errorf("%w: the model %.64q", ErrNotNamed, model)
	}
	return fits, nil
}

// nanos converts an amount of dollars to billionths of a dollar. For an invalid amount it returns 0, which allows
// nothing.
func nanos(text string) int64 {
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Negative {
		return 0
	}
	if _, err := apd.BaseContext.WithPrecision(30).Quantize(d, d, -9); err != nil || !d.Coeff.IsInt64() {
		return 0
	}
	return d.Coeff.Int64()
}

// matches reports whether a glob matches a whole name. `*` matches any sequence of characters.
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

// holds reports whether the arguments satisfy every condition.
func holds(conditions []*wasmagentv1.ArgumentCondition, arguments []byte) bool {
	// JSON with a duplicate name is not valid.
	if len(conditions) > 0 && (len(arguments) > maxLooked || !jsontext.Value(arguments).IsValid()) {
		return false
	}
	for _, c := range conditions {
		if !satisfies(c, valueAt(arguments, c.GetPath())) {
			return false
		}
	}
	return true
}

// satisfies reports whether a value satisfies a condition. A missing value, or a value of another type, does not.
func satisfies(c *wasmagentv1.ArgumentCondition, value jsontext.Value) bool {
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

// isClean reports whether a path is clean: it has no `.` or `..` elements, doubled slashes, backslashes or NUL
// characters.
func isClean(p string) bool {
	return p != "" && path.Clean(p) == p && p != "." && p != ".." && !strings.HasPrefix(p, "../") && !strings.ContainsAny(p, "\x00\\")
}

// valueAt returns the value at a JSON Pointer (RFC 6901), or nil if there is none.
func valueAt(text []byte, pointer string) jsontext.Value {
	value := jsontext.Value(text)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		if value = inside(value, token); value == nil {
			return nil
		}
	}
	return value
}

// inside returns the member of an object or the element of an array, or nil if it does not exist. It also returns nil
// if the object has another member whose name differs only in case, because servers may read either of the two.
func inside(value jsontext.Value, token string) jsontext.Value {
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
