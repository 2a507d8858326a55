// Package worker runs guests in separate processes, which are called workers. If a worker fails, only the guests in
// that worker are lost, and the package starts a new worker. The wasmagent service uses the package.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	wasmworkerv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmworker/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// maxMessage limits the size of a gRPC message between this service and a worker, in bytes. The largest messages
// contain snapshots.
const maxMessage = 128 << 20

const workerArgument = "wasm-worker"

// Main returns immediately, unless the program was started as a worker. In that case, Main runs the worker and never
// returns. The program's function main must call Main before anything else.
func Main() {
	if len(os.Args) != 4 || os.Args[1] != workerArgument {
		return
	}
	signal.Ignore(syscall.SIGINT) // only the supervisor may end the process
	if err := runWorker(os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runWorker serves the connection that the process has inherited, until the supervisor closes it.
func runWorker(cache, memory string) error {
	most, err := strconv.ParseInt(memory, 10, 64)
	if err != nil {
		return fmt.Errorf("read the memory limit: %w", err)
	}
	if err := limitResources(most); err != nil {
		return err
	}
	conn, err := inheritedConn()
	if err != nil {
		return err
	}
	return Serve(context.Background(), conn, cache)
}

// Serve serves one connection until it is closed. cache is the directory for compiled modules. If it is empty, compiled
// modules are not cached.
func Serve(ctx context.Context, conn net.Conn, cache string) error {
	e, err := engine.New(ctx, cache)
	if err != nil {
		return err
	}
	s := &server{engine: e, programs: make(map[string]*engine.Program), instances: make(map[string]*instanceSlot)}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	wasmworkerv1.RegisterWorkerServiceServer(g, s)
	healthv1.RegisterHealthServer(g, health.NewServer())
	err = g.Serve(&onlyListener{conn: conn, closed: make(chan struct{})})
	g.Stop()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, e.Close(ctx))
}

// onlyListener is a listener that accepts a single connection. The second call to Accept waits until that connection is
// closed, and then returns io.EOF.
type onlyListener struct {
	conn   net.Conn
	once   sync.Once
	given  bool
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *onlyListener) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return &watchedConn{Conn: l.conn, ended: l.end}, nil
	}
	<-l.closed
	return nil, io.EOF
}

func (l *onlyListener) end() { l.once.Do(func() { close(l.closed) }) }

// Close implements net.Listener.
func (l *onlyListener) Close() error {
	l.end()
	return nil
}

// Addr implements net.Listener.
func (l *onlyListener) Addr() net.Addr { return l.conn.LocalAddr() }

type watchedConn struct {
	net.Conn
	ended func()
}

// Close implements net.Conn.
func (c *watchedConn) Close() error {
	defer c.ended()
	return c.Conn.Close()
}

// server implements wasmworkerv1.WorkerServiceServer.
type server struct {
	wasmworkerv1.UnimplementedWorkerServiceServer

	engine *engine.Engine

	mu        sync.Mutex
	programs  map[string]*engine.Program
	instances map[string]*instanceSlot
}

// An instanceSlot contains an instance. A call must hold mu while it uses the instance.
type instanceSlot struct {
	mu sync.Mutex
	in *engine.Instance
}

// CompileProgram implements wasmworkerv1.WorkerServiceServer.
func (s *server) CompileProgram(ctx context.Context, req *wasmworkerv1.CompileProgramRequest) (*wasmworkerv1.CompileProgramResponse, error) {
	p, err := s.engine.Compile(ctx, req.GetModule())
	if err != nil {
		return nil, &rpc.Error{Code: codes.InvalidArgument, Reason: reasonRefused, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.programs[p.Digest] = p
	return &wasmworkerv1.CompileProgramResponse{Digest: p.Digest, MeterVersion: wasmmeter.MeterVersion}, nil
}

// StartInstance implements wasmworkerv1.WorkerServiceServer.
func (s *server) StartInstance(ctx context.Context, req *wasmworkerv1.StartInstanceRequest) (*wasmworkerv1.StartInstanceResponse, error) {
	s.mu.Lock()
	p, exists := s.programs[req.GetDigest()], s.instances[req.GetInstance()] != nil
	s.mu.Unlock()
	switch {
	case p == nil:
		return nil, &rpc.Error{Code: codes.NotFound, Reason: reasonNoProgram}
	case exists:
		return nil, &rpc.Error{Code: codes.AlreadyExists, Reason: "INSTANCE_TAKEN"}
	}
	if d := req.GetTime(); d != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.AsDuration())
		defer cancel()
	}
	limits := engine.Limits{Memory: req.GetMemoryBytes(), Envelope: uint32(req.GetEnvelopeBytes())}
	var in *engine.Instance
	var fuel int64
	var err error
	if snapshot, ok := req.GetFrom().(*wasmworkerv1.StartInstanceRequest_Snapshot); ok {
		in, err = p.Restore(ctx, limits, snapshot.Snapshot)
	} else {
		from := engine.Origin{Clock: req.GetOrigin().GetClock()}
		copy(from.Seed[:], req.GetOrigin().GetSeed())
		in, fuel, err = p.Start(ctx, limits, from, req.GetFuel())
	}
	if err != nil {
		return nil, statusError(err, fuel, engine.PrintedOf(err))
	}
	if ctx.Err() != nil { // the caller has given up
		return nil, errors.Join(ctx.Err(), in.Close(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[req.GetInstance()] = &instanceSlot{in: in}
	return &wasmworkerv1.StartInstanceResponse{Fuel: fuel, Printed: in.Printed()}, nil
}

// instance returns the slot of an instance and locks the slot.
func (s *server) instance(name string) (*instanceSlot, error) {
	s.mu.Lock()
	found := s.instances[name]
	s.mu.Unlock()
	if found == nil {
		return nil, &rpc.Error{Code: codes.NotFound, Reason: reasonNoInstance}
	}
	if !found.mu.TryLock() {
		return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "INSTANCE_BUSY"}
	}
	return found, nil
}

// StepInstance implements wasmworkerv1.WorkerServiceServer.
func (s *server) StepInstance(ctx context.Context, req *wasmworkerv1.StepInstanceRequest) (*wasmworkerv1.StepInstanceResponse, error) {
	held, err := s.instance(req.GetInstance())
	if err != nil {
		return nil, err
	}
	defer held.mu.Unlock()
	if d := req.GetTime(); d != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.AsDuration())
		defer cancel()
	}
	envelope, fuel, err := held.in.Step(ctx, req.GetEnvelope(), req.GetFuel())
	if err != nil {
		return nil, statusError(err, fuel, held.in.Printed())
	}
	return &wasmworkerv1.StepInstanceResponse{Envelope: envelope, Fuel: fuel, MemoryBytes: held.in.Memory(), Printed: held.in.Printed()}, nil
}

