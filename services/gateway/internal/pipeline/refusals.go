package pipeline

import (
	"cmp"
	"context"
	"slices"
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

// A refused call costs the caller nothing, but needs space in the journal. The gateway therefore records only a limited
// number of a principal's refusals individually, and only counts the others. Otherwise a principal could displace other
// principals' records from the journal.
const (
	// maxRefusals limits how many of a principal's refusals are recorded individually in a minute.
	maxRefusals = 1000
	// maxBytes is the size of a principal's token bucket for records, in bytes. bytesPerSecond is how fast the bucket
	// is refilled. Together they allow 84 MiB a day and one burst. The journal has space for 256 MiB.
	maxBytes       = 1 << 20
	bytesPerSecond = 1 << 10
	windowTime     = time.Minute
	// maxChain is the highest number of principals in a delegation chain (sluice.identity.v1.Principal).
	maxChain = 4
	// flushEvery is how often the pipeline writes the counts of the minutes that have ended.
	flushEvery = 10 * time.Second
)

// refusalCounter counts the refusals of each principal. A refusal that is recorded individually is also charged to
// every principal in the caller's delegation chain, and to the people for whom these principals work. A refusalCounter
// is safe for concurrent use.
type refusalCounter struct {
	mu      sync.Mutex
	windows map[offender]*window
	groups  map[group]*window
}

// group is the key of a quota for recorded refusals. The key identifies either a principal together with the agents
// that it has created, or a person. For requests from a server, the key also contains the server.
type group struct {
	offender

	person bool
}

func newRefusalCounter() refusalCounter {
	return refusalCounter{windows: make(map[offender]*window), groups: make(map[group]*window)}
}

// charged is a window to which a refusal is charged. The quota of the window's group is factor times the quota of one
// principal.
type charged struct {
	*window

	factor int
}

// charge charges a refusal to the groups of all its principals. If the quota of one of these groups is used up, charge
// returns false and charges nothing.
func (a *refusalCounter) charge(rec *journal.Record, now time.Time) bool {
	var space [2 * (1 + maxChain)]charged
	all := a.appendWindows(space[:0], &rec.Principal, rec, now)
	for i := range rec.Chain {
		all = a.appendWindows(all, &rec.Chain[i], rec, now)
	}
	for _, c := range all {
		if c.recorded >= c.factor*maxRefusals || c.bytes >= c.factor*maxBytes {
			return false
		}
	}
	size := journal.RefusalSize(rec)
	for _, c := range all {
		c.recorded++
		c.bytes += size
	}
	return true
}

// appendWindows appends the windows of a principal's groups, except those that are already in the list.
func (a *refusalCounter) appendWindows(list []charged, p *journal.Principal, rec *journal.Record, now time.Time) []charged {
	server := offenderOf(rec).server
	for _, g := range [...]group{
		{offender: offender{Key: principal.Key{Tenant: p.Tenant, Subject: p.Subject}, server: server}},
		{offender: offender{Key: principal.Key{Tenant: p.Tenant, Subject: cmp.Or(p.Owner, p.Subject)}, server: server}, person: true},
	} {
		s := a.groups[g]
		if s == nil || now.Sub(s.since) >= windowTime {
			s = s.next(now)
			a.groups[g] = s
		}
		factor := 1
		if g.person {
			factor = quota.PersonFactor
		}
		if !slices.ContainsFunc(list, func(c charged) bool { return c.window == s }) {
			list = append(list, charged{s, factor})
		}
	}
	return list
}

// offender identifies the source of refused requests. The source is either a principal, or a server that sends requests
// to a principal's client.
type offender struct {
	principal.Key

	server string // empty if the principal is the source
}

// offenderOf returns the source of the refused request in a record.
func offenderOf(rec *journal.Record) offender {
	out := offender{Key: principal.Key{Tenant: rec.Tenant, Subject: rec.Subject}}
	if rec.FromServer {
		out.server = rec.Server
	}
	return out
}

func offenderOfCall(c *attempt.Call) offender {
	out := offender{Key: principal.Of(c.Principal)}
	if c.FromServer {
		out.server = c.Server
	}
	return out
}

// window contains the counts of refusals in one minute. The window of an offender uses overflow and slot. The window of
// a group uses recorded and bytes.
type window struct {
	since    time.Time
	recorded int
	// bytes is how many bytes of the token bucket have been used.
	bytes int
	// overflow is the record that counts the refusals that are not recorded individually. It is nil while all refusals
	// are recorded individually.
	overflow *journal.Record
	// slot contains an element while a call is being evaluated. It is nil while all refusals are recorded individually.
	slot chan struct{}
}

// count counts a refusal. It returns the decision id for the answer, and the records to write. If the minute of the
// offender's last window has ended, the records include that window's count. If all quotas have space, the refusal gets
// a record of its own. The first refusal beyond a quota gets a count record, and later refusals only increment the
// count.
func (a *refusalCounter) count(rec *journal.Record, now time.Time) (id string, records []*journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := offenderOf(rec)
	s := a.windows[who]
	if s == nil || now.Sub(s.since) >= windowTime {
		records = s.summary(records)
		s = s.next(now)
		a.windows[who] = s
	}
	switch {
	case s.overflow == nil && a.charge(rec, now):
		return rec.DecisionID, append(records, rec)
	case s.overflow == nil:
		s.overflow = newCountRecord(rec, s.since)
		first := *s.overflow
		return first.DecisionID, append(records, &first)
	default:
		s.overflow.Count++
		return s.overflow.DecisionID, records
	}
}

// newCountRecord returns the record that counts an offender's refusals beyond a quota. The record is written before the
// gateway answers the first of these requests. That answer contains the id of the record.
func newCountRecord(rec *journal.Record, since time.Time) *journal.Record {
	return &journal.Record{
		DecisionID: attempt.NewID(),
		TraceID:    rec.TraceID,
		Principal:  rec.Principal,
		Chain:      rec.Chain,
		FromServer: rec.FromServer,
		Server:     offenderOf(rec).server,
		Effect:     attempt.Denied,
		Code:       enum.NameOrEmpty(commonv1.Code_CODE_ABUSE_LIMITED),
		Message:    (&refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}).Text(),
		Since:      since,
	}
}

