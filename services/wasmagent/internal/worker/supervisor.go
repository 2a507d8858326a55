package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	wasmworkerv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmworker/v1"
)

const (
	// beat is how often a worker is asked whether it lives, and silence how long it may say
	// nothing: then it is killed.
	beat    = time.Second
	silence = 5 * time.Second
	// firstPause and longestPause are how long is waited between two starts of workers that
	// end before they were of any use.
	firstPause, longestPause = 50 * time.Millisecond, 5 * time.Second
	// fullPause is how long is waited until it is looked for room again.
	fullPause = 10 * time.Millisecond
	// maxSaid is how much of what a worker says on its standard error is kept, in bytes.
	maxSaid = 8 << 10
)

// Errors of a [Supervisor], for [errors.Is].
var (
	// ErrLost: the worker died, and with it all instances in it. Go on from snapshots.
	ErrLost = errors.New("the worker is gone")
	// ErrModule: the module is refused.
	ErrModule = errors.New("the module is refused")
	// ErrBusy: the instance works already.
	ErrBusy = errors.New("the instance works already")
)

// Config says how workers are run.
type Config struct {
	// Program is this program, as it is started again.
	Program string
	// Cache is the folder for what is compiled.
	Cache string
	// Workers is how many there are, at the least 1. One is started when others have guests, and
	// stays. Guests is how many each has at the most, at the least 1; more wait.
	Workers, Guests int
	// Memory is how much each may have, in bytes, its guests with it.
	Memory int64
	// CompileTime and CompileMemory bound the compiling of one module, in a process that
	// does nothing else.
	CompileTime   time.Duration
	CompileMemory int64
}

// A Supervisor keeps workers. It is safe for concurrent use.
type Supervisor struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	places  []place
	closed  bool
	modules map[string][]byte
	names   atomic.Int64
}

// A place is where one worker runs at a time, if any.
type place struct {
	now *process
	// next is when another may be started, and pause how long it waited last.
	next  time.Time
	pause time.Duration
}

// NewSupervisor returns one that starts a worker when something is first to be done.
func NewSupervisor(cfg Config, log *slog.Logger) (*Supervisor, error) {
	if log == nil {
		return nil, errors.New("worker: a log is required")
	}
	if cfg.Program == "" || cfg.Cache == "" || cfg.Workers <= 0 || cfg.Guests <= 0 || cfg.Memory <= 0 || cfg.CompileTime <= 0 || cfg.CompileMemory <= 0 {
		return nil, errors.New("worker: a program, a folder and bounds are required")
	}
	return &Supervisor{cfg: cfg, log: log, places: make([]place, cfg.Workers), modules: make(map[string][]byte)}, nil
}

