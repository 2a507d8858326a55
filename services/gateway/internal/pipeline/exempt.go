package pipeline

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// Some messages are allowed without a policy rule. In a minute, a principal and the agents that it has created may
	// together send maxExempt such messages with a total size of maxExemptBytes. All principals of one person together may
	// send four times as much.
	maxExempt      = 10_000
	maxExemptBytes = 64 << 20
	// maxKinds limits how many combinations of server and method are counted separately for one principal in a minute.
	// Without this limit, the count records could fill the journal. Messages with further combinations are counted under
	// the server "*".
	maxKinds = 64
	// otherServers is the server name in the count record for the combinations beyond maxKinds.
	otherServers = "*"
)

// ExemptMessage is a message that an authenticated caller may send without a policy rule.
type ExemptMessage struct {
	// Principal is the sender.
	Principal *identityv1.Principal
	// Server is the target server of the message, and Method is the MCP method. Both come from fixed lists, so that the
	// journal contains no strings that callers have chosen.
	Server, Method string
	// Bytes is the size of the message, in bytes.
	Bytes int
}

// CountExempt counts a message that is allowed without a policy rule. It refuses the message if the principal has sent
// too many messages or bytes in this minute. The counts are recorded at the end of the minute and when the gateway
// stops.
func (p *Pipeline) CountExempt(m ExemptMessage) *refusal.Refusal {
	err := p.exempt.count(m, time.Now())
	if err == nil {
		return nil
	}
	return &refusal.Refusal{
		Code:    commonv1.Code_CODE_ABUSE_LIMITED,
		Message: "this caller sends too many messages: " + quota.Reason(err) + "; wait a minute.", RetryAfter: windowTime,
	}
}

// exemptCounter counts, for each principal, the messages that are allowed without a policy rule. It is safe for
// concurrent use.
type exemptCounter struct {
	mu      sync.Mutex
	minutes map[principal.Key]*minute
	// since is when the current minute began. messages counts the messages in this minute, and bytes counts their total
	// size.
	since           time.Time
	messages, bytes *quota.Tally
}

func newExemptCounter() *exemptCounter {
	return &exemptCounter{minutes: make(map[principal.Key]*minute)}
}

func (c *exemptCounter) begin(now time.Time) {
	if c.messages != nil && now.Sub(c.since) < windowTime {
		return
	}
	c.since = now
	c.messages, c.bytes = quota.NewTally("messages in this minute", quota.For(maxExempt)), quota.NewTally("bytes of messages in this minute", quota.For(maxExemptBytes))
}

// minute contains the counts of one principal's messages in the current minute, until the counts are recorded.
type minute struct {
	since time.Time
	// kinds contains the records to write. counted is the time of the first message in these records.
	kinds   map[recordKey]*journal.Record
	counted time.Time
}

type recordKey struct{ server, method string }

// count counts a message. It returns a [*quota.FullError] if the message exceeds a quota.
func (c *exemptCounter) count(m ExemptMessage, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin(now)
	accounts := principal.AccountsOf(m.Principal)
	if err := c.messages.Acquire(&accounts, 1); err != nil {
		return err
	}
	if err := c.bytes.Acquire(&accounts, m.Bytes); err != nil {
		c.messages.Release(&accounts, 1)
		return err
	}
	caller := principal.Of(m.Principal)
	current := c.minutes[caller]
	if current == nil {
		current = &minute{since: now, kinds: make(map[recordKey]*journal.Record)}
		c.minutes[caller] = current
	}
	if now.Sub(current.since) >= windowTime {
		current.since = now
	}
	current.count(m, now)
	return nil
}

// count adds a message to the record of its server and method.
func (o *minute) count(m ExemptMessage, now time.Time) {
	if len(o.kinds) == 0 {
		o.counted = now
	}
	at := recordKey{m.Server, m.Method}
	if o.kinds[at] == nil && len(o.kinds) >= maxKinds {
		at.server = otherServers
	}
	rec := o.kinds[at]
	if rec == nil {
		rec = &journal.Record{
			DecisionID: attempt.NewID(), Principal: attempt.PrincipalRecord(m.Principal), Server: at.server, Method: at.method, Since: o.counted,
		}
		for _, behind := range m.Principal.GetChain() {
			rec.Chain = append(rec.Chain, attempt.PrincipalRecord(behind))
		}
		o.kinds[at] = rec
	}
	rec.Count++
	rec.RequestBytes += int64(m.Bytes)
}

// takeEnded removes and returns the records of all minutes that have ended. If all is true, it removes and returns
// every record.
func (c *exemptCounter) takeEnded(now time.Time, all bool) (records []*journal.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for caller, current := range c.minutes {
		if all || now.Sub(current.counted) >= windowTime {
			records = slices.AppendSeq(records, maps.Values(current.kinds))
			clear(current.kinds)
		}
		if len(current.kinds) == 0 && now.Sub(current.since) >= windowTime {
			delete(c.minutes, caller)
		}
	}
	return records
}

// recordExempt writes the counts of all minutes that have ended to the journal. If all is true, it writes all counts.
func (p *Pipeline) recordExempt(ctx context.Context, now time.Time, all bool) {
	for _, rec := range p.exempt.takeEnded(now, all) {
		if err := p.attempts.WritePassed(context.WithoutCancel(ctx), rec); err != nil {
			p.deps.Log.ErrorContext(ctx, "messages that were forwarded were not recorded", "subject", rec.Subject, "mcp_method", rec.Method, "count", rec.Count, "error", err)
		}
	}
}
