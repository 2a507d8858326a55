package worker

import (
	"context"
	"fmt"
	"net"
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

	wasmworkerv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmworker/v1"
)

// A process is a running worker.
type process struct {
	cmd    *exec.Cmd
	conn   *grpc.ClientConn
	client wasmworkerv1.WorkerServiceClient
	began  time.Time
	said   *tail
	// ended is closed after the process has ended.
	ended chan struct{}
	// useful is true if the process has started an instance. instances is the number of its instances.
	useful    atomic.Bool
	instances atomic.Int64
	// resting is held during a pause, so that pauses follow one another.
	resting sync.Mutex

	mu sync.Mutex
	// has are the programs that the worker has compiled.
	has map[string]bool
}

// A large answer, or a guest that fails in a step, costs both processes work that no fuel counts. Whoever causes it
// pauses afterwards, one instance at a time in a worker: perByte for each byte of an answer above large, so that 60 MB
// pass in a second, and as long as for an answer of failure bytes if a guest fails.
const (
	large   = 64 << 10
	failure = 512 << 10
	perByte = 16 * time.Nanosecond
)

// rest pauses for the work of an answer of this size.
func (p *process) rest(bytes int) {
	if bytes > large {
		p.resting.Lock()
		defer p.resting.Unlock()
		<-time.After(time.Duration(bytes) * perByte)
	}
}

// start starts a worker with this memory limit, in bytes.
func (c Config) start(memory int64) (*process, error) {
	cmd := exec.Command(c.Program, word, c.Cache, strconv.FormatInt(memory, 10)) //nolint:gosec,noctx // this program, which outlives the call
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
		_ = cmd.Wait() // the log has its state
		_ = p.conn.Close()
	}()
	go p.watch()
	return p, nil
}

// watch kills a worker that does not respond.
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

// lost turns an error into [ErrLost] if the worker has ended, or into [ErrBusy].
func (p *process) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	switch status.Code(err) { //nolint:exhaustive // other codes are answers of the worker
	case codes.Unavailable, codes.Canceled:
		select {
		case <-p.ended:
			return fmt.Errorf("%w: %w", ErrLost, err)
		case <-time.After(time.Second): // it may be about to end
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

// tail is the end of what was written to it.
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
