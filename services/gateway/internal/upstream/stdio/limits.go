package stdio

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
)

// Limits are the limits of one process together with its descendants. Every field must be positive.
type Limits struct {
	// Tasks is the maximum number of processes and threads.
	Tasks int
	// Memory is the maximum memory of the process and its descendants together, in bytes.
	Memory int64
	// Disk is the maximum size of a private directory, in bytes. The size of a file is the size of its blocks. Each file
	// and directory counts as at least 4 KiB. There is no limit for a configured directory (see Config.Dir).
	Disk int64
}

// DefaultLimits returns the limits for a server without configured limits. They are 512 tasks, 2 GiB of memory and 2
// GiB of disk.
func DefaultLimits() Limits { return Limits{Tasks: 512, Memory: 2 << 30, Disk: 2 << 30} }

const (
	// limitPause is the pause before the next start after a process has reached a limit. It doubles with each further
	// process that reaches a limit, up to limitDoublings times. When no process has reached a limit for limitForgotten,
	// the pause is limitPause again.
	limitPause     = 5 * time.Second
	limitDoublings = 5
	limitForgotten = 10 * time.Minute
)

// limited contains data about the processes of a host that were terminated because they reached a limit.
type limited struct {
	last *upstream.LimitError
	// ended is the time at which the last of these processes ended, and times is their number. times starts again at 1 if
	// no process has reached a limit for limitForgotten.
	ended time.Time
	times int
}

func (l *limited) add(err *upstream.LimitError) {
	if time.Since(l.ended) > limitForgotten {
		l.times = 0
	}
	l.last, l.ended = err, time.Now()
	l.times++
}

// check returns an error if no process may be started yet.
func (l *limited) check() error {
	if l.last == nil {
		return nil
	}
	wait := limitPause<<min(l.times-1, limitDoublings) - time.Since(l.ended)
	if wait <= 0 {
		return nil
	}
	return &upstream.LimitError{Key: l.last.Key, What: l.last.What, RetryAfter: wait}
}

// limitError returns the error for a limit of this server.
func (s *transport) limitError(limit, what string) *upstream.LimitError {
	return &upstream.LimitError{Key: s.limitKey(limit), What: what}
}

func (s *transport) limitKey(limit string) string {
	return "servers." + s.cfg.Name + ".stdio.limits." + limit
}

// checkLimits returns a [*upstream.LimitError] if the process has reached a limit.
func (p *process) checkLimits() error {
	exceeded, ok := errors.AsType[*proclimit.ExceededError](p.group.Check())
	if ok {
		return p.server.limitError(exceeded.Limit, exceeded.Error())
	}
	return p.disk.check(time.Now(), p.group)
}

// guard terminates the process if the process reaches a limit.
func (p *process) guard() {
	tick := time.NewTicker(proclimit.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-tick.C:
		}
		if err := p.checkLimits(); err != nil {
			p.end(err)
			return
		}
	}
}

// overLimit returns the limit that caused the process to end, or nil if there was another reason. It checks the limits
// again, because the kernel may have killed the process before the next regular check.
func (p *process) overLimit() *upstream.LimitError {
	if limit, ok := errors.AsType[*upstream.LimitError](p.reason); ok {
		return limit
	}
	if p.reason != nil {
		return nil //nolint:nilerr // the process has ended for another reason
	}
	limit, _ := errors.AsType[*upstream.LimitError](p.checkLimits())
	return limit
}

// settleLimit records the limit that caused the process to end, if there is one.
func (p *process) settleLimit() {
	limit := p.overLimit()
	if limit == nil {
		return
	}
	p.reason = limit
	p.log.LogAttrs(context.Background(), slog.LevelError, "server process was ended because it reached a limit", slog.String("limit", limit.Key), slog.String("reason", limit.What))
	if limit.Key == p.server.limitKey("disk") {
		p.disk.makeRoom(p.log)
	}
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	p.host.limited.add(limit)
}
