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
	// healthInterval is the interval between health checks. healthTimeout is the timeout of a health check. A worker
	// that does not answer within the timeout is killed.
	healthInterval = time.Second
	healthTimeout  = 5 * time.Second
	// firstPause and longestPause are the shortest and the longest delay before a worker may be started. The delay
	// begins when the supervisor finds that a worker has exited without starting an instance, or that a worker can't be
	// started. The delay doubles each time.
	firstPause, longestPause = 50 * time.Millisecond, 5 * time.Second
	// capacityPollInterval is how often a waiting call checks for capacity while all workers are full.
	capacityPollInterval = 10 * time.Millisecond
	// maxStderr is how many bytes from the end of a worker's standard error output are logged.
	maxStderr = 8 << 10
)

// The methods of a [Supervisor] return these errors. Compare them with [errors.Is].
var (
	// ErrWorkerLost means that the worker process has exited, so that all its instances are lost. They can be restored
	// from snapshots.
	ErrWorkerLost = errors.New("the worker is gone")
	// ErrModuleRefused means that the module is not a guest, or that it can't be compiled within the limits.
	ErrModuleRefused = errors.New("the module is refused")
	// ErrBusy means that a step of the instance is running.
	ErrBusy = errors.New("a step of the instance runs")
)

// Config configures workers.
type Config struct {
	// Program is the path of the program that is started as a worker.
	Program string
	// Cache is the directory for compiled modules.
	Cache string
	// Workers limits the number of workers, and Guests limits the number of guests in each worker. Both must be at
	// least 1. A further worker is started when all running workers have guests. Idle workers are not stopped. If all
	// workers are full, further guests wait until another guest ends.
	Workers, Guests int
	// Memory limits the memory of each worker, including its guests, in bytes.
	Memory int64
	// CompileTime limits how long the compilation of one module may take. CompileMemory limits how much memory it may
	// use, in bytes. The compilation runs in a separate process.
	CompileTime   time.Duration
	CompileMemory int64
}

// A Supervisor runs workers. It is safe for concurrent use.
type Supervisor struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	slots   []workerSlot
	closed  bool
	modules map[string][]byte
	names   atomic.Int64
}

// A workerSlot holds at most one running worker.
type workerSlot struct {
	process *process
	// next is the earliest time at which a worker may be started in this slot. pause is the length of the previous
	// delay.
	next  time.Time
	pause time.Duration
}

// NewSupervisor returns a supervisor. The first worker is started when a guest needs it. The caller must close the
// supervisor.
func NewSupervisor(cfg Config, log *slog.Logger) (*Supervisor, error) {
	if log == nil {
		return nil, errors.New("worker: a log is required")
	}
	if cfg.Program == "" || cfg.Cache == "" || cfg.Workers <= 0 || cfg.Guests <= 0 || cfg.Memory <= 0 || cfg.CompileTime <= 0 || cfg.CompileMemory <= 0 {
		return nil, errors.New("worker: a program, a folder and bounds are required")
	}
	return &Supervisor{cfg: cfg, log: log, slots: make([]workerSlot, cfg.Workers), modules: make(map[string][]byte)}, nil
}

