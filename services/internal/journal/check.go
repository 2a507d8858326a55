package journal

import (
	"context"
	"errors"
	"sync"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// Check is the progress of the check of older segments: those that existed at the start, except for the newest of
// each chain, which is checked before [Open] returns.
type Check struct {
	// Done reports whether the check has ended.
	Done bool
	// Segments and Records are the numbers of segments and records that were checked and are intact.
	Segments int
	Records  int64
	// Broken has an error for each chain that was found broken; empty if there is none.
	Broken []error
}

type check struct {
	mu  sync.Mutex
	now Check
}

// Check returns the progress of the check of older segments. The check runs concurrently with the journal and never
// stops it, so operators must look at its result.
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

// errStopped ends a check whose journal was closed.
var errStopped = errors.New("the journal is closed")

// checkOld checks older segments and logs the result.
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
			// Heads that are sealed from now on replace the earlier ones, so the chain itself records the finding.
			found := c.recordOf(&Record{Kind: KindRecovery, Message: "older records are broken: " + err.Error()})
			if _, err := c.writeAll(ctx, []item{{body: found}}); err != nil {
				j.cfg.Log.WarnContext(ctx, "that the journal is broken is not on record", "chain", c.name, "error", err)
			}
		}
	}
	now := j.check.note(func(now *Check) { now.Done = true })
	j.cfg.Log.InfoContext(ctx, "older records of the journal are checked", "segments", now.Segments, "records", now.Records, "broken", len(now.Broken))
}

// rereader returns a reader of older segments that begins with the record of seq first and compares the chain with
// the head that was sealed before the start.
func (c *chain) rereader(first int64) *reader {
	r := newReader(first)
	r.sealed = []ChainHead{c.sealed}
	return r
}

// checkChain checks all segments of a chain except the newest, as they were when the check began.
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
		if !c.keeps(s) { // retention removed it meanwhile: the reader begins again with the next segment
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

// keeps reports whether a segment is still part of the chain.
func (c *chain) keeps(s segment) bool {
	c.listing.Lock()
	defer c.listing.Unlock()
	return len(c.segments) > 0 && c.segments[0].first <= s.first
}

// pause waits for d, so that the check takes at most half of the time. It returns false if the journal was closed
// meanwhile.
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

// CheckToProto packs the progress of a check.
func CheckToProto(c Check) *gatewayv1.JournalCheck {
	return &gatewayv1.JournalCheck{
		Done: c.Done, Segments: int32(c.Segments), Records: c.Records, Broken: all(c.Broken, error.Error),
	}
}
