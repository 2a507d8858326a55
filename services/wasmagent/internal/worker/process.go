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

type process struct {
	cmd        *exec.Cmd
	conn       *grpc.ClientConn
	client     wasmworkerv1.WorkerServiceClient
	began      time.Time
	stderrTail *tailWriter
	// ended is a channel that is closed after the process has exited.
	ended chan struct{}
	// hasStartedInstance is true if the process has ever started an instance. instances is how many instances it has
	// now.
	hasStartedInstance atomic.Bool
	instances          atomic.Int64
	// pausing is locked during a pause, so that only one instance pauses at a time.
	pausing sync.Mutex

	mu sync.Mutex
	// programs contains the digests of the programs that the worker has loaded.
	programs map[string]bool
}

// A large answer or a failure of a guest causes work that is not charged as fuel, both in the worker and in the process
// that started the worker. Therefore, the call that caused the work pauses before it returns. In each worker, only one
// call pauses at a time. After an answer with more than largeAnswer bytes, the pause is pausePerByte for each byte of
// the answer. This limits large answers to about 60 MB per second and worker. A failure counts as an answer of
// failureCost bytes.
const (
	largeAnswer  = 64 << 10
	failureCost  = 512 << 10
	pausePerByte = 16 * time.Nanosecond
)

// pauseFor pauses for an answer of the given size in bytes.
func (p *process) pauseFor(bytes int) {
	if bytes > largeAnswer {
		p.pausing.Lock()
		defer p.pausing.Unlock()
		<-time.After(time.Duration(bytes) * pausePerByte)
	}
}

// start starts a worker process. memory is the memory limit of the process, in bytes.
func (c Config) start(memory int64) (*process, error) {
	cmd := exec.Command(c.Program, workerArgument, c.Cache, strconv.FormatInt(memory, 10)) //nolint:gosec,noctx // the command is this program, and outlives the call
	cmd.Env = []string{"GOMEMLIMIT=" + strconv.FormatInt(memory*3/4, 10), "GOTRACEBACK=single"}
	cmd.Dir = "/"
	p := &process{cmd: cmd, began: time.Now(), stderrTail: new(tailWriter), ended: make(chan struct{}), programs: make(map[string]bool)}
	cmd.Stderr = p.stderrTail
	line, workerEnd, err := connectWorker(cmd)
	if err != nil {
		return nil, err
	}
	err = cmd.Start()
	_ = workerEnd.Close()
	if err != nil {
		_ = line.Close()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	var once atomic.Bool
	p.conn, err = grpc.NewClient("passthrough:///worker",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if once.Swap(true) {
				return nil, ErrWorkerLost
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
		_ = cmd.Wait() // recordEnd logs the state of the process
		_ = p.conn.Close()
	}()
	go p.watch()
	return p, nil
}

// watch sends health checks to the worker, and kills the worker if it does not respond in time.
func (p *process) watch() {
	health := healthv1.NewHealthClient(p.conn)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
		_, err := health.Check(ctx, new(healthv1.HealthCheckRequest))
		cancel()
		if err != nil {
			_ = p.cmd.Process.Kill()
		}
		select {
		case <-p.ended:
			return
		case <-time.After(healthInterval):
		}
	}
}

// workerError converts an error from a call to the worker. It returns [ErrWorkerLost] if the worker process has exited,
// and [ErrBusy] if the instance is busy. It returns all other errors unchanged.
func (p *process) workerError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	switch status.Code(err) { //nolint:exhaustive // other codes come from the worker
	case codes.Unavailable, codes.Canceled:
		select {
		case <-p.ended:
			return fmt.Errorf("%w: %w", ErrWorkerLost, err)
		case <-time.After(time.Second): // the worker may be about to end
			if status.Code(err) == codes.Unavailable {
				return fmt.Errorf("%w: %w", ErrWorkerLost, err)
			}
		}
	case codes.FailedPrecondition:
		return ErrBusy
	case codes.NotFound:
		return fmt.Errorf("%w: %w", ErrWorkerLost, err)
	}
	return err
}

// tailWriter is a writer that stores only the last maxStderr bytes.
type tailWriter struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tailWriter) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if over := len(t.text) - maxStderr; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(text), nil
}

func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.text), "�")
}
