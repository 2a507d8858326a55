package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	meshv1 "github.com/sluice-mesh/sluice/gen/sluice/mesh/v1"
)

const (
	// maxCarried limits how many calls of one stream are processed at the same time. While that many calls are being
	// processed, the server reads no further calls.
	maxCarried = 1024
	// maxBatch limits how many calls or answers one message contains.
	maxBatch = 32
	// maxIdleWorkers limits how many idle goroutines of a stream wait for the next call.
	maxIdleWorkers = 32
	// maxCarriedPart is the maximum size in bytes of a carried call's request, and of its principal. A larger call is
	// sent as a separate RPC, as sluice.mesh.v1 specifies.
	maxCarriedPart = 16 << 10
)

// carried describes a method whose calls may be carried on a shared stream. See [Conn].
type carried struct {
	serve   localMethod
	request protoreflect.MessageType
	most    int
}

// carrier implements [meshv1.CarrierServiceServer]. It processes each carried call as if it were a separate RPC.
type carrier struct {
	meshv1.UnimplementedCarrierServiceServer

	server *Server
}

// CarryCalls implements [meshv1.CarrierServiceServer]. When the client's stream ends, the calls are cancelled. When the
// server stops, it still answers calls that end within drainTimeout.
func (c carrier) CarryCalls(stream grpc.BidiStreamingServer[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) error {
	ctx := stream.Context()
	at, _ := peer.FromContext(ctx)
	if v := netPeerOf(ctx); v != nil {
		if !v.carriesCalls.CompareAndSwap(false, true) {
			return exhaustedError("the connection carries calls on another stream")
		}
		defer v.carriesCalls.Store(false)
	}
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errStopping) {
			time.AfterFunc(drainTimeout, cancel)
			return
		}
		cancel()
	})()
	on := &serverStream{
		server: c.server, ctx: calls, from: peer.NewContext(context.Background(), at),
		answers: newBatches[*meshv1.CarriedAnswer](), slots: make(chan struct{}, maxCarried),
		next: make(chan func()), ended: make(chan struct{}), open: make(map[uint64]context.CancelFunc),
	}
	read, written := make(chan error, 1), make(chan struct{})
	go func() { read <- on.read(stream) }() // a server that stops does not wait for this goroutine
	go func() {
		defer close(written)
		on.write(stream)
	}()
	defer func() {
		on.end()
		<-written
	}()
	select {
	case err := <-read:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serverStream is one stream and the calls on it.
type serverStream struct {
	server *Server
	ctx    context.Context //nolint:containedctx // the context ends with the stream
	// from contains only the peer of the stream, which is the client's identity (a service of the mesh).
	from    context.Context //nolint:containedctx // the parent of the context of every call on this stream
	answers *batches[*meshv1.CarriedAnswer]
	slots   chan struct{}
	working sync.WaitGroup
	// next passes a call to an idle goroutine. ended is closed to make idle goroutines end.
	next        chan func()
	ended       chan struct{}
	idleWorkers atomic.Int32

	mu sync.Mutex
	// open contains functions that cancel calls, by call id. It is nil when no more calls may start.
	open map[uint64]context.CancelFunc
}

// read starts the received calls. It returns when the stream ends.
func (on *serverStream) read(stream grpc.BidiStreamingServer[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, call := range req.GetCalls() {
			if err := on.accept(call); err != nil {
				return err
			}
		}
	}
}

// write sends answers until all calls have ended and all answers are sent. A call uses its slot until its answer has
// been sent. Therefore a client that does not read answers can't start more calls.
func (on *serverStream) write(stream grpc.BidiStreamingServer[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) {
	var err error
	for {
		batch := on.answers.take()
		if len(batch) == 0 {
			return
		}
		if err == nil {
			err = stream.Send(&meshv1.CarryCallsResponse{Answers: batch}) // if Send fails, read notices that the stream has ended
		}
		for range batch {
			<-on.slots
		}
	}
}

// end prevents further calls and waits for the calls that have already started.
func (on *serverStream) end() {
	on.mu.Lock()
	on.open = nil
	on.mu.Unlock()
	close(on.ended)
	on.working.Wait()
	on.answers.close()
}

// accept waits for a free slot and starts a call, or cancels a call that the client has given up. If it returns an
// error, the stream must end.
func (on *serverStream) accept(call *meshv1.CarriedCall) error {
	if call.GetGivenUp() {
		on.mu.Lock()
		defer on.mu.Unlock()
		if end, ok := on.open[call.GetId()]; ok {
			end()
		}
		return nil
	}
	select {
	case on.slots <- struct{}{}:
	case <-on.ctx.Done():
		return on.ctx.Err()
	}
	ctx, end := context.WithTimeout(on.ctx, time.Duration(call.GetTimeoutMs())*time.Millisecond)
	on.mu.Lock()
	defer on.mu.Unlock()
	if on.open == nil {
		end()
		<-on.slots
		return context.Canceled
	}
	on.open[call.GetId()] = end
	work := func() {
		answer := on.execute(ctx, call)
		on.mu.Lock()
		delete(on.open, call.GetId())
		on.mu.Unlock()
		end()
		on.answers.add(answer)
	}
	select {
	case on.next <- work:
	default: // no goroutine is idle
		on.working.Go(func() { on.work(work) })
	}
	return nil
}

// work executes a call, and then further calls in the same goroutine, because the stack of this goroutine has already
// grown. The stack of a new goroutine would be copied several times until it is large enough, which would use a quarter
// of the rate limit service's processor time.
func (on *serverStream) work(call func()) {
	defer on.idleWorkers.Add(-1)
	for {
		call()
		if on.idleWorkers.Add(1) > maxIdleWorkers {
			return
		}
		select {
		case call = <-on.next:
			on.idleWorkers.Add(-1)
		case <-on.ended:
			return
		}
	}
}

func (on *serverStream) execute(ctx context.Context, call *meshv1.CarriedCall) *meshv1.CarriedAnswer {
	resp, err := on.serve(ctx, call)
	var text []byte
	if err == nil {
		if text, err = proto.Marshal(resp); err == nil {
			return &meshv1.CarriedAnswer{Id: call.GetId(), Result: &meshv1.CarriedAnswer_Response{Response: text}}
		}
	}
	text, _ = proto.Marshal(status.Convert(err).Proto()) // a status that can't be encoded becomes empty, which is an error too
	return &meshv1.CarriedAnswer{Id: call.GetId(), Result: &meshv1.CarriedAnswer_Status{Status: text}}
}

// serve executes a call, including the interceptors.
func (on *serverStream) serve(ctx context.Context, call *meshv1.CarriedCall) (proto.Message, error) {
	method, ok := on.server.carried[call.GetMethod()]
	if !ok {
		return nil, &Error{Code: codes.Unimplemented, Reason: "NOT_CARRIED", Err: fmt.Errorf("%q is not a method whose calls can be carried", call.GetMethod())}
	}
	if size := len(call.GetRequest()); size > method.most {
		return nil, exhaustedError("a request of %s may have at most %d bytes, but this request has %d", call.GetMethod(), method.most, size)
	}
	req := method.request.New().Interface()
	if err := proto.Unmarshal(call.GetRequest(), req); err != nil {
		return nil, status.Errorf(codes.Internal, "the request is not a message of its type: %v", err)
	}
	if call.GetTraceparent() != "" {
		parent := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": call.GetTraceparent()})
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContextFromContext(parent))
	}
	in, err := newLocalContext(ctx, on.from)
	if err != nil {
		return nil, err
	}
	defer in.finish()
	served, end := startSpan(in, on.server.deps.Trace, call.GetMethod(), false)
	resp, err := method.serve(served, call.GetPrincipal(), req)
	end(err)
	if err != nil {
		return nil, err
	}
	msg, ok := resp.(proto.Message)
	if !ok {
		return nil, status.Error(codes.Internal, "internal error")
	}
	return msg, nil
}

// batches is a queue of items that are sent in batches. Create one with [newBatches]. It is safe for concurrent use,
// but only one goroutine may call [batches.take].
type batches[T any] struct {
	mu     sync.Mutex
	items  []T
	closed bool
	ready  chan struct{}
}

func newBatches[T any]() *batches[T] { return &batches[T]{ready: make(chan struct{}, 1)} }

// add adds an item. It returns false if [maxCarried] items are waiting or the queue is closed.
func (b *batches[T]) add(item T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.items) >= maxCarried {
		return false
	}
	b.items = append(b.items, item)
	b.signal()
	return true
}

// close makes the queue refuse further items. [batches.take] still returns the waiting items.
func (b *batches[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.signal()
}

func (b *batches[T]) signal() {
	select {
	case b.ready <- struct{}{}:
	default: // a signal is already pending
	}
}

// take waits for items and returns the first items, at most [maxBatch]. If the queue is closed and empty, it returns no
// items.
func (b *batches[T]) take() []T {
	for range b.ready {
		b.mu.Lock()
		n := min(len(b.items), maxBatch)
		batch, closed := b.items[:n:n], b.closed
		if b.items = b.items[n:]; len(b.items) == 0 {
			b.items = nil // release the memory of the items
		}
		if len(b.items) > 0 || closed {
			b.signal()
		}
		b.mu.Unlock()
		if n > 0 || closed {
			return batch
		}
	}
	return nil
}