// summary appends the window's count record to records, if the record has counted any refusals after the first one.
func (s *window) summary(records []*journal.Record) []*journal.Record {
	if s == nil || s.overflow == nil || s.overflow.Count == 0 {
		return records
	}
	return append(records, s.overflow)
}

// next returns the window for the minute after the given window. If s is nil, next returns a window with unused quotas.
func (s *window) next(now time.Time) *window {
	if s == nil {
		return &window{since: now}
	}
	allowed := int(now.Sub(s.since)/time.Second) * bytesPerSecond
	return &window{since: now, bytes: max(0, s.bytes-allowed)}
}

// takeEnded closes the windows that have ended, or all windows if all is true, and returns the records to write. A
// window whose token bucket is full again is removed.
func (a *refusalCounter) takeEnded(now time.Time, all bool) (records []*journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for who, s := range a.windows {
		if all || now.Sub(s.since) >= windowTime {
			records = s.summary(records)
			if a.windows[who] = s.next(now); all || a.windows[who].bytes == 0 {
				delete(a.windows, who)
			}
		}
	}
	for g, s := range a.groups {
		if all || now.Sub(s.since) >= windowTime {
			if a.groups[g] = s.next(now); all || a.groups[g].bytes == 0 {
				delete(a.groups, g)
			}
		}
	}
	return records
}

// recordRefusal records or only counts a refusal, and returns the decision id for the answer.
func (p *Pipeline) recordRefusal(ctx context.Context, rec *journal.Record) string {
	id, records := p.refusals.count(rec, time.Now())
	p.write(ctx, records)
	return id
}

func (p *Pipeline) write(ctx context.Context, records []*journal.Record) {
	for _, rec := range records {
		p.attempts.WriteRefusal(ctx, rec)
	}
}

// Run writes the counts of refusals and of messages without a policy rule at intervals. When ctx is cancelled, it
// writes the remaining counts and returns nil.
func (p *Pipeline) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.write(ctx, p.refusals.takeEnded(time.Now(), true))
			p.recordExempt(ctx, time.Now(), true)
			return nil
		case now := <-tick.C:
			p.write(ctx, p.refusals.takeEnded(now, false))
			p.recordExempt(ctx, now, false)
		}
	}
}
