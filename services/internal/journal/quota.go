package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// minRemovalAge is how old records must be before they may be removed to make space for one principal's calls.
	minRemovalAge = 7 * 24 * time.Hour
	// maxAccounts is the maximum number of principals whose usage is stored for a complete segment. If there are more,
	// principals that use less than 1/maxAccounts of the segment are not counted.
	maxAccounts = 1024
)

// ErrQuota means that the records of a principal's calls already use the principal's share of the capacity. One more
// call would displace records of other principals. The call can be accepted later, when older records have been
// removed.
var ErrQuota = errors.New("the calls of this principal use more than their share of the journal")

// tally maps each principal to the number of bytes that its records use. These include the records of agents that act
// on the principal's behalf.
type tally map[principal.Key]int64

// appendAccounts appends the principals to which a record is charged, without duplicates. These are the record's
// principal, the principals in its delegation chain, and the people for whom all these principals work.
func appendAccounts(dst []principal.Key, rec *Record) []principal.Key {
	dst = appendAccount(dst, &rec.Principal)
	for i := range rec.Chain {
		dst = appendAccount(dst, &rec.Chain[i])
	}
	return dst
}

func appendAccount(dst []principal.Key, p *Principal) []principal.Key {
	for _, subject := range [...]string{p.Subject, p.Owner} {
		if account := (principal.Key{Tenant: p.Tenant, Subject: subject}); subject != "" && !slices.Contains(dst, account) {
			dst = append(dst, account)
		}
	}
	return dst
}

// quotaUsage counts how much of a chain's capacity each principal uses. It is guarded by [chain.writeMu]. The zero
// value counts nothing and refuses no call.
type quotaUsage struct {
	// limit is the maximum number of bytes for one principal. If it is 0, nothing is counted.
	limit int64
	// total counts the records of all counted segments, active counts those of the active segment, and expected counts
	// those of a group that is not written yet.
	total, active, expected tally
}

func newQuotaUsage(share float64, room int64) quotaUsage {
	limit := int64(math.MaxInt64)
	if share < 1 {
		limit = int64(share * float64(room))
	}
	return quotaUsage{limit: limit, total: tally{}, active: tally{}, expected: tally{}}
}

func (s *quotaUsage) expect(accounts []principal.Key, size int64) {
	for _, a := range accounts {
		s.expected[a] += size
	}
}

// charge counts a record that was written to the active segment.
func (s *quotaUsage) charge(accounts []principal.Key, size int64) {
	for _, a := range accounts {
		s.total[a] += size
		s.active[a] += size
	}
}

// endSegment begins a new tally for the next segment and returns the tally of the segment that has ended.
func (s *quotaUsage) endSegment(segmentBytes int64) tally {
	done := s.active
	if len(done) == 0 {
		return nil
	}
	s.active = tally{}
	counted := done.trimmed(segmentBytes)
	for a, n := range done {
		if _, ok := counted[a]; !ok {
			s.subtract(a, n)
		}
	}
	return counted
}

// trimmed returns the tally without principals whose usage is too small to be counted.
func (t tally) trimmed(segmentBytes int64) tally {
	if len(t) <= maxAccounts {
		return t
	}
	out := tally{}
	for a, n := range t {
		if n >= segmentBytes/maxAccounts {
			out[a] = n
		}
	}
	return out
}

func (s *quotaUsage) add(t tally) {
	for a, n := range t {
		s.total[a] += n
	}
}

func (s *quotaUsage) drop(t tally) {
	for a, n := range t {
		s.subtract(a, n)
	}
}

func (s *quotaUsage) subtract(a principal.Key, n int64) {
	if s.total[a] -= n; s.total[a] <= 0 {
		delete(s.total, a)
	}
}

// admit returns an error if a call must not begin. This is the case if one of the principals to which the call is
// charged has used its share, and no segment is old enough to be removed. The caller must hold writeMu.
func (c *chain) admit(ctx context.Context, e *entry, now time.Time) error {
	if e.rec.Kind != KindIntent && e.rec.Kind != KindClaim {
		return nil // records of a call that has begun are always accepted
	}
	for _, account := range e.accounts {
		for c.usage.total[account]+c.usage.expected[account]+maxLineLen(e) > c.usage.limit {
			if !c.removeOldest(ctx, now) {
				return fmt.Errorf("%w: %w", ErrQuota, &quota.FullError{
					Account: account, Caller: e.accounts[0], Held: int(c.usage.total[account]), Limit: int(c.usage.limit), What: "bytes of the journal",
				})
			}
		}
	}
	return nil
}

// maxLineLen returns the maximum length of an entry's line.
func maxLineLen(e *entry) int64 { return int64(e.body.Len()) + maxFrame }

// removeOldest removes the oldest segment if all its records are old enough to be removed for the calls of one
// principal. It reports whether it removed the segment.
func (c *chain) removeOldest(ctx context.Context, now time.Time) bool {
	if c.removeRecorded(ctx) != nil {
		return false
	}
	c.listMu.Lock()
	old := c.removable()
	may := len(old) > 0 && now.Sub(old[0].newest) > minRemovalAge
	var pruned Pruned
	if may {
		pruned = old[0].toPruned(PrunedForQuota)
	}
	c.listMu.Unlock()
	return may && c.remove(ctx, []Pruned{pruned}) == nil
}

// setTally sets the tally of an older segment after the segment has been read. It does nothing if the segment has been
// removed.
func (c *chain) setTally(first int64, t tally) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.listMu.Lock()
	defer c.listMu.Unlock()
	for i := range c.segments {
		if s := &c.segments[i]; s.first == first && s.tally == nil {
			s.tally = t.trimmed(c.cfg.SegmentBytes)
			c.usage.add(s.tally)
		}
	}
}
