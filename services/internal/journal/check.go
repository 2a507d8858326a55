package journal

import (
	"context"
	"errors"
	"sync"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// Check describes how much of the older segments has been checked. Older segments are the segments that existed when
// the journal was opened, except for the newest segment of each chain. [Open] checks the newest segments before it
// returns.
type Check struct {
	// Done is true if the check has ended.
	Done bool
	// Segments and Records are the numbers of segments and records that were found intact so far.
	Segments int
	Records  int64
	// Broken contains an error for each broken chain.
	Broken []error
}

type check struct {
	mu  sync.Mutex
	now Check
}

// Check returns how much of the older segments has been checked. The check runs while the journal is in use. If it
// finds damage, the journal does not stop, so operators must look at the result.
func (j *Journal) Check() Check {
	j.check.mu.Lock()
	defer j.check.mu.Unlock()
	return j.check.now
}

func (c *check) update(change func(*Check)) Check {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
	return c.now
}

// errStopped means that the journal was closed during the check.
var errStopped = errors.New("the journal is closed")

func (j *Journal) checkOlder() {
	ctx := context.Background()
	for _, c := range []*chain{j.calls, j.refusals} {
		err := j.checkChain(c)
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil {
			j.check.update(func(now *Check) { now.Broken = append(now.Broken, err) })
			j.cfg.Log.ErrorContext(ctx, "journal is broken: `sluice journal verify` shows the details", "chain", c.name, "error", err)
			// Later heads replace the head that proves the damage. Therefore the damage is also recorded in the chain itself.
			found := c.encodeOwn(&Record{Kind: KindRecovery, Message: "older records are broken: " + err.Error()})
			if _, err := c.writeAll(ctx, []item{{body: found}}); err != nil {
				j.cfg.Log.WarnContext(ctx, "the journal can't record that it is broken", "chain", c.name, "error", err)
			}
		}
	}
	now := j.check.update(func(now *Check) { now.Done = true })
	j.cfg.Log.InfoContext(ctx, "older records of the journal are checked", "segments", now.Segments, "records", now.Records, "broken", len(now.Broken))
}

// newOlderReader returns a reader of older segments that begins at the record with the sequence number first. The
// reader returns an error if the chain contradicts the head that was signed before the process started.
func (c *chain) newOlderReader(first int64) *reader {
	r := newReader(first)
	r.sealed = []ChainHead{c.sealed}
	return r
}

// checkChain checks the segments that a chain has when the check begins, except the newest segment.
func (j *Journal) checkChain(c *chain) error {
	segments := c.view()
	if len(segments) == 0 {
		return nil
	}
	r := c.newOlderReader(segments[0].first)
	var sum tally
	count := func(rec *Record, size int) {
		for _, account := range appendAccounts(nil, rec) {
			sum[account] += int64(size)
		}
	}
	for _, s := range segments[:len(segments)-1] {
		begin := time.Now()
		if !c.isStored(s) { // retention has removed the segment, so the check begins again with the next one
			r = c.newOlderReader(s.last + 1)
			continue
		}
		records := r.report.Records
		if sum = (tally{}); c.usage.limit > 0 {
			r.visit = count
		}
		if err := r.read(s); err != nil {
			if c.isStored(s) {
				return err
			}
			r = c.newOlderReader(s.last + 1)
			continue
		}
		j.check.update(func(now *Check) {
			now.Segments++
			now.Records += r.report.Records - records
		})
		if c.usage.limit > 0 {
			c.setTally(s.first, sum)
		}
		if !j.pause(time.Since(begin)) {
			return errStopped
		}
	}
	return nil
}

func (c *chain) isStored(s segment) bool {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	return len(c.segments) > 0 && c.segments[0].first <= s.first
}

// pause waits for d, which is how long the check of a segment took. Therefore the check runs at most half of the time.
// pause returns false if the journal is closed during the wait.
func (j *Journal) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-j.stop:
		return false
	case <-timer.C:
		return true
	}
}

// CheckToProto converts a [Check] to its protobuf message.
func CheckToProto(c Check) *gatewayv1.JournalCheck {
	return &gatewayv1.JournalCheck{
		Done: c.Done, Segments: int32(c.Segments), Records: c.Records, Broken: convertAll(c.Broken, error.Error),
	}
}
