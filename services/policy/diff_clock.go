package policy

import (
	"context"
	"time"
)

// These constants limit the work of a comparison. Work does not include the time in which the comparison waits for
// other requests or for its client.
const (
	// maxDiffSlice is how long a comparison works before it lets others work.
	maxDiffSlice = 50 * time.Millisecond
	// maxDiffWork limits how long a DiffRevisions or DiffCatalog request works in each pass over all calls.
	maxDiffWork = 15 * time.Second
	// maxChangeWork limits how long the comparison for approvers of a change works.
	maxChangeWork = 3 * time.Second
	// maxOfflineWork limits how long a comparison works that a command makes in its own process.
	maxOfflineWork = time.Minute
)

// A diffClock divides the work of a comparison into time slices, and limits its total time.
type diffClock struct {
	// slice waits for a time slice. The function that it returns ends the time slice.
	slice func(context.Context) (end func(), err error)
	// limit is how long the comparison may work in each pass.
	limit time.Duration

	end   func() // ends the current slice; nil if there is none
	began time.Time
	// The field worked is how long the comparison has worked in the finished slices of the pass. steps counts the steps
	// of the pass, and maxSteps limits them. maxSteps is -1 if there is no limit.
	worked          time.Duration
	steps, maxSteps int64
}

// startPass begins a pass of at most maxSteps steps, or without a limit on the steps if maxSteps is -1. If a time slice
// has begun, it ends and does not count for the new pass.
func (c *diffClock) startPass(maxSteps int64) {
	c.pause()
	c.worked, c.steps, c.maxSteps = 0, 0, maxSteps
}

// resume waits for a time slice, unless one has already begun.
func (c *diffClock) resume(ctx context.Context) error {
	if c.end != nil {
		return nil
	}
	end, err := c.slice(ctx)
	if err != nil {
		return err
	}
	c.end, c.began = end, time.Now()
	return nil
}

// pause ends the current time slice, if there is one.
func (c *diffClock) pause() {
	if c.end != nil {
		c.end()
		c.worked += time.Since(c.began)
		c.end = nil
	}
}

// step reports whether the pass may compare one more call. If so, a time slice has begun when step returns. If ctx is
// done, or if the limit of the work or of the steps is reached, step returns false.
func (c *diffClock) step(ctx context.Context) (bool, error) {
	if c.end != nil && time.Since(c.began) > maxDiffSlice {
		c.pause()
	}
	if ended(ctx) || c.worked > c.limit || c.steps == c.maxSteps {
		return false, nil
	}
	err := c.resume(ctx)
	if ended(ctx) {
		return false, nil
	}
	if err == nil {
		c.steps++
	}
	return err == nil, err
}

// ended reports whether ctx is done. A comparison then ends early without an error, because the totals say that it
// ended early.
func ended(ctx context.Context) bool { return ctx.Err() != nil }
