package journal

import (
	"context"
	"errors"
	"sync"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// Check is how far the segments were read and checked that were there at the start,
// but for the newest of each chain, which is checked before the start is over.
type Check struct {
	// Done is set when it has ended.
	Done bool
	// Segments and Records are how many were found whole so far.
	Segments int
	Records  int64
	// Broken says what is broken, an error a chain; nothing was found where it is empty.
	Broken []error
}

// check is the state of it.
type check struct {
	mu  sync.Mutex
	now Check
}

// Check returns how far the check of older segments has come. It goes on beside the
// journal's work, and never ends it: what it finds is for people to look at.
func (j *Journal) Check() Check {
	j.check.mu.Lock()
	defer j.check.mu.Unlock()
	return j.check.now
}

func (c *check) note(change func(*Check)) Check {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
	return c.now
}

// errStopped ends a check whose journal is closed.
var errStopped = errors.New("the journal is closed")

// checkOld checks older segments, and says in the log what came of it.
func (j *Journal) checkOld() {
	ctx := context.Background()
	for _, c := range []*chain{j.calls, j.refusals} {
		err := j.checkChain(c)
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil {
			j.check.note(func(now *Check) { now.Broken = append(now.Broken, err) })
			j.cfg.Log.ErrorContext(ctx, "journal is broken: `sluice journal verify` says more", "chain", c.name, "error", err)
			// What is sealed from now on hides what was sealed before: the chain says it itself.
			found := c.recordOf(&Record{Kind: KindRecovery, Message: "older records are broken: " + err.Error()})
			if _, err := c.writeAll(ctx, []item{{body: found}}); err != nil {
				j.cfg.Log.WarnContext(ctx, "that the journal is broken is not on record", "chain", c.name, "error", err)
			}
		}
	}
	now := j.check.note(func(now *Check) { now.Done = true })
	j.cfg.Log.InfoContext(ctx, "older records of the journal are checked", "segments", now.Segments, "records", now.Records, "broken", len(now.Broken))
}

// rereader reads older segments from the record of that seq on, and holds them to the
// head that was sealed before the start.
func (c *chain) rereader(first int64) *reader {
	r := newReader(first)
	r.sealed = []ChainHead{c.sealed}
	return r
}

// checkChain checks what was there of a chain at the start.
func (j *Journal) checkChain(c *chain) error {
	segments := c.view()
	if len(segments) == 0 {
		return nil
	}
	r := c.rereader(segments[0].first)
	var sum tally
	count := func(rec *Record, size int) {
		for _, who := range appendAccounts(nil, rec) {
			sum[who] += int64(size)
		}
	}
	for _, s := range segments[:len(segments)-1] {
		begin := time.Now()
		if !c.keeps(s) { // retention was faster: what follows begins again
			r = c.rereader(s.last + 1)
			continue
		}
		records := r.report.Records
		if sum = (tally{}); c.shares.most > 0 {
			r.visit = count
		}
		if err := r.read(s); err != nil {
			if c.keeps(s) {
				return err
			}
			r = c.rereader(s.last + 1)
			continue
		}
		j.check.note(func(now *Check) {
			now.Segments++
			now.Records += r.report.Records - records
		})
		if c.shares.most > 0 {
			c.counted(s.first, sum)
		}
		if !j.pause(time.Since(begin)) {
			return errStopped
		}
	}
	return nil
}

// keeps reports whether a segment is still one of the chain's.
func (c *chain) keeps(s segment) bool {
	c.listing.Lock()
	defer c.listing.Unlock()
	return len(c.segments) > 0 && c.segments[0].first <= s.first
}

// pause leaves the machine to others for a while. It is false where the journal is
// closed.
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

// CheckToProto packs how a check stands.
func CheckToProto(c Check) *gatewayv1.JournalCheck {
	return &gatewayv1.JournalCheck{
		Done: c.Done, Segments: int32(c.Segments), Records: c.Records, Broken: all(c.Broken, error.Error),
	}
}