// worker returns a worker for one more instance, which is counted from then on. Who waits for
// room holds up nobody.
func (s *Supervisor) worker(ctx context.Context) (*process, error) {
	for {
		p, wait, err := s.least(ctx)
		if p != nil || err != nil {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// least returns the worker with the fewest instances, starts one where all others have some,
// or says how long to wait for room.
func (s *Supervisor) least(ctx context.Context) (*process, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, ErrLost
	}
	var best *process
	var empty *place
	for i := range s.places {
		at := &s.places[i]
		if at.ended() {
			s.gone(ctx, at)
		}
		switch {
		case at.now == nil:
			if empty == nil || at.next.Before(empty.next) {
				empty = at
			}
		case best == nil || at.now.instances.Load() < best.instances.Load():
			best = at.now
		}
	}
	full := best == nil || best.instances.Load() >= int64(s.cfg.Guests)
	wait := fullPause
	if empty != nil {
		wait = time.Until(empty.next)
	}
	if empty != nil && wait <= 0 && (full || best.instances.Load() > 0) {
		p, err := s.cfg.start(s.cfg.Memory)
		if err != nil {
			empty.wait()
			s.log.WarnContext(ctx, "a worker of agents can't be started", "error", err)
			if best == nil {
				return nil, 0, err
			}
			wait = fullPause
		} else {
			empty.now, best, full = p, p, false
		}
	}
	if full {
		return nil, min(wait, fullPause), nil
	}
	best.instances.Add(1)
	return best, 0, nil
}

// wait has the next worker be started some time from now.
func (at *place) wait() {
	at.pause = min(max(2*at.pause, firstPause), longestPause)
	at.next = time.Now().Add(at.pause)
}

// ended reports whether a worker was here that is gone.
func (at *place) ended() bool {
	if at.now == nil {
		return false
	}
	select {
	case <-at.now.ended:
		return true
	default:
		return false
	}
}

// gone notes that a worker ended.
func (s *Supervisor) gone(ctx context.Context, at *place) {
	s.log.WarnContext(ctx, "a worker of agents ended", "state", at.now.cmd.ProcessState.String(), "lived", time.Since(at.now.began).Round(time.Millisecond), "said", at.now.said.String())
	if at.wait(); at.now.useful.Load() {
		at.pause, at.next = 0, time.Time{}
	}
	at.now = nil
}

// Compile reads, meters and compiles a module in a process of its own, which is held to
// bounds, and returns its digest; the module may be started from then on. Errors: why it
// is refused, or that it takes too long or too much.
func (s *Supervisor) Compile(caller context.Context, module []byte) (string, error) {
	p, err := s.cfg.start(s.cfg.CompileMemory)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrLost, err)
	}
	defer func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}()
	ctx, cancel := context.WithTimeout(caller, s.cfg.CompileTime)
	defer cancel()
	resp, err := p.client.CompileProgram(ctx, &wasmworkerv1.CompileProgramRequest{Module: module})
	switch {
	case err == nil:
	case ctx.Err() == nil && (status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled): // it died
		return "", fmt.Errorf("%w: to compile it takes more than %d MiB", ErrModule, s.cfg.CompileMemory>>20)
	case caller.Err() != nil:
		return "", caller.Err()
	case status.Code(err) == codes.DeadlineExceeded:
		return "", fmt.Errorf("%w: to compile it takes longer than %s", ErrModule, s.cfg.CompileTime)
	default:
		return "", fmt.Errorf("%w: %s", ErrModule, status.Convert(err).Message())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modules[resp.GetDigest()] = module
	return resp.GetDigest(), nil
}

// Knows reports whether a module was compiled, by its digest.
func (s *Supervisor) Knows(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.modules[digest] != nil
}

// known has a worker know a program: what was compiled lies in the folder.
func (s *Supervisor) known(ctx context.Context, p *process, digest string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.has[digest] {
		return nil
	}
	s.mu.Lock()
	module := s.modules[digest]
	s.mu.Unlock()
	if module == nil {
		return fmt.Errorf("the module %s was not compiled", digest)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CompileTime) // others wait for it, too
	defer cancel()
	if _, err := p.client.CompileProgram(own, &wasmworkerv1.CompileProgramRequest{Module: module}); err != nil {
		return p.lost(own, err)
	}
	p.has[digest] = true
	return nil
}

// Kill kills the workers, as they may die at any time. For tests.
func (s *Supervisor) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.places {
		if at.now != nil {
			_ = at.now.cmd.Process.Kill()
		}
	}
}

// PIDs are the workers' processes. For tests.
func (s *Supervisor) PIDs() (out []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.places {
		if at.now != nil {
			out = append(out, at.now.cmd.Process.Pid)
		}
	}
	return out
}

// Close ends the workers, and waits until they are gone.
func (s *Supervisor) Close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var ending []*process
	for _, at := range s.places {
		if at.now == nil {
			continue
		}
		if killed := at.now.cmd.Process.Kill(); killed != nil && !errors.Is(killed, os.ErrProcessDone) {
			err = errors.Join(err, fmt.Errorf("end a worker: %w", killed))
			continue
		}
		ending = append(ending, at.now)
	}
	for _, p := range ending {
		<-p.ended
	}
	return err
}
