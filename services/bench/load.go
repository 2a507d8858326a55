package bench

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// callGrace is how long calls may take after the end of a measurement.
const callGrace = 10 * time.Second

// connect opens a new connection for every caller. The deadline of the connections is the given duration plus callGrace
// from now.
func connect(ctx context.Context, callers []*caller, d time.Duration) error {
	deadline := time.Now().Add(d + callGrace)
	for _, c := range callers {
		if err := c.connect(ctx, deadline); err != nil {
			return err
		}
	}
	return nil
}

func disconnect(callers []*caller) {
	for _, c := range callers {
		c.close()
	}
}

// drive makes every caller repeat calls for the given duration. It returns the latency of each call and the total
// elapsed time. It returns an error if a response is wrong or if ctx is done.
func drive(ctx context.Context, callers []*caller, d time.Duration) ([]time.Duration, time.Duration, error) {
	stop := context.AfterFunc(ctx, func() { disconnect(callers) })
	defer stop()
	taken := make([][]time.Duration, len(callers))
	var group errgroup.Group
	begin := time.Now()
	for i, c := range callers {
		group.Go(func() (err error) {
			taken[i], err = c.repeat(begin.Add(d))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	return slices.Concat(taken...), time.Since(begin), nil
}

func (c *caller) repeat(end time.Time) ([]time.Duration, error) {
	var taken []time.Duration
	for now := time.Now(); now.Before(end); {
		if err := c.call(); err != nil {
			return nil, err
		}
		done := time.Now()
		taken = append(taken, done.Sub(now))
		now = done
	}
	return taken, nil
}
