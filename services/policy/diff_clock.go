package policy

import (
	"context"
	"time"
)

// These constants limit the work of a comparison. The time in which a comparison waits for other work or for its client
// does not count as work.
const (
	// maxDiffSlice is the time after which a comparison gives way to other work.
	maxDiffSlice = 50 * time.Millisecond
	// maxDiffWork limits the work of one DiffRevisions or DiffCatalog request in each pass over all calls.
	maxDiffWork = 15 * time.Second
	// maxChangeWork limits the work of the comparison that is shown to approvers.
	maxChangeWork = 3 * time.Second
	// maxOfflineWork limits the work of a comparison that a command makes in its own process.
	maxOfflineWork = time.Minute
)

// A diffClock divides the work of a comparison into time slices, and limits the work.
type diffClock struct {
	// slice waits for a time slice. The returned function ends the time slice.
	slice func(context.Context) (end func(), err error)
	// limit is the maximum amount of work in one pass.
	limit time.Duration

	end   func() // ends the slice that runs; nil if none runs
	began time.Time
	// worked is the total time of the finished slices of the pass. The field steps is the number of steps in the pass.
	// maxSteps is the maximum number of steps, or -1 if there is no maximum.
	worked          time.Duration
	steps, maxSteps int64
}

// startPass begins a pass of at most maxSteps steps. If a time slice is running, startPass ends the slice and does not
// count its work. If maxSteps is -1, the number of steps is not limited.
func (c *diffClock) startPass(maxSteps int64) {
	c.pause()
	c.worked, c.steps, c.maxSteps = 0, 0, maxSteps
}

// resume waits for a time slice, unless one is already running.
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

// pause ends the running time slice, if there is one.
func (c *diffClock) pause() {
	if c.end != nil {
		c.end()
		c.worked += time.Since(c.began)
		c.end = nil
	}
}

// step reports whether the pass may compare another call. If it may, step ensures that a time slice is running. The
// pass may not compare another call if ctx is done, or if the work or the number of steps has reached its limit.
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

// ended reports whether ctx is done. In that case a comparison ends early and returns no error, because the totals say
// that it ended early.
func ended(ctx context.Context) bool { return ctx.Err() != nil }
