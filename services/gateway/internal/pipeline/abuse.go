package pipeline

import (
	"cmp"
	"context"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// Who is refused writes to the journal at no cost. Of one principal's refusals so
// much is recorded one by one; the rest are only counted, so that nobody can push
// other people's refusals out of the journal.
const (
	// maxRefusals is how many are recorded in a stretch of time.
	maxRefusals = 1000
	// maxBytes is how many bytes they take at once, and bytesPerSecond how many are
	// allowed again: in a day 84 MiB and a burst, where the journal keeps 256 MiB.
	maxBytes       = 1 << 20
	bytesPerSecond = 1 << 10
	// stretchTime is how long a stretch lasts from its beginning.
	stretchTime = time.Minute
	// flushEvery is how often ended stretches are looked for.
	flushEvery = 10 * time.Second
)

// abuse counts refusals by principal, and what is recorded of them by everybody who stands behind it too. It is
// safe for concurrent use.
type abuse struct {
	mu        sync.Mutex
	stretches map[blamed]*stretch
	// groups are what was recorded of each principal with the agents made by it, and of each person.
	groups map[group]*stretch
}

// group is a principal with the agents made by it, or a person, as to what a server, or nothing, is to blame for.
type group struct {
	blamed

	person bool
}

func newAbuse() abuse {
	return abuse{stretches: make(map[blamed]*stretch), groups: make(map[group]*stretch)}
}

// groupsOf returns those of a record, and how many times one principal's share each has.
func groupsOf(rec *journal.Record) map[group]int {
	out := make(map[group]int, 2+2*len(rec.Chain))
	server := blame(rec).server
	for _, p := range append([]journal.Principal{rec.Principal}, rec.Chain...) {
		out[group{blamed: blamed{Key: principal.Key{Tenant: p.Tenant, Subject: p.Subject}, server: server}}] = 1
		person := principal.Key{Tenant: p.Tenant, Subject: cmp.Or(p.Owner, p.Subject)}
		out[group{blamed: blamed{Key: person, server: server}, person: true}] = quota.PersonFactor
	}
	return out
}

// spend takes room for a refusal from all groups of its record, and reports whether all had some.
func (a *abuse) spend(rec *journal.Record, now time.Time) bool {
	all, room := groupsOf(rec), true
	for g, times := range all {
		s := a.groups[g]
		if s == nil || now.Sub(s.since) >= stretchTime {
			s = s.next(now)
			a.groups[g] = s
		}
		room = room && s.recorded < times*maxRefusals && s.bytes < times*maxBytes
	}
	if !room {
		return false
	}
	size := journal.RefusalSize(rec)
	for g := range all {
		a.groups[g].recorded++
		a.groups[g].bytes += size
	}
	return true
}

// blamed is whose refusals are counted together: a principal's, and apart from them those of what
// a server asks of it, for which the server alone is to blame.
type blamed struct {
	principal.Key

	server string // empty for the principal's own
}

// blame is whose a refusal is.
func blame(rec *journal.Record) blamed {
	of := blamed{Key: principal.Key{Tenant: rec.Tenant, Subject: rec.Subject}}
	if rec.FromServer {
		of.server = rec.Server
	}
	return of
}

// blamedFor is who is to blame where a call is refused.
func blamedFor(c *attempt.Call) blamed {
	of := blamed{Key: principal.Of(c.Principal)}
	if c.FromServer {
		of.server = c.Server
	}
	return of
}

// stretch is a minute of refusals. Those of a principal have a rest and turns; what is recorded is counted by
// the stretches of groups.
type stretch struct {
	since    time.Time
	recorded int
	// bytes is what was recorded and is not allowed again yet.
	bytes int
	// rest stands for the refusals that are only counted; nil while there are none.
	rest *journal.Record
	// turn is full while a call is judged, once refusals are only counted; nil before.
	turn chan struct{}
}

// note counts a refusal. It returns the identifier to answer with, and what to
// record now: the refusal itself, or the first of those that are only counted, or
// nothing; before it, the count of a stretch that has ended.
func (a *abuse) note(rec *journal.Record, now time.Time) (id string, records []*journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := blame(rec)
	s := a.stretches[who]
	if s == nil || now.Sub(s.since) >= stretchTime {
		records = s.summary(records)
		s = s.next(now)
		a.stretches[who] = s
	}
	switch {
	case s.rest == nil && a.spend(rec, now):
		return rec.DecisionID, append(records, rec)
	case s.rest == nil:
		s.rest = restOf(rec, s.since)
		first := *s.rest
		return first.DecisionID, append(records, &first)
	default:
		s.rest.Count++
		return s.rest.DecisionID, records
	}
}

// restOf begins the record of a principal's refusals that are only counted. The
// first of them is recorded before its answer under the same identifier.
func restOf(rec *journal.Record, since time.Time) *journal.Record {
	return &journal.Record{
		DecisionID: attempt.NewID(),
		TraceID:    rec.TraceID,
		Principal:  rec.Principal,
		Chain:      rec.Chain,
		FromServer: rec.FromServer,
		Server:     blame(rec).server,
		Effect:     attempt.Denied,
		Code:       enum.Given(commonv1.Code_CODE_ABUSE_LIMITED),
		Message:    (&refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}).Text(),
		Since:      since,
	}
}

// summary appends the record of how many refusals followed the first that was
// only counted, if any did.
func (s *stretch) summary(records []*journal.Record) []*journal.Record {
	if s == nil || s.rest == nil || s.rest.Count == 0 {
		return records
	}
	return append(records, s.rest)
}

// next begins a stretch after s; nil is none before it.
func (s *stretch) next(now time.Time) *stretch {
	if s == nil {
		return &stretch{since: now}
	}
	allowed := int(now.Sub(s.since)/time.Second) * bytesPerSecond
	return &stretch{since: now, bytes: max(0, s.bytes-allowed)}
}

// ended ends the stretches that are over, or all of them, and returns what is to be
// recorded of them. Who has all bytes again is forgotten.
func (a *abuse) ended(now time.Time, all bool) (records []*journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for who, s := range a.stretches {
		if all || now.Sub(s.since) >= stretchTime {
			records = s.summary(records)
			if a.stretches[who] = s.next(now); all || a.stretches[who].bytes == 0 {
				delete(a.stretches, who)
			}
		}
	}
	for g, s := range a.groups {
		if all || now.Sub(s.since) >= stretchTime {
			if a.groups[g] = s.next(now); all || a.groups[g].bytes == 0 {
				delete(a.groups, g)
			}
		}
	}
	return records
}

// recordRefusal records a refusal, or counts it, and returns the identifier under
// which it is on record.
func (p *Pipeline) recordRefusal(ctx context.Context, rec *journal.Record) string {
	id, records := p.abuse.note(rec, time.Now())
	p.write(ctx, records)
	return id
}

func (p *Pipeline) write(ctx context.Context, records []*journal.Record) {
	for _, rec := range records {
		p.desk.WriteRefusal(ctx, rec)
	}
}

// Run records how many refusals were only counted, and what passed without a rule,
// until ctx ends; then it records what is left.
func (p *Pipeline) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.write(ctx, p.abuse.ended(time.Now(), true))
			p.recordPassed(ctx, time.Now(), true)
			return nil
		case now := <-tick.C:
			p.write(ctx, p.abuse.ended(now, false))
			p.recordPassed(ctx, now, false)
		}
	}
}
