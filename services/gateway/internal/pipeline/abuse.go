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

// Refused calls write to the journal and cost their caller nothing. Only a limited number of a principal's refusals
// is recorded one by one; the rest are only counted. So no principal can push the refusals of others out of the
// journal.
const (
	// maxRefusals is how many refusals of a principal are recorded in a stretch of time.
	maxRefusals = 1000
	// maxBytes is how many bytes of records a principal may write at once, and bytesPerSecond is how many it regains
	// each second: 84 MiB a day and a burst, of the 256 MiB that the journal holds.
	maxBytes       = 1 << 20
	bytesPerSecond = 1 << 10
	// stretchTime is the length of a stretch.
	stretchTime = time.Minute
	// flushEvery is how often the pipeline looks for stretches that are over.
	flushEvery = 10 * time.Second
)

// abuse counts refusals by principal. What is recorded of them also counts against every principal and person in the
// principal's chain. It is safe for concurrent use.
type abuse struct {
	mu        sync.Mutex
	stretches map[blamed]*stretch
	// groups count what was recorded of each principal with the agents made by it, and of each person.
	groups map[group]*stretch
}

// group is a principal with the agents made by it, or a person; for requests of a server together with that server.
type group struct {
	blamed

	person bool
}

func newAbuse() abuse {
	return abuse{stretches: make(map[blamed]*stretch), groups: make(map[group]*stretch)}
}

// groupsOf returns the groups of a record, each with the multiple of one principal's quota that it has.
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

// spend charges a refusal to all groups of its record. If one of them has no quota left, spend charges nothing and
// returns false.
func (a *abuse) spend(rec *journal.Record, now time.Time) bool {
	all, allowed := groupsOf(rec), true
	for g, times := range all {
		s := a.groups[g]
		if s == nil || now.Sub(s.since) >= stretchTime {
			s = s.next(now)
			a.groups[g] = s
		}
		allowed = allowed && s.recorded < times*maxRefusals && s.bytes < times*maxBytes
	}
	if !allowed {
		return false
	}
	size := journal.RefusalSize(rec)
	for g := range all {
		a.groups[g].recorded++
		a.groups[g].bytes += size
	}
	return true
}

// blamed identifies whose refusals are counted together: a principal's own, or those of one server's requests to a
// principal's client. The server is to blame for the latter.
type blamed struct {
	principal.Key

	server string // empty for the principal's own refusals
}

// blame returns the key under which a recorded refusal is counted.
func blame(rec *journal.Record) blamed {
	out := blamed{Key: principal.Key{Tenant: rec.Tenant, Subject: rec.Subject}}
	if rec.FromServer {
		out.server = rec.Server
	}
	return out
}

// blamedFor returns the key under which a refusal of the call is counted.
func blamedFor(c *attempt.Call) blamed {
	out := blamed{Key: principal.Of(c.Principal)}
	if c.FromServer {
		out.server = c.Server
	}
	return out
}

// stretch is a minute of refusals. A stretch of a principal uses rest and turn; a stretch of a group uses recorded
// and bytes.
type stretch struct {
	since    time.Time
	recorded int
	// bytes is the size of what was recorded, less what was regained since.
	bytes int
	// rest is the record of the refusals that are only counted; nil while there are none.
	rest *journal.Record
	// turn is full while a call is judged, once refusals are only counted; nil before.
	turn chan struct{}
}

// note counts a refusal. It returns the identifier for the answer, and the records to write now: the count of a
// stretch that is over, if any, and then the refusal itself, or the first record of those that are only counted, or
// nothing.
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

// restOf returns the record of a principal's refusals that are only counted. It is written for the first such
// refusal, before the answer and under the same identifier.
func restOf(rec *journal.Record, since time.Time) *journal.Record {
	return &journal.Record{
		DecisionID: attempt.NewID(),
		TraceID:    rec.TraceID,
		Principal:  rec.Principal,
		Chain:      rec.Chain,
		FromServer: rec.FromServer,
		Server:     blame(rec).server,
		Effect:     attempt.Denied,
		Code:       enum.NameOrEmpty(commonv1.Code_CODE_ABUSE_LIMITED),
		Message:    (&refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}).Text(),
		Since:      since,
	}
}

// summary appends the record that counts the refusals after the first uncounted one, unless there are none.
func (s *stretch) summary(records []*journal.Record) []*journal.Record {
	if s == nil || s.rest == nil || s.rest.Count == 0 {
		return records
	}
	return append(records, s.rest)
}

// next returns the stretch that follows s. A nil s is valid: then there was none before.
func (s *stretch) next(now time.Time) *stretch {
	if s == nil {
		return &stretch{since: now}
	}
	allowed := int(now.Sub(s.since)/time.Second) * bytesPerSecond
	return &stretch{since: now, bytes: max(0, s.bytes-allowed)}
}

// ended closes the stretches that are over, or all if all is set, and returns the records to write for them. A
// stretch whose bytes are all regained is removed.
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

// recordRefusal records or counts a refusal, and returns the identifier of its record.
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

// Run writes the counts of refusals and of messages that need no rule until ctx is cancelled. Then it writes what is
// left and returns nil.
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
