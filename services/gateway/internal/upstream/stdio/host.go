package stdio

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// A start is quick if less than steadyAfter has passed since the previous start. After quickStarts consecutive quick
	// starts, there is a pause before each further quick start, because a start needs much processor time. The pause is
	// startInterval at first and doubles up to doublings times.
	quickStarts   = 3
	startInterval = time.Second
	doublings     = 3
	// steadyAfter is the time after the previous start from which a start is no longer quick.
	steadyAfter = 10 * time.Second
)

// These are the reasons why the gateway terminates a process that has not failed.
var (
	errIdle     = errors.New("no session is open")
	errRecycled = errors.New("it has served the configured number of calls")
)

// host contains the process of one principal, or the only process of a shared server. transport.mu guards its fields.
type host struct {
	key principal.Key
	// accounts identifies the principals and people to whose quotas the process counts.
	accounts principal.Accounts
	// room identifies the memory budget to which lines from the processes are charged. This is the principal's budget, or
	// the server's own budget if the server is shared. No memory is reserved in room itself.
	room *limits.Memory
	// conns is the number of sessions that are open or being opened.
	conns int
	// proc is the newest process, which may have ended. It is valid only while start is nil.
	proc *process
	// start is the start in progress, or nil if no process is starting.
	start *startup
	// greeting contains the handshake requests (initialize and server/discover). The first is the request that the server
	// has accepted. A replacement process receives the same requests, so that it behaves in the same way for open
	// sessions.
	greeting greeting
	// startedAt is the time of the last start, and quick is the number of consecutive quick starts.
	startedAt time.Time
	quick     int
	// limited contains data about the last processes that have reached a limit.
	limited limited
	// failure is the error of the last start, or nil if the start succeeded.
	failure error
	// idle is the timer that terminates the process after some time without open sessions. It runs only while no
	// session is open.
	idle *time.Timer
	// listeners receive messages that belong to no request.
	listeners map[*listener]struct{}
}

// startup is one start of a process. Many callers can wait for a startup. Its results are set before done is closed.
type startup struct {
	done chan struct{}
	proc *process
	err  error
}

func (h *host) stopIdle() {
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
}

// addSession returns the host for a principal and counts a session on it. memory is the principal's memory budget for
// the first answer in the session.
func (s *transport) addSession(key principal.Key, memory *limits.Memory) (*host, error) {
	if key.Tenant == "" || key.Subject == "" {
		return nil, fmt.Errorf("%w: the session has no principal", upstream.ErrNeverSent)
	}
	accounts := memory.AccountsOf(key)
	if s.cfg.Shared {
		key = principal.Key{}
	}
	if s.cfg.Shared || memory == nil {
		memory = s.room.Open(&limits.Owner{Server: s.cfg.Name})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.closedError()
	}
	if !s.sweeps && !s.cfg.Shared && s.cfg.Dir == "" {
		s.sweeps = true
		s.running.Go(s.sweepAlways)
	}
	h, ok := s.hosts[key]
	if !ok {
		if err := s.admit(&accounts); err != nil {
			return nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, s.cfg.Name, err)
		}
		h = &host{key: key, accounts: accounts, room: memory.Sibling()}
		s.hosts[key] = h
	}
	h.conns++
	h.stopIdle()
	return h, nil
}

// admit counts a new process for a caller that does not have a process yet. It returns [upstream.ErrBusy], or a
// [*quota.FullError] that names the exhausted quota. The caller must hold the lock.
func (s *transport) admit(accounts *principal.Accounts) error {
	if len(s.hosts) >= s.cfg.MaxProcesses {
		return fmt.Errorf("%w: all %d processes of this server are in use (processes)", upstream.ErrBusy, s.cfg.MaxProcesses)
	}
	if s.cfg.Shared {
		return nil
	}
	return s.processCount.Acquire(accounts, 1)
}

// removeHost removes a host whose process has ended. The caller must hold the lock.
func (s *transport) removeHost(h *host) {
	if s.hosts[h.key] != h {
		return // another host has already replaced it
	}
	delete(s.hosts, h.key)
	if !s.cfg.Shared {
		s.processCount.Release(&h.accounts, 1)
	}
}

// hasOne reports whether the host has exactly one session. In this case, the session's client receives messages that
// belong to no request.
func (h *host) hasOne(s *transport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.cfg.Shared && h.conns == 1
}

// ownIdle is how long a process stays idle after the gateway has used it to list the server's tools.
const ownIdle = 2 * time.Second

// removeSession removes a session that addSession has counted. If the host then has no sessions, its process is
// terminated after an idle period.
func (s *transport) removeSession(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.conns--; h.conns == 0 && !s.closed {
		after := s.cfg.IdleTimeout
		if h.key.Subject == principal.Catalogue { // the gateway has listed the server's tools and no longer needs the process
			after = min(after, ownIdle)
		}
		h.idle = time.AfterFunc(after, func() { s.expire(h) })
	}
}

