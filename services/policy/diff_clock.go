package policy

import (
	"context"
	"time"
)

// These constants limit how long a comparison works. The time in which it waits for other requests or for its client
// does not count.
const (
	// maxDiffSlice is how long a comparison works before it gives its slot to other requests.
	maxDiffSlice = 50 * time.Millisecond
	// maxDiffWork applies to each pass of a DiffRevisions or DiffCatalog request over all calls.
	maxDiffWork = 15 * time.Second
	// maxChangeWork applies to the comparison that approvers of a change see.
	maxChangeWork = 3 * time.Second
	// maxOfflineWork applies to a comparison that a command makes in its own process.
	maxOfflineWork = time.Minute
)

// A diffClock divides the work of a comparison into time slices, and limits the total time of the slices.
type diffClock struct {
	// slice waits for a time slice. The returned function ends the time slice.
	slice func(context.Context) (end func(), err error)
	// limit is how long the comparison may work in each pass.
	limit time.Duration

	end   func() // ends the current slice; nil if there is none
	began time.Time
	// worked is the total duration of the finished slices in the current pass. steps counts the steps of the pass, and
	// maxSteps limits them. If maxSteps is -1, there is no limit.
	worked          time.Duration
	steps, maxSteps int64
}

// startPass begins a pass of at most maxSteps steps. If maxSteps is -1, the number of steps is not limited. startPass
// also ends the current time slice, which does not count for the new pass.
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

// step reports whether the pass may compare one more call. If so, a time slice is running when step returns. It returns
// false if ctx is done, or if the time limit or the number of steps is reached.
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

// ended reports whether ctx is done. This is not an error: the comparison ends early, and its totals say so.
func ended(ctx context.Context) bool { return ctx.Err() != nil }