// acquireWorker returns a worker that has capacity for one more instance, and counts that instance. If all workers are
// full, acquireWorker waits.
func (s *Supervisor) acquireWorker(ctx context.Context) (*process, error) {
	for {
		p, wait, err := s.leastLoaded(ctx)
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

// leastLoaded returns the worker with the fewest instances. If every running worker has instances and the limit allows
// another worker, leastLoaded starts a new worker. If all workers are full, leastLoaded returns the delay before the
// next attempt.
func (s *Supervisor) leastLoaded(ctx context.Context) (*process, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, ErrWorkerLost
	}
	var best *process
	var empty *workerSlot
	for i := range s.slots {
		slot := &s.slots[i]
		if slot.ended() {
			s.recordEnd(ctx, slot)
		}
		switch {
		case slot.process == nil:
			if empty == nil || slot.next.Before(empty.next) {
				empty = slot
			}
		case best == nil || slot.process.instances.Load() < best.instances.Load():
			best = slot.process
		}
	}
	full := best == nil || best.instances.Load() >= int64(s.cfg.Guests)
	wait := capacityPollInterval
	if empty != nil {
		wait = time.Until(empty.next)
	}
	if empty != nil && wait <= 0 && (full || best.instances.Load() > 0) {
		p, err := s.cfg.start(s.cfg.Memory)
		if err != nil {
			empty.delayStart()
			s.log.WarnContext(ctx, "a worker of agents can't be started", "error", err)
			if best == nil {
				return nil, 0, err
			}
			wait = capacityPollInterval
		} else {
			empty.process, best, full = p, p, false
		}
	}
	if full {
		return nil, min(wait, capacityPollInterval), nil
	}
	best.instances.Add(1)
	return best, 0, nil
}

// delayStart delays the next start of a worker in this slot. The delay doubles each time.
func (slot *workerSlot) delayStart() {
	slot.pause = min(max(2*slot.pause, firstPause), longestPause)
	slot.next = time.Now().Add(slot.pause)
}

func (slot *workerSlot) ended() bool {
	if slot.process == nil {
		return false
	}
	select {
	case <-slot.process.ended:
		return true
	default:
		return false
	}
}

// recordEnd logs that a worker has exited, and frees the worker's slot.
func (s *Supervisor) recordEnd(ctx context.Context, slot *workerSlot) {
	s.log.WarnContext(ctx, "a worker of agents ended", "state", slot.process.cmd.ProcessState.String(), "lived", time.Since(slot.process.began).Round(time.Millisecond), "said", slot.process.stderrTail.String())
	if slot.delayStart(); slot.process.hasStartedInstance.Load() {
		slot.pause, slot.next = 0, time.Time{}
	}
	slot.process = nil
}

// Compile compiles a module in a separate process with limited resources, and returns the module's digest. After that,
// instances of the module can be started. Compile returns [ErrModuleRefused] with the reason, [ErrWorkerLost], or the
// error of the caller's context.
func (s *Supervisor) Compile(caller context.Context, module []byte) (string, error) {
	p, err := s.cfg.start(s.cfg.CompileMemory)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrWorkerLost, err)
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
	case ctx.Err() == nil && (status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled):
		// The process has exited, most likely because it has reached its memory limit.
		return "", fmt.Errorf("%w: to compile it takes more than %d MiB", ErrModuleRefused, s.cfg.CompileMemory>>20)
	case caller.Err() != nil:
		return "", caller.Err()
	case status.Code(err) == codes.DeadlineExceeded:
		return "", fmt.Errorf("%w: to compile it takes longer than %s", ErrModuleRefused, s.cfg.CompileTime)
	default:
		return "", fmt.Errorf("%w: %s", ErrModuleRefused, status.Convert(err).Message())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modules[resp.GetDigest()] = module
	return resp.GetDigest(), nil
}

// HasModule reports whether the module with the given digest has been compiled.
func (s *Supervisor) HasModule(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.modules[digest] != nil
}

// ensureProgram makes sure that a worker has loaded a program. The worker reads the compiled module from the cache
// directory.
func (s *Supervisor) ensureProgram(ctx context.Context, p *process, digest string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.programs[digest] {
		return nil
	}
	s.mu.Lock()
	module := s.modules[digest]
	s.mu.Unlock()
	if module == nil {
		return fmt.Errorf("the module %s was not compiled", digest)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CompileTime) // other calls wait for this, too
	defer cancel()
	if _, err := p.client.CompileProgram(own, &wasmworkerv1.CompileProgramRequest{Module: module}); err != nil {
		return p.workerError(own, err)
	}
	p.programs[digest] = true
	return nil
}

// KillWorkers kills all workers, as if they had crashed. Only tests use it.
func (s *Supervisor) KillWorkers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range s.slots {
		if slot.process != nil {
			_ = slot.process.cmd.Process.Kill()
		}
	}
}

// PIDs returns the process ids of the workers. Only tests use it.
func (s *Supervisor) PIDs() (out []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range s.slots {
		if slot.process != nil {
			out = append(out, slot.process.cmd.Process.Pid)
		}
	}
	return out
}

// Close kills the workers and waits until they have exited.
func (s *Supervisor) Close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var ending []*process
	for _, slot := range s.slots {
		if slot.process == nil {
			continue
		}
		if killed := slot.process.cmd.Process.Kill(); killed != nil && !errors.Is(killed, os.ErrProcessDone) {
			err = errors.Join(err, fmt.Errorf("end a worker: %w", killed))
			continue
		}
		ending = append(ending, slot.process)
	}
	for _, p := range ending {
		<-p.ended
	}
	return err
}
