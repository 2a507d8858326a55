package rpc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	meshv1 "github.com/sluice-mesh/sluice/gen/sluice/mesh/v1"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

const (
	// reopenDelay is the time between the failure of a stream and the opening of a new stream.
	reopenDelay = 250 * time.Millisecond
	// hangTimeout is how long a stream can be without an answer before the client assumes that the server hangs.
	hangTimeout = 100 * time.Millisecond
)

// A Conn is a connection to a service of the mesh. If the proto file allows it for a method, calls to the method are
// carried on a shared stream that stays open. If there is no such stream, these calls are sent as separate RPCs. If the
// stream fails, calls that have no answer yet are sent again as separate RPCs, because these methods are safe to
// repeat.
type Conn struct {
	*grpc.ClientConn

	side clientSide
	// methods caches for each method, by its full name, whether calls to the method are carried.
	methods sync.Map
	ctx     context.Context //nolint:containedctx // the context ends with the connection
	close   context.CancelFunc

	// open is the current stream, or nil if there is none.
	open atomic.Pointer[clientStream]
	mu   sync.Mutex
	// next is the earliest time at which a stream may be opened. opening is true while a stream is being opened or is
	// open.
	next    time.Time
	opening bool
}

func newConn(cc *grpc.ClientConn, side clientSide) *Conn {
	c := &Conn{ClientConn: cc, side: side}
	c.ctx, c.close = context.WithCancel(context.Background())
	return c
}

// Close closes the connection and ends all calls on it.
func (c *Conn) Close() error {
	c.close()
	return c.ClientConn.Close()
}

// Invoke implements [grpc.ClientConnInterface].
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.carries(method) {
		err := c.carry(ctx, method, args, reply)
		if !errors.Is(err, errNotCarried) {
			return err
		}
	}
	return c.ClientConn.Invoke(ctx, method, args, reply, opts...)
}

func (c *Conn) carries(method string) bool {
	if known, ok := c.methods.Load(method); ok {
		return known.(bool)
	}
	table, err := methodTerms(serviceOf(method))
	carries := err == nil && table[method].carried
	c.methods.Store(method, carries)
	return carries
}

// errNotCarried means that a call was not carried and must be sent as a separate RPC.
var errNotCarried = errors.New("the call was not carried")

// carry sends a call on the open stream and waits for the answer. It returns [errNotCarried] if there is no stream, or
// if the stream fails before the answer arrives.
func (c *Conn) carry(ctx context.Context, method string, args, reply any) (err error) {
	on := c.stream()
	req, ok1 := args.(proto.Message)
	resp, ok2 := reply.(proto.Message)
	if _, says := metadata.FromOutgoingContext(ctx); on == nil || !ok1 || !ok2 || says {
		return errNotCarried
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, clientDeadline)
		defer cancel()
	}
	principal, err := c.side.principal(ctx, method)
	if err != nil {
		return err
	}
	text, err := proto.Marshal(req)
	if err != nil || len(text) > maxCarriedPart || len(principal) > maxCarriedPart {
		return errNotCarried
	}
	ctx, end := startSpan(ctx, c.side.deps.Trace, method, true)
	defer func() { end(err) }()
	answer, err := on.call(ctx, &meshv1.CarriedCall{
		Method: method, Request: text, Principal: principal,
		Traceparent: telemetry.TraceParent(trace.SpanContextFromContext(ctx)),
	})
	if err != nil {
		return err
	}
	return decodeAnswer(answer, resp)
}

func decodeAnswer(answer *meshv1.CarriedAnswer, resp proto.Message) error {
	switch result := answer.GetResult().(type) {
	case *meshv1.CarriedAnswer_Response:
		if err := proto.Unmarshal(result.Response, resp); err != nil {
			return status.Errorf(codes.Internal, "the answer is not a message of its type: %v", err)
		}
		return nil
	case *meshv1.CarriedAnswer_Status:
		var said spb.Status
		if err := proto.Unmarshal(result.Status, &said); err != nil || said.GetCode() == int32(codes.OK) {
			return status.Error(codes.Internal, "the answer is neither a response nor an error")
		}
		return status.FromProto(&said).Err()
	default:
		return status.Error(codes.Internal, "the answer is empty")
	}
}

