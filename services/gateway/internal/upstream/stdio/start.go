package stdio

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// startLimit is the maximum duration of a start if no limit is configured. Whenever the process writes to standard
	// error, the start may last another startQuiet, up to maxStart in total. This is necessary because an installation can
	// take minutes and writes its progress to standard error.
	startLimit = time.Minute
	startQuiet = 30 * time.Second
	maxStart   = 10 * time.Minute
)

// startTime limits the duration of a process's start. It is safe for concurrent use.
type startTime struct {
	mu sync.Mutex
	// begun and ended are the times at which the start began and ended. written is the time at which the process last
	// wrote to standard error. Each time is zero until the event has happened.
	begun, ended, written time.Time
}

// begin returns a context that is cancelled with [context.DeadlineExceeded] when the start has taken longer than limit.
// If limit is 0, startLimit, startQuiet and maxStart apply.
func (s *startTime) begin(limit time.Duration) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.mu.Lock()
	s.begun = time.Now()
	first := s.until(limit)
	s.mu.Unlock()
	over := make(chan struct{})
	go func() {
		timer := time.NewTimer(time.Until(first))
		defer timer.Stop()
		for {
			select {
			case <-over:
				return
			case <-timer.C:
			}
			s.mu.Lock()
			remaining := time.Until(s.until(limit))
			s.mu.Unlock()
			if remaining <= 0 {
				cancel(context.DeadlineExceeded)
				return
			}
			timer.Reset(remaining)
		}
	}()
	return ctx, sync.OnceFunc(func() {
		s.mu.Lock()
		s.ended = time.Now()
		s.mu.Unlock()
		close(over)
		cancel(context.Canceled)
	})
}

// until returns the time by which the start must end. If limit is 0, this time depends on when the process last wrote
// to standard error. The caller must hold the lock.
func (s *startTime) until(limit time.Duration) time.Time {
	if limit > 0 {
		return s.begun.Add(limit)
	}
	until, latest := s.begun.Add(startLimit), s.begun.Add(maxStart)
	if longer := s.written.Add(startQuiet); longer.After(until) {
		until = longer
	}
	if until.After(latest) {
		return latest
	}
	return until
}

// wrote records that the process has written to standard error.
func (s *startTime) wrote() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.IsZero() {
		s.written = time.Now()
	}
}

// lasted returns the limit that applied to a start that has timed out.
func (s *startTime) lasted(limit time.Duration) time.Duration {
	if limit > 0 {
		return limit
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until(limit).Sub(s.begun).Round(time.Second)
}

// notifyingReader is a reader that calls a function whenever it has read data.
type notifyingReader struct {
	io.Reader

	read func()
}

// Read implements io.Reader.
func (r notifyingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.read()
	}
	return n, err
}

// startNext starts a process. Before that, it installs the process's package if the gateway installs it. Otherwise, it
// waits until no other process is installing the package.
func (s *transport) startNext(h *host, with greeting) error {
	if s.program != nil {
		used, err := s.program.acquire()
		if err != nil {
			return fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
		}
		return s.startAndGreet(h, with, used)
	}
	done, err := s.installs.wait(s.closing, s.installed)
	if err != nil {
		return fmt.Errorf("%w: %w", upstream.ErrNeverSent, &upstream.CauseError{Text: err.Error(), Err: fmt.Errorf("server %q: %w", s.cfg.Name, err)})
	}
	defer done()
	return s.startAndGreet(h, with, nil)
}

// startMargin is the time before a caller's deadline at which the gateway responds that the server is still starting.
// The client may have the same deadline, and would not receive a later response.
const startMargin = 15 * time.Second

// beforeDeadline returns a channel that receives a value startMargin before the deadline of ctx, if ctx has one.
func beforeDeadline(ctx context.Context) (late <-chan time.Time, stop func()) {
	until, ok := ctx.Deadline()
	if !ok {
		return nil, func() {}
	}
	remaining := time.Until(until)
	timer := time.NewTimer(remaining - min(startMargin, remaining/4))
	return timer.C, func() { timer.Stop() }
}

// startAgain is the retry delay for a caller whose request arrives during a start.
const startAgain = 5 * time.Second

// stillStarting returns the error for a caller whose deadline is near while the process is still starting. The process
// has not received the caller's request. The start continues.
func (s *transport) stillStarting() error {
	return fmt.Errorf("%w: %w", upstream.ErrNeverSent, &upstream.CauseError{
		Text: "the server is still starting" + s.program.progress(), RetryAfter: startAgain, Err: fmt.Errorf("server %q is still starting", s.cfg.Name),
	})
}
