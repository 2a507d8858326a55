package policy

import (
	"context"
	"time"
)

// Bounds of the work of a comparison. Time in which it waits for others, or for its caller, is not work.
const (
	// maxDiffSlice is the time after which a comparison gives its time slice to others.
	maxDiffSlice = 50 * time.Millisecond
	// maxDiffWork limits the work of one DiffRevisions or DiffCatalog request in one pass over all calls.
	maxDiffWork = 15 * time.Second
	// maxChangeWork limits the work of the comparison that approvers are shown.
	maxChangeWork = 3 * time.Second
	// maxOfflineWork limits the work of a comparison in the process of a command.
	maxOfflineWork = time.Minute
)

// A diffClock divides the work of a comparison into time slices, and limits it.
type diffClock struct {
	// slice waits for a time slice. The function that it returns ends the slice.
	slice func(context.Context) (end func(), err error)
	// limit is the maximum work in one pass.
	limit time.Duration

	end   func() // ends the slice that runs; nil if none runs
	began time.Time
	// worked and steps are the work in the ended slices of the pass, and the steps of the pass. maxSteps is the maximum of
	// steps, or -1.
	worked          time.Duration
	steps, maxSteps int64
}

// startPass ends the slice that runs, if any, whose work does not count, and begins a pass of at most maxSteps steps. If
// maxSteps is -1, the number of steps is not limited.
func (c *diffClock) startPass(maxSteps int64) {
	c.pause()
	c.worked, c.steps, c.maxSteps = 0, 0, maxSteps
}

// resume waits for a time slice unless one runs.
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

// pause ends the slice that runs, if any.
func (c *diffClock) pause() {
	if c.end != nil {
		c.end()
		c.worked += time.Since(c.began)
		c.end = nil
	}
}

// step reports whether the pass may compare another call. If it may, a time slice runs. It may not if ctx has ended, or
// if the work or the steps have reached their limits.
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

// ended reports whether a context has ended. A comparison then ends early and returns no error, because its totals say so.
func ended(ctx context.Context) bool { return ctx.Err() != nil }
