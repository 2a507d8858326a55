package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	wasmworkerv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmworker/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
)

const (
	// beat is how often a worker is asked whether it lives, and silence how long it may say
	// nothing: then it is killed.
	beat    = time.Second
	silence = 5 * time.Second
	// firstPause and longestPause are how long is waited between two starts of workers that
	// end before they were of any use.
	firstPause, longestPause = 50 * time.Millisecond, 5 * time.Second
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
	// Memory is how much a worker may have, in bytes, its guests with it.
	Memory int64
	// CompileTime and CompileMemory bound the compiling of one module, in a process that
	// does nothing else.
	CompileTime   time.Duration
	CompileMemory int64
}

// A Supervisor keeps a worker. It is safe for concurrent use.
type Supervisor struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	now     *process
	pause   time.Duration
	next    time.Time
	closed  bool
	modules map[string][]byte
	names   atomic.Int64
}

// NewSupervisor returns one that starts a worker when something is first to be done.
func NewSupervisor(cfg Config, log *slog.Logger) (*Supervisor, error) {
	if log == nil {
		return nil, errors.New("worker: a log is required")
	}
	if cfg.Program == "" || cfg.Cache == "" || cfg.Memory <= 0 || cfg.CompileTime <= 0 || cfg.CompileMemory <= 0 {
		return nil, errors.New("worker: a program, a folder and bounds are required")
	}
	return &Supervisor{cfg: cfg, log: log, modules: make(map[string][]byte)}, nil
}

// A process is a worker that runs.
type process struct {
	cmd    *exec.Cmd
	conn   *grpc.ClientConn
	client wasmworkerv1.WorkerServiceClient
	began  time.Time
	said   *tail
	// ended is closed once it is gone.
	ended chan struct{}
	// useful says that it has started an instance.
	useful atomic.Bool

	mu sync.Mutex
	// has are the programs that it knows.
	has map[string]bool
}

// start starts a worker with so much memory.
func (s *Supervisor) start(memory int64) (*process, error) {
	cmd := exec.Command(s.cfg.Program, word, s.cfg.Cache, strconv.FormatInt(memory, 10)) //nolint:gosec,noctx // this program, which outlives the call
	cmd.Env = []string{"GOMEMLIMIT=" + strconv.FormatInt(memory*3/4, 10), "GOTRACEBACK=single"}
	cmd.Dir = "/"
	p := &process{cmd: cmd, began: time.Now(), said: new(tail), ended: make(chan struct{}), has: make(map[string]bool)}
	cmd.Stderr = p.said
	line, theirs, err := connected(cmd)
	if err != nil {
		return nil, err
	}
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = line.Close()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	var once atomic.Bool
	p.conn, err = grpc.NewClient("passthrough:///worker",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if once.Swap(true) {
				return nil, ErrLost
			}
			return line, nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
	)
	if err != nil {
		_ = line.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("reach a worker: %w", err)
	}
	p.client = wasmworkerv1.NewWorkerServiceClient(p.conn)
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // how it ended is in the log
		_ = p.conn.Close()
	}()
	go p.watch()
	return p, nil
}

// watch kills a worker that says nothing any more.
func (p *process) watch() {
	health := healthv1.NewHealthClient(p.conn)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), silence)
		_, err := health.Check(ctx, new(healthv1.HealthCheckRequest))
		cancel()
		if err != nil {
			_ = p.cmd.Process.Kill()
		}
		select {
		case <-p.ended:
			return
		case <-time.After(beat):
		}
	}
}