// expire terminates the process of a host without sessions. The next call to expire after the end of the process
// removes the host. The host is kept until then, because no other process may start in the same directory.
func (s *transport) expire(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || h.conns > 0:
	case h.start == nil && (h.proc == nil || h.proc.isDone()):
		s.removeHost(h)
	default:
		if h.start == nil {
			h.proc.end(errIdle)
		}
		h.idle.Reset(s.cfg.IdleTimeout)
	}
}

// acquire returns the host's process. If there is none, it starts a process. requests contains the handshake requests
// of a session that is being opened, and is empty if the session is already open. acquire returns the same errors as
// Transport.Open.
func (s *transport) acquire(ctx context.Context, h *host, requests greeting) (*process, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, s.closedError()
	}
	if h.start == nil {
		if h.proc != nil && !h.proc.isGone() && !h.proc.calls.isRetired() {
			defer s.mu.Unlock()
			return h.proc, nil
		}
		if err := s.begin(h, requests); err != nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	start := h.start
	s.mu.Unlock()
	late, stop := beforeDeadline(ctx)
	defer stop()
	select {
	case <-start.done:
		return start.proc, start.err
	case <-late:
		return nil, s.stillStarting()
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return nil, s.stillStarting()
		}
		return nil, s.waitError(ctx)
	}
}

// begin starts a new process in the background, unless there were too many starts recently.
func (s *transport) begin(h *host, with greeting) error {
	now := time.Now()
	since := now.Sub(h.startedAt)
	if h.failure == nil && h.proc != nil && h.proc.calls.isRetired() || errors.Is(h.failure, errInstall) {
		h.quick = 0 // the gateway itself has ended the process, or an installation has failed and has its own pause
	}
	if err := h.limited.check(); err != nil {
		return fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, s.cfg.Name, err)
	}
	if wait := h.pause() - since; wait > 0 {
		return fmt.Errorf("%w: %w", upstream.ErrNeverSent, s.pauseError(h, wait))
	}
	if since < steadyAfter {
		h.quick++
	} else {
		h.quick = 0
	}
	h.startedAt = now
	if h.greeting.first != nil && (with.first == nil || h.conns > 1) {
		with = h.greeting
	}
	start, old := &startup{done: make(chan struct{})}, h.proc
	h.start = start
	s.running.Go(func() {
		if old != nil {
			<-old.done // two processes must not use one directory
		}
		s.finish(h, s.startNext(h, with))
	})
	return nil
}

// pause returns the minimum time between the last start and the next start.
func (h *host) pause() time.Duration {
	if h.quick < quickStarts {
		return 0
	}
	return startInterval << min(h.quick-quickStarts, doublings)
}

// pauseError returns the error for a server that can't be started yet, because its previous processes ended shortly
// after their starts.
func (s *transport) pauseError(h *host, wait time.Duration) error {
	last := errors.New("it is still ending")
	switch {
	case h.failure != nil:
		last = h.failure
	case h.proc != nil && h.proc.isDone():
		last = h.proc.cause
	}
	out := &upstream.CauseError{Text: "it keeps ending soon after its start", RetryAfter: wait}
	if cause := upstream.CauseOf(last); cause != nil {
		out.Text, out.Detail = out.Text+"; last: "+cause.Text, cause.Detail
	}
	out.Err = fmt.Errorf("server %q keeps ending soon after its start and may start again in %s; last: %s",
		s.cfg.Name, wait.Round(time.Millisecond), last) //nolint:errorlint // the last error is not about the current message
	return out
}

// notStarted returns the error for a process that could not be started.
func (s *transport) notStarted(err error) error {
	text := "its program can't be started"
	if known := upstream.Network(err); known != "" {
		text += ": " + known
	}
	return &upstream.CauseError{
		Text: text, Detail: upstream.Escaped(s.operatorScrubber.Log(err.Error()), maxTailLine),
		Err: fmt.Errorf("start server %q: %w", s.cfg.Name, err),
	}
}

// startAndGreet starts a process and performs the handshake with it. The process runs the given installed program. If
// no program is given, it runs the configured command.
func (s *transport) startAndGreet(h *host, with greeting, used *usedProgram) error {
	p, err := s.launch(h, used)
	if err != nil {
		if used != nil {
			s.program.release(used)
		}
		s.log.WarnContext(context.Background(), "server not started", "error", err)
		return fmt.Errorf("%w: %w", upstream.ErrNeverSent, s.notStarted(err))
	}
	s.mu.Lock()
	h.proc = p
	if s.closed {
		p.end(upstream.ErrShutdown)
	}
	s.mu.Unlock()
	return p.handshake(with)
}

// finish stores the result of a start.
func (s *transport) finish(h *host, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start := h.start
	h.start, h.failure = nil, err
	if err == nil {
		h.greeting = h.proc.greeting
		start.proc = h.proc
	}
	start.err = err
	close(start.done)
}

func (s *transport) closedError() error {
	return fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, s.cfg.Name, upstream.ErrShutdown)
}

// waitError returns the error for a caller whose context is done before the work that the caller waits for has ended.
func (s *transport) waitError(ctx context.Context) error {
	class := upstream.ErrNoAnswer
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		class = upstream.ErrTimeout
	}
	return fmt.Errorf("%w: server %q: %w", class, s.cfg.Name, context.Cause(ctx))
}
