package stdio

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// quickStarts is how many starts in a row, each soon after the one before, are
	// free. After them there is a pause of startInterval before the next one, which
	// doubles so many times: a start takes much of the processor.
	quickStarts   = 3
	startInterval = time.Second
	doublings     = 3
	// steadyAfter is how long after a start the next one counts as unrelated.
	steadyAfter = 10 * time.Second
)

// Reasons for which the gateway ends a process in good order.
var (
	errIdle     = errors.New("no session is open")
	errRecycled = errors.New("it has served as many calls as it was to")
)

// host is where the process of one principal lives, or the one of a shared
// server. Its fields are guarded by transport.mu.
type host struct {
	who principal.Key
	// accounts are those that its process counts against.
	accounts principal.Accounts
	// room is whose the lines of its processes take: of a shared server nobody's but its
	// own. It has nothing itself.
	room *room.Holding
	// conns counts the sessions that are open or being opened.
	conns int
	// proc is the newest process; it may have ended. It serves while start is nil.
	proc *process
	// start is the start that is under way.
	start *startup
	// greeting is what the server accepted: a process that takes the place of
	// another has to look the same to the sessions that are open.
	greeting greeting
	// startedAt is when the last start was, and quick how many in a row were soon
	// after the one before.
	startedAt time.Time
	quick     int
	// limited is why the last processes ended that have reached a limit.
	limited limited
	// failure is why the last start failed; nil if it did not.
	failure error
	// idle runs while no session is open.
	idle *time.Timer
	// listeners hear what processes say aside.
	listeners map[*listener]struct{}
}

// startup is one start of a process, for which many may wait. Its results are
// set before done is closed.
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

// join returns the host for a principal and counts a session to it. What has room for the
// session's first answer is the principal's.
func (s *transport) join(who principal.Key, has *room.Holding) (*host, error) {
	if who.Tenant == "" || who.Subject == "" {
		return nil, fmt.Errorf("%w: the session is for nobody", upstream.ErrNeverSent)
	}
	accounts := has.AccountsOf(who)
	if s.cfg.Shared {
		who = principal.Key{}
	}
	if s.cfg.Shared || has == nil {
		has = s.room.Open(&room.Holder{Server: s.cfg.Name})
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
	h, ok := s.hosts[who]
	if !ok {
		if err := s.admit(&accounts); err != nil {
			return nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, s.cfg.Name, err)
		}
		h = &host{who: who, accounts: accounts, room: has.Beside()}
		s.hosts[who] = h
	}
	h.conns++
	h.stopIdle()
	return h, nil
}

// admit counts a process of a caller that has none. Errors: [upstream.ErrBusy], with whose share is used up
// where it is one. It needs the lock.
func (s *transport) admit(accounts *principal.Accounts) error {
	if len(s.hosts) >= s.cfg.MaxProcesses {
		return fmt.Errorf("%w: all %d processes of this server are in use (processes)", upstream.ErrBusy, s.cfg.MaxProcesses)
	}
	if s.cfg.Shared {
		return nil
	}
	return s.shares.Take(accounts, 1)
}

// forget forgets a host whose process has ended. It needs the lock.
func (s *transport) forget(h *host) {
	if s.hosts[h.who] != h {
		return // it was forgotten before, and this is another
	}
	delete(s.hosts, h.who)
	if !s.cfg.Shared {
		s.shares.Give(&h.accounts, 1)
	}
}

// hasOne reports whether one session alone is served, whose client is then the one that the
// process means by what it says aside.
func (h *host) hasOne(s *transport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.cfg.Shared && h.conns == 1
}

// ownIdle is how long a process lives in which the gateway has listed its server.
const ownIdle = 2 * time.Second

// leave takes back a join.
func (s *transport) leave(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.conns--; h.conns == 0 && !s.closed {
		after := s.cfg.IdleTimeout
		if h.who.Subject == principal.Catalogue { // who lists a server and is done with it
			after = min(after, ownIdle)
		}
		h.idle = time.AfterFunc(after, func() { s.expire(h) })
	}
}

// expire ends the process of a host without sessions and, the next time, forgets
// the host: until the process has ended, nobody else may start one in its
// folder.
func (s *transport) expire(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || h.conns > 0:
	case h.start == nil && (h.proc == nil || h.proc.isDone()):
		s.forget(h)
	default:
		if h.start == nil {
			h.proc.end(errIdle)
		}
		h.idle.Reset(s.cfg.IdleTimeout)
	}
}

// acquire returns the host's process, which is started if there is none. The
// greeting is that of a session that is being opened, none for one that is open.
// Errors: those of Server.Open.
func (s *transport) acquire(ctx context.Context, h *host, with greeting) (*process, error) {
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
		if err := s.begin(h, with); err != nil {
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
		return nil, s.gaveUp(ctx)
	}
}

// begin begins a start, unless there were too many lately.
func (s *transport) begin(h *host, with greeting) error {
	now := time.Now()
	since := now.Sub(h.startedAt)
	if h.failure == nil && h.proc != nil && h.proc.calls.isRetired() || errors.Is(h.failure, errInstall) {
		h.quick = 0 // its end was ours, or there was none: an installation has pauses of its own
	}
	if err := h.limited.check(); err != nil {
		return fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, s.cfg.Name, err)
	}
	if wait := h.pause() - since; wait > 0 {
		return fmt.Errorf("%w: %w", upstream.ErrNeverSent, s.pausing(h, wait))
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
			<-old.done // two processes must not meet in one folder
		}
		s.finish(h, s.startNext(h, with))
	})
	return nil
}

// pause is how long after the last start there may be another.
func (h *host) pause() time.Duration {
	if h.quick < quickStarts {
		return 0
	}
	return startInterval << min(h.quick-quickStarts, doublings)
}

// pausing says that a server is not started yet, because it kept ending.
func (s *transport) pausing(h *host, wait time.Duration) error {
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
		s.cfg.Name, wait.Round(time.Millisecond), last) //nolint:errorlint // it says nothing of the message at hand
	return out
}

// notStarted says that a process could not be started.
func (s *transport) notStarted(err error) error {
	text := "its program can't be started"
	if known := upstream.Network(err); known != "" {
		text += ": " + known
	}
	return &upstream.CauseError{
		Text: text, Detail: upstream.Escaped(s.told.Log(err.Error()), tailKept),
		Err: fmt.Errorf("start server %q: %w", s.cfg.Name, err),
	}
}

// bringUp starts a process and greets it. The program is the installed one; nil if the command is run as it is.
func (s *transport) bringUp(h *host, with greeting, used *usedProgram) error {
	p, err := s.launch(h, used)
	if err != nil {
		if used != nil {
			s.program.give(used)
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

// finish ends a start.
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

// gaveUp is the error of a caller whose context ended while it waited for
// something that was already under way.
func (s *transport) gaveUp(ctx context.Context) error {
	class := upstream.ErrNoAnswer
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		class = upstream.ErrTimeout
	}
	return fmt.Errorf("%w: server %q: %w", class, s.cfg.Name, context.Cause(ctx))
}