// SnapshotInstance implements wasmworkerv1.WorkerServiceServer.
func (s *server) SnapshotInstance(_ context.Context, req *wasmworkerv1.SnapshotInstanceRequest) (*wasmworkerv1.SnapshotInstanceResponse, error) {
	held, err := s.instance(req.GetInstance())
	if err != nil {
		return nil, err
	}
	defer held.mu.Unlock()
	snapshot, err := held.in.Snapshot()
	if err != nil {
		return nil, statusError(err, 0, "")
	}
	return &wasmworkerv1.SnapshotInstanceResponse{Snapshot: snapshot}, nil
}

// DropInstance implements wasmworkerv1.WorkerServiceServer. A step of the instance may still be running if the call
// that started the step was cancelled. In that case, DropInstance waits until the step ends.
func (s *server) DropInstance(ctx context.Context, req *wasmworkerv1.DropInstanceRequest) (*wasmworkerv1.DropInstanceResponse, error) {
	s.mu.Lock()
	found := s.instances[req.GetInstance()]
	delete(s.instances, req.GetInstance())
	s.mu.Unlock()
	if found != nil {
		found.mu.Lock()
		defer found.mu.Unlock()
		if err := found.in.Close(ctx); err != nil {
			return nil, err
		}
	}
	return new(wasmworkerv1.DropInstanceResponse), nil
}

// These are the reasons of errors, and the keys in the metadata of errors, that the proto files define.
const (
	reasonRefused    = "MODULE_REFUSED"
	reasonNoProgram  = "PROGRAM_UNKNOWN"
	reasonNoInstance = "INSTANCE_UNKNOWN"
	reasonFuel       = "FUEL_SPENT"
	reasonMemory     = "MEMORY_SPENT"
	reasonFull       = "WORKER_FULL"
	reasonCut        = "STEP_CUT"
	reasonTrapped    = "GUEST_TRAPPED"
	reasonSnapshot   = "SNAPSHOT_REFUSED"
	factFuel         = "fuel"
	factPrinted      = "printed"
)

// errorStatuses maps engine errors to the gRPC codes and reasons that the proto files define.
var errorStatuses = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{engine.ErrFuel, codes.ResourceExhausted, reasonFuel},
	{engine.ErrMemory, codes.ResourceExhausted, reasonMemory},
	{engine.ErrSystem, codes.ResourceExhausted, reasonFull},
	{engine.ErrDeadline, codes.DeadlineExceeded, reasonCut},
	{engine.ErrSnapshot, codes.InvalidArgument, reasonSnapshot},
	{engine.ErrTrap, codes.Aborted, reasonTrapped},
	{wasmmeter.ErrMalformed, codes.InvalidArgument, reasonRefused},
}

// statusError converts an engine error to a gRPC status. fuel is the fuel that was used, and printed is the guest's
// output.
func statusError(err error, fuel int64, printed string) error {
	for _, c := range errorStatuses {
		if !errors.Is(err, c.err) {
			continue
		}
		metadata := map[string]string{factFuel: strconv.FormatInt(fuel, 10)}
		if printed != "" {
			metadata[factPrinted] = printed
		}
		return &rpc.Error{Code: c.code, Reason: c.reason, Facts: metadata, Err: err}
	}
	return err
}

// reportedError is an engine error that a worker has reported. It contains the worker's message.
type reportedError struct {
	kind    error
	message string
	// printed is what the guest printed in the failed step.
	printed string
}

// PrintedOf returns the output of a guest whose step or start failed with err.
func PrintedOf(err error) string {
	reported, _ := errors.AsType[reportedError](err)
	return reported.printed
}

func (e reportedError) Error() string {
	if e.message == e.kind.Error() {
		return e.message
	}
	return e.kind.Error() + ": " + e.message
}

func (e reportedError) Unwrap() error { return e.kind }

// engineError converts a gRPC status from a worker to an engine error, and returns the fuel that was used. It returns
// all other errors unchanged.
func engineError(err error) (fuel int64, _ error) {
	reason := rpc.Reason(err)
	for _, c := range errorStatuses {
		if c.reason == reason {
			fuel, _ = strconv.ParseInt(rpc.Facts(err)[factFuel], 10, 64)
			return fuel, reportedError{c.err, strings.TrimPrefix(status.Convert(err).Message(), c.err.Error()+": "), rpc.Facts(err)[factPrinted]}
		}
	}
	return 0, err
}
