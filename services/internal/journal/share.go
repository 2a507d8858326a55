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
	// spared is how old records are at the least that go because of one principal's
	// calls.
	spared = 7 * 24 * time.Hour
	// maxAccounts is how many principals of a whole segment are told apart; of more
	// those are not counted that take less than a part in as many of it.
	maxAccounts = 1024
)

// ErrShare says that a principal's calls take more than their share of the room, so
// that one more would push out what others have on record. The same call may be taken
// once older records have gone.
var ErrShare = errors.New("the calls of this principal take more than their share of the journal")

// tally is how many bytes the records of each take: its own, and those of agents that it
// stands behind.
type tally map[principal.Key]int64

// appendAccounts appends the accounts that a record is charged to, each once: its principal, those of the
// chain, and the persons that they work for. The principal's own stands first.
func appendAccounts(dst []principal.Key, rec *Record) []principal.Key {
	dst = appendAccount(dst, &rec.Principal)
	for i := range rec.Chain {
		dst = appendAccount(dst, &rec.Chain[i])
	}
	return dst
}

func appendAccount(dst []principal.Key, p *Principal) []principal.Key {
	for _, subject := range [...]string{p.Subject, p.Owner} {
		if who := (principal.Key{Tenant: p.Tenant, Subject: subject}); subject != "" && !slices.Contains(dst, who) {
			dst = append(dst, who)
		}
	}
	return dst
}

// shares is the room of a chain and who takes how much of it. It needs writing. The
// zero value counts nothing and refuses nobody.
type shares struct {
	// most is how many bytes one may take; 0: nothing is counted.
	most int64
	// kept is what the records of all segments take that were counted, and active those
	// of the active one alone; expected is what those of a group may take that is not
	// written yet.
	kept, active, expected tally
}

func newShares(share float64, room int64) shares {
	most := int64(math.MaxInt64)
	if share < 1 {
		most = int64(share * float64(room))
	}
	return shares{most: most, kept: tally{}, active: tally{}, expected: tally{}}
}

// expect counts a record that is to be written with those before it.
func (s *shares) expect(who []principal.Key, size int64) {
	for _, a := range who {
		s.expected[a] += size
	}
}

// charge counts a record in the active segment.
func (s *shares) charge(who []principal.Key, size int64) {
	for _, a := range who {
		s.kept[a] += size
		s.active[a] += size
	}
}

// ended returns what the segment's records take that is active no longer.
func (s *shares) ended(segmentBytes int64) tally {
	done := s.active
	if len(done) == 0 {
		return nil
	}
	s.active = tally{}
	kept := done.trimmed(segmentBytes)
	for a, n := range done {
		if _, ok := kept[a]; !ok {
			s.less(a, n)
		}
	}
	return kept
}

// trimmed is the tally without those who take too little to be told apart.
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

// add counts an older segment's records.
func (s *shares) add(t tally) {
	for a, n := range t {
		s.kept[a] += n
	}
}

// drop counts a segment's records no longer.
func (s *shares) drop(t tally) {
	for a, n := range t {
		s.less(a, n)
	}
}

func (s *shares) less(a principal.Key, n int64) {
	if s.kept[a] -= n; s.kept[a] <= 0 {
		delete(s.kept, a)
	}
}

// admit says why a call may not begin, or nil: whom it is charged to has its share, and
// nothing is old enough to make room. It needs writing.
func (c *chain) admit(ctx context.Context, e *entry, now time.Time) error {
	if e.rec.Kind != KindIntent && e.rec.Kind != KindClaim {
		return nil // what was begun is told to its end
	}
	for _, who := range e.who {
		for c.shares.kept[who]+c.shares.expected[who]+lineOf(e) > c.shares.most {
			if !c.makeRoom(ctx, now) {
				return fmt.Errorf("%w: %w", ErrShare, &quota.Full{
					Account: who, Caller: e.who[0], Held: int(c.shares.kept[who]), Limit: int(c.shares.most), What: "bytes of the journal",
				})
			}
		}
	}
	return nil
}

// lineOf is how many bytes an entry's line has at the most.
func lineOf(e *entry) int64 { return int64(e.body.Len()) + maxFrame }

// makeRoom removes the oldest segment, if all its records are old enough to go because
// of one principal.
func (c *chain) makeRoom(ctx context.Context, now time.Time) bool {
	if c.sweep(ctx) != nil {
		return false
	}
	c.listing.Lock()
	old := c.removable()
	may := len(old) > 0 && now.Sub(old[0].newest) > spared
	var gone Pruned
	if may {
		gone = old[0].pruned(WhyShare)
	}
	c.listing.Unlock()
	return may && c.remove(ctx, []Pruned{gone}) == nil
}

// counted takes what an older segment's records take, once it was read; nothing where
// it was removed meanwhile.
func (c *chain) counted(first int64, t tally) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.listing.Lock()
	defer c.listing.Unlock()
	for i := range c.segments {
		if s := &c.segments[i]; s.first == first && s.tally == nil {
			s.tally = t.trimmed(c.cfg.SegmentBytes)
			c.shares.add(s.tally)
		}
	}
}