// worker returns the worker that runs, or starts one. Who waits for that holds up nobody.
func (s *Supervisor) worker(ctx context.Context) (*process, error) {
	for {
		p, wait, err := s.current(ctx)
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

// current returns the worker that runs, starts one, or says how long to wait for that.
func (s *Supervisor) current(ctx context.Context) (*process, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		select {
		case <-s.now.ended:
			s.gone(ctx)
		default:
			return s.now, 0, nil
		}
	}
	if s.closed {
		return nil, 0, ErrLost
	}
	if wait := time.Until(s.next); wait > 0 {
		return nil, wait, nil
	}
	p, err := s.start(s.cfg.Memory)
	if err != nil {
		return nil, 0, err
	}
	s.now = p
	return p, 0, nil
}

// gone notes that the worker ended.
func (s *Supervisor) gone(ctx context.Context) {
	s.log.WarnContext(ctx, "a worker of agents ended", "state", s.now.cmd.ProcessState.String(), "lived", time.Since(s.now.began).Round(time.Millisecond), "said", s.now.said.String())
	s.pause = min(max(2*s.pause, firstPause), longestPause)
	if s.now.useful.Load() {
		s.pause = 0
	}
	s.next = time.Now().Add(s.pause)
	s.now = nil
}

// Compile reads, meters and compiles a module in a process of its own, which is held to
// bounds, and returns its digest; the module may be started from then on. Errors: why it
// is refused, or that it takes too long or too much.
func (s *Supervisor) Compile(caller context.Context, module []byte) (string, error) {
	p, err := s.start(s.cfg.CompileMemory)
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

// Knows tells whether a module was compiled, by its digest.
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

// lost says of an error whether it is the worker's end.
func (p *process) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	switch status.Code(err) { //nolint:exhaustive // the rest is the worker's answer
	case codes.Unavailable, codes.Canceled:
		select {
		case <-p.ended:
			return fmt.Errorf("%w: %w", ErrLost, err)
		case <-time.After(time.Second): // it may end just now
			if status.Code(err) == codes.Unavailable {
				return fmt.Errorf("%w: %w", ErrLost, err)
			}
		}
	case codes.FailedPrecondition:
		return ErrBusy
	case codes.NotFound:
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// Instance is a guest that runs in a worker. One goroutine at a time may use it.
type Instance struct {
	process *process
	name    string
}

// Start starts an instance anew, as [engine.Program.Start] does, within a time.
func (s *Supervisor) Start(ctx context.Context, digest string, limits engine.Limits, from engine.Origin, fuel int64, within time.Duration) (*Instance, int64, error) {
	return s.begin(ctx, &wasmworkerv1.StartInstanceRequest{
		Digest: digest, MemoryBytes: limits.Memory, EnvelopeBytes: int32(min(limits.Envelope, math.MaxInt32)),
		From: &wasmworkerv1.StartInstanceRequest_Origin{Origin: &wasmworkerv1.Origin{Clock: from.Clock, Seed: from.Seed[:]}},
		Fuel: fuel, Time: durationpb.New(within),
	})
}

// Restore goes on from a snapshot.
func (s *Supervisor) Restore(ctx context.Context, digest string, limits engine.Limits, snapshot []byte) (*Instance, error) {
	in, _, err := s.begin(ctx, &wasmworkerv1.StartInstanceRequest{
		Digest: digest, MemoryBytes: limits.Memory, EnvelopeBytes: int32(min(limits.Envelope, math.MaxInt32)),
		From: &wasmworkerv1.StartInstanceRequest_Snapshot{Snapshot: snapshot},
	})
	return in, err
}

func (s *Supervisor) begin(ctx context.Context, req *wasmworkerv1.StartInstanceRequest) (*Instance, int64, error) {
	p, err := s.worker(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := s.known(ctx, p, req.GetDigest()); err != nil {
		return nil, 0, err
	}
	req.Instance = strconv.FormatInt(s.names.Add(1), 10)
	resp, err := p.client.StartInstance(ctx, req)
	if err != nil {
		if ctx.Err() != nil { // it may be there all the same
			in := &Instance{process: p, name: req.GetInstance()}
			go func() { _ = in.Close(context.WithoutCancel(ctx)) }()
		}
		fuel, err := cause(err)
		return nil, fuel, p.lost(ctx, err)
	}
	p.useful.Store(true)
	return &Instance{process: p, name: req.GetInstance()}, resp.GetFuel(), nil
}

// Step gives the instance an envelope, as [engine.Instance.Step] does, within a time.
// Errors: that one's, [ErrLost], [ErrBusy].
func (i *Instance) Step(ctx context.Context, envelope []byte, fuel int64, within time.Duration) (answer []byte, used int64, err error) {
	resp, err := i.process.client.StepInstance(ctx, &wasmworkerv1.StepInstanceRequest{Instance: i.name, Envelope: envelope, Fuel: fuel, Time: durationpb.New(within)})
	if err != nil {
		used, err := cause(err)
		return nil, used, i.process.lost(ctx, err)
	}
	return resp.GetEnvelope(), resp.GetFuel(), nil
}

// Snapshot returns all that the instance is.
func (i *Instance) Snapshot(ctx context.Context) ([]byte, error) {
	resp, err := i.process.client.SnapshotInstance(ctx, &wasmworkerv1.SnapshotInstanceRequest{Instance: i.name})
	if err != nil {
		_, err := cause(err)
		return nil, i.process.lost(ctx, err)
	}
	return resp.GetSnapshot(), nil
}

// Close ends the instance.
func (i *Instance) Close(ctx context.Context) error {
	if _, err := i.process.client.DropInstance(ctx, &wasmworkerv1.DropInstanceRequest{Instance: i.name}); err != nil {
		if err = i.process.lost(ctx, err); !errors.Is(err, ErrLost) {
			return err
		}
	}
	return nil
}

// Kill kills the worker, as it may die at any time. For tests and for who finds it too slow.
func (s *Supervisor) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		_ = s.now.cmd.Process.Kill()
	}
}

// PID is the worker's process; 0 where none runs.
func (s *Supervisor) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return 0
	}
	return s.now.cmd.Process.Pid
}

// Close ends the worker, and waits until it is gone.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.now == nil {
		return nil
	}
	if err := s.now.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the worker: %w", err)
	}
	<-s.now.ended
	return nil
}

// tail is what was written at last.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if over := len(t.text) - maxSaid; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(text), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.text), "�")
}
