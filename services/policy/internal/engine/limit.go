package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strconv"
	"time"
)

// A limit is a compiled [RateLimit] of a rule.
type limit struct {
	max    int64
	window time.Duration
	own    counter
	// cap counts the calls in all sessions of a principal together. It is nil if the limit does not count sessions
	// separately.
	cap *counter
}

// A counter computes the identities of the buckets in which one limit counts calls.
type counter struct {
	per []Dimension // sorted
	// start is the beginning of the data from which bucket identities are computed. It is the same for all calls.
	start []byte
}

// bucketFormat is the version of the format of bucket identities. If it changes, all buckets get new identities, and
// all counts start again at zero.
const bucketFormat = "sluice.bucket.v1"

func compileLimit(ref RuleRef, l RateLimit) limit {
	compiled := limit{max: l.Max, window: l.Window, own: newCounter(ref, l.Window, "limit", l.per())}
	if slices.Contains(l.Per, PerSession) {
		per := []Dimension{PerPrincipal}
		for _, d := range l.per() {
			if d != PerSession && d != PerPrincipal {
				per = append(per, d)
			}
		}
		own := newCounter(ref, l.Window, "cap", per)
		compiled.cap = &own
	}
	return compiled
}

func newCounter(ref RuleRef, window time.Duration, role string, per []Dimension) counter {
	var b []byte
	for _, part := range []string{bucketFormat, ref.Document, ref.Rule, "sliding_window", role, strconv.FormatInt(int64(window), 10)} {
		b = appendPart(b, part)
	}
	return counter{per: per, start: b}
}

// per returns the dimensions of the limit in sorted order.
func (l RateLimit) per() []Dimension { return slices.Sorted(slices.Values(l.Per)) }

func compareLimits(a, b limit) int {
	return cmp.Or(cmp.Compare(a.window, b.window), slices.Compare(a.own.per, b.own.per))
}

// appendPart appends the length of a part and then the part. Therefore different sequences of parts have different
// encodings.
func appendPart[T string | []byte](b []byte, part T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(part))), part...)
}

// bucket returns the identity of the bucket in which a principal's call is counted. The identity always depends on the
// tenant. If sessions are counted separately, the identity also depends on the principal, because clients can choose
// the names of their sessions.
func (c *counter) bucket(p *Principal, call *Call) string {
	var space [512]byte
	b := appendPart(append(space[:0], c.start...), p.Tenant)
	for _, d := range c.per {
		b = append(b, byte(d))
		switch d {
		case PerSession:
			key, value := sessionOf(p)
			b = appendPart(appendPart(append(b, byte(key)), p.Name), value)
		case PerPrincipal:
			b = appendPart(b, p.Name)
		case PerAgent:
			b = appendPart(b, p.Agent)
		case PerOwner:
			b = appendPart(b, cmp.Or(p.Owner, p.Name))
		case PerTenant: // all buckets depend on the tenant
		case PerServer:
			b = appendPart(b, call.Server)
		case PerTool:
			if call.OfTool() {
				b = appendPart(b, call.Tool)
			} else { // the empty name distinguishes methods from tools
				b = appendPart(appendPart(b, ""), call.Method)
			}
		}
	}
	sum := sha256.Sum256(b)
	var text [43]byte
	base64.RawURLEncoding.Encode(text[:], sum[:])
	return string(text[:])
}

// sessionOf returns the value that identifies the session of a principal, and the kind of this value.
func sessionOf(p *Principal) (SessionKey, string) {
	switch {
	case p.Run != "":
		return SessionKeyRun, p.Run
	case p.Session != "":
		return SessionKeySession, p.Session
	default:
		return SessionKeyPrincipal, ""
	}
}

// limits returns the limits that apply to a call. All given rules must match the call. The limits of a rule apply to
// the first principal to whom the rule applies, and to all later principals in the chain.
func (s *Set) limits(rules []*rule, call *Call) []Limit {
	var found []Limit
	for _, r := range rules {
		if len(r.limits) == 0 {
			continue
		}
		first := 0
		for first < call.Subject.size() && !call.limits(r, first) {
			first++
		}
		found = slices.Grow(found, 2*len(r.limits)*(call.Subject.size()-first))
		for i := range r.limits {
			found = s.appendLimit(found, r, &r.limits[i], limitScope{call, first})
		}
	}
	return found
}

// limitScope is a call and the index of the first principal to whom the limits of a rule apply.
type limitScope struct {
	call  *Call
	first int
}

func (s *Set) appendLimit(found []Limit, r *rule, l *limit, to limitScope) []Limit {
	start := len(found)
	for i := to.first; i < to.call.Subject.size(); i++ {
		p := to.call.Subject.at(i)
		own := Limit{Rule: r.ref, Bucket: l.own.bucket(p, to.call), Max: l.max, Window: l.window, Per: l.own.per}
		if l.cap != nil {
			own.SessionKey, _ = sessionOf(p)
		}
		found = appendNew(found, start, own)
		if l.cap != nil {
			found = appendNew(found, start, Limit{
				Rule: r.ref, Bucket: l.cap.bucket(p, to.call), Max: l.max * s.sessionCap, Window: l.window,
				Per: l.cap.per, Cap: true,
			})
		}
	}
	return found
}

// appendNew appends a limit unless a limit in found[start:] has the same bucket. This can happen because the caller and
// the principals in its chain may share a bucket.
func appendNew(found []Limit, start int, l Limit) []Limit {
	if slices.ContainsFunc(found[start:], func(o Limit) bool { return o.Bucket == l.Bucket }) {
		return found
	}
	return append(found, l)
}