// stream returns the open stream. If there is none, stream starts to open one and returns nil.
func (c *Conn) stream() *clientStream {
	if on := c.open.Load(); on != nil {
		return on
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.opening && !time.Now().Before(c.next) && c.ctx.Err() == nil {
		c.opening = true
		go c.run()
	}
	return nil
}

// run opens a stream and reads from it until the stream fails.
func (c *Conn) run() {
	ctx, cancel := context.WithCancel(c.ctx)
	defer func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.opening, c.next = false, time.Now().Add(reopenDelay)
	}()
	stream, err := meshv1.NewCarrierServiceClient(c.ClientConn).CarryCalls(ctx, grpc.WaitForReady(false))
	if err != nil {
		return
	}
	on := &clientStream{end: cancel, waiting: newBatches[*meshv1.CarriedCall](), open: make(map[uint64]waiter)}
	c.open.Store(on)
	defer on.failAll()
	defer c.open.Store(nil)
	go on.write(stream)
	for {
		resp, err := stream.Recv()
		if err != nil {
			return
		}
		on.deliver(resp.GetAnswers())
	}
}

// clientStream is one stream and the calls on it. It is safe for concurrent use.
type clientStream struct {
	end     func()
	waiting *batches[*meshv1.CarriedCall]

	mu sync.Mutex
	// open contains the callers that are waiting for answers, by call id. It is nil after the stream has failed.
	open map[uint64]waiter
	last uint64
	// answersReceived is the number of answers that were received while their callers were waiting.
	answersReceived uint64
}

// waiter is a caller that waits for an answer until deadline at the latest.
type waiter struct {
	done     chan<- *meshv1.CarriedAnswer
	deadline time.Time
}

// call sends a request over the stream and waits for its answer. If no answer to any request arrives on the stream
// before the deadline of ctx, call closes the stream. In this case, the server probably hangs, and another replica
// might work.
func (l *clientStream) call(ctx context.Context, call *meshv1.CarriedCall) (*meshv1.CarriedAnswer, error) {
	done, begin := make(chan *meshv1.CarriedAnswer, 1), time.Now()
	ends, _ := ctx.Deadline()
	l.mu.Lock()
	if l.open == nil {
		l.mu.Unlock()
		return nil, errNotCarried
	}
	l.last++
	call.Id = l.last
	l.open[call.GetId()] = waiter{done, ends}
	received := l.answersReceived
	l.mu.Unlock()
	if !l.waiting.add(call) {
		l.abandon(call.GetId())
		return nil, errNotCarried
	}
	select {
	case answer := <-done:
		if answer == nil {
			return nil, errNotCarried
		}
		return answer, nil
	case <-ctx.Done():
	}
	switch now := l.abandon(call.GetId()); {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		l.waiting.add(&meshv1.CarriedCall{Id: call.GetId(), GivenUp: true}) // if the queue is full, the server ends the call at its deadline
	case now == received && time.Since(begin) > hangTimeout:
		l.end()
	}
	return nil, status.FromContextError(ctx.Err()).Err()
}

// abandon ends a caller's wait for an answer. It returns the number of answers that have been received so far.
func (l *clientStream) abandon(id uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, id)
	return l.answersReceived
}

// write sends waiting calls until the stream fails. It does not report that failure, because [Conn.run] notices the
// failure, too.
func (l *clientStream) write(stream grpc.BidiStreamingClient[meshv1.CarryCallsRequest, meshv1.CarryCallsResponse]) {
	for {
		batch := l.waiting.take()
		if len(batch) == 0 {
			return
		}
		if batch = l.removeExpired(batch); len(batch) == 0 {
			continue
		}
		if stream.Send(&meshv1.CarryCallsRequest{Calls: batch}) != nil {
			return
		}
	}
}

// removeExpired returns the calls whose callers are still waiting, each with its remaining time, and the cancellations.
// This prevents a slow server from executing calls that their callers have abandoned.
func (l *clientStream) removeExpired(batch []*meshv1.CarriedCall) []*meshv1.CarriedCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return slices.DeleteFunc(batch, func(call *meshv1.CarriedCall) bool {
		if call.GetGivenUp() {
			return false
		}
		waiting, waits := l.open[call.GetId()]
		left := min(waiting.deadline.Sub(now), maxDeadline).Milliseconds()
		call.TimeoutMs = uint32(max(0, left))
		return !waits || left <= 0
	})
}

// deliver passes answers to the waiting callers. It ignores answers for which no caller is waiting.
func (l *clientStream) deliver(answers []*meshv1.CarriedAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, answer := range answers {
		if waiting, ok := l.open[answer.GetId()]; ok {
			delete(l.open, answer.GetId())
			l.answersReceived++
			waiting.done <- answer
		}
	}
}

// failAll makes the callers of all unanswered calls send their calls again as separate RPCs.
func (l *clientStream) failAll() {
	l.waiting.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, waiting := range l.open {
		waiting.done <- nil
	}
	l.open = nil
}
