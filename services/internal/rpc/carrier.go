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
	// maxCarried is how many calls of one stream are worked on at a time; the others wait
	// unread.
	maxCarried = 1024
	// maxBatch is how many calls or answers travel together, and maxCarriedPart how large a
	// call's request and its principal may be, as the contract says. What is larger goes by
	// itself.
	maxBatch = 32
	// maxResting is how many goroutines of a stream are kept for calls to come.
	maxResting     = 32
	maxCarriedPart = 16 << 10
)

// carried is a method whose calls may be carried.
type carried struct {
	serve   localMethod
	request protoreflect.MessageType
	// most is the largest request, in bytes.
	most int
}

// carrier implements meshv1.CarrierServiceServer: it makes what is carried the calls that
// they would be by themselves.
type carrier struct {
	meshv1.UnimplementedCarrierServiceServer

	server *Server
}

// CarryCalls implements meshv1.CarrierServiceServer. The calls end with their client; those
// that a server has begun when it stops are answered, if they end in the time that it has.
func (c carrier) CarryCalls(stream grpc.BidiStreamingServer[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) error {
	ctx := stream.Context()
	at, _ := peer.FromContext(ctx)
	if v := visitorOf(ctx); v != nil {
		if !v.carries.CompareAndSwap(false, true) {
			return exhausted("the connection carries calls on another stream")
		}
		defer v.carries.Store(false)
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
	on := &carrying{
		server: c.server, ctx: calls, from: peer.NewContext(context.Background(), at),
		answers: newBatches[*meshv1.CarriedAnswer](), room: make(chan struct{}, maxCarried),
		next: make(chan func()), ended: make(chan struct{}), open: make(map[uint64]context.CancelFunc),
	}
	read, written := make(chan error, 1), make(chan struct{})
	go func() { read <- on.read(stream) }() // which a server that stops does not wait for
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

// carrying is one stream and the calls on it.
type carrying struct {
	server *Server
	ctx    context.Context //nolint:containedctx // it ends with the stream
	// from has the role that calls, and nothing else.
	from    context.Context //nolint:containedctx // what every call of this stream is made of
	answers *batches[*meshv1.CarriedAnswer]
	room    chan struct{}
	working sync.WaitGroup
	// next hands a call to a goroutine that rests, until ended is closed.
	next    chan func()
	ended   chan struct{}
	resting atomic.Int32

	mu sync.Mutex
	// open ends calls, by their numbers; nil once no more are begun.
	open map[uint64]context.CancelFunc
}

// read begins what comes, until the stream ends.
func (on *carrying) read(stream grpc.BidiStreamingServer[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, call := range req.GetCalls() {
			if err := on.take(call); err != nil {
				return err
			}
		}
	}
}

// write sends what calls have come to, until they have ended and all is sent. Only then is
// there room for others: who does not read makes no more of them.
func (on *carrying) write(stream grpc.BidiStreamingServer[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) {
	var err error
	for {
		batch := on.answers.take()
		if len(batch) == 0 {
			return
		}
		if err == nil {
			err = stream.Send(&meshv1.CarryCallsResponse{Answers: batch}) // the stream's reader is told of its end too
		}
		for range batch {
			<-on.room
		}
	}
}

// end begins no more calls, and waits for those that were.
func (on *carrying) end() {
	on.mu.Lock()
	on.open = nil
	on.mu.Unlock()
	close(on.ended)
	on.working.Wait()
	on.answers.close()
}

// take begins a call, once there is room, or ends one. Its error ends the stream.
func (on *carrying) take(call *meshv1.CarriedCall) error {
	if call.GetGivenUp() {
		on.mu.Lock()
		defer on.mu.Unlock()
		if end, ok := on.open[call.GetId()]; ok {
			end()
		}
		return nil
	}
	select {
	case on.room <- struct{}{}:
	case <-on.ctx.Done():
		return on.ctx.Err()
	}
	ctx, end := context.WithTimeout(on.ctx, time.Duration(call.GetTimeoutMs())*time.Millisecond)
	on.mu.Lock()
	defer on.mu.Unlock()
	if on.open == nil {
		end()
		<-on.room
		return context.Canceled
	}
	on.open[call.GetId()] = end
	work := func() {
		answer := on.answer(ctx, call)
		on.mu.Lock()
		delete(on.open, call.GetId())
		on.mu.Unlock()
		end()
		on.answers.add(answer)
	}
	select {
	case on.next <- work:
	default: // none rests
		on.working.Go(func() { on.work(work) })
	}
	return nil
}

// work makes a call, and others as they come. A goroutine whose stack has grown is used again:
// the stack of a new one is copied several times until it is large enough, and that took a
// limiter a quarter of its time.
func (on *carrying) work(call func()) {
	defer on.resting.Add(-1)
	for {
		call()
		if on.resting.Add(1) > maxResting {
			return
		}
		select {
		case call = <-on.next:
			on.resting.Add(-1)
		case <-on.ended:
			return
		}
	}
}

// answer makes a call and says what came of it.
func (on *carrying) answer(ctx context.Context, call *meshv1.CarriedCall) *meshv1.CarriedAnswer {
	resp, err := on.serve(ctx, call)
	var text []byte
	if err == nil {
		if text, err = proto.Marshal(resp); err == nil {
			return &meshv1.CarriedAnswer{Id: call.GetId(), Result: &meshv1.CarriedAnswer_Response{Response: text}}
		}
	}
	text, _ = proto.Marshal(status.Convert(err).Proto()) // what can't be written has no text, and is a failure too
	return &meshv1.CarriedAnswer{Id: call.GetId(), Result: &meshv1.CarriedAnswer_Status{Status: text}}
}

// serve makes a call as the chain lets it.
func (on *carrying) serve(ctx context.Context, call *meshv1.CarriedCall) (proto.Message, error) {
	method, ok := on.server.carried[call.GetMethod()]
	if !ok {
		return nil, &Error{Code: codes.Unimplemented, Reason: "NOT_CARRIED", Err: fmt.Errorf("%q is no method whose calls are carried here", call.GetMethod())}
	}
	if size := len(call.GetRequest()); size > method.most {
		return nil, exhausted("a request of %s has at most %d bytes, this one %d", call.GetMethod(), method.most, size)
	}
	req := method.request.New().Interface()
	if err := proto.Unmarshal(call.GetRequest(), req); err != nil {
		return nil, status.Errorf(codes.Internal, "the request is no message of its type: %v", err)
	}
	if call.GetTraceparent() != "" {
		parent := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": call.GetTraceparent()})
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContextFromContext(parent))
	}
	in, err := newInside(ctx, on.from)
	if err != nil {
		return nil, err
	}
	defer in.finish()
	served, end := traced(in, on.server.deps.Trace, call.GetMethod(), false)
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

// batches are what waits to be sent together. Make one with [newBatches]. It is safe for
// concurrent use; one goroutine takes.
type batches[T any] struct {
	mu     sync.Mutex
	items  []T
	closed bool
	some   chan struct{}
}

func newBatches[T any]() *batches[T] { return &batches[T]{some: make(chan struct{}, 1)} }

// add adds what waits from now on. It reports whether there was room: for [maxCarried], until
// it is closed.
func (b *batches[T]) add(item T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.items) >= maxCarried {
		return false
	}
	b.items = append(b.items, item)
	b.tell()
	return true
}

// close lets nothing more in. What waits may be taken.
func (b *batches[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.tell()
}

func (b *batches[T]) tell() {
	select {
	case b.some <- struct{}{}:
	default: // somebody was told and has not looked yet
	}
}

// take waits for something and returns the first of it, at most [maxBatch]; nothing once it
// is closed and empty.
func (b *batches[T]) take() []T {
	for range b.some {
		b.mu.Lock()
		n := min(len(b.items), maxBatch)
		batch, closed := b.items[:n:n], b.closed
		if b.items = b.items[n:]; len(b.items) == 0 {
			b.items = nil // what was taken is not kept
		}
		if len(b.items) > 0 || closed {
			b.tell()
		}
		b.mu.Unlock()
		if n > 0 || closed {
			return batch
		}
	}
	return nil
}
