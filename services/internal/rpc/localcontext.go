package rpc

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// localContext is the server's context of a call inside the process. It has the client's deadline, cancellation and
// metadata, and the client's span as a remote parent. It does not have the client's values, because a server would not
// receive them over the network either. Most handlers never wait, so the timer is started only when a handler calls
// Done.
type localContext struct {
	client, values context.Context //nolint:containedctx // localContext is itself a context
	end            time.Time

	mu sync.Mutex
	// deadlineCtx is done when the call must end. It is nil until Done is called.
	deadlineCtx context.Context //nolint:containedctx // localContext is itself a context
	stop        func()
	// err is the first error that Err has returned. Later errors do not replace it.
	err error
}

// newLocalContext returns the server's context of a client's call. It returns an error if the deadline has passed.
func newLocalContext(client, from context.Context) (*localContext, error) {
	end, ok := client.Deadline()
	if !ok {
		end = time.Now().Add(clientDeadline)
	}
	end, err := handlerDeadline(end)
	if err != nil {
		return nil, err
	}
	values := from
	if md, ok := metadata.FromOutgoingContext(client); ok { // FromOutgoingContext returns a copy
		values = metadata.NewIncomingContext(values, md)
	}
	if span := trace.SpanContextFromContext(client); span.IsValid() {
		values = trace.ContextWithRemoteSpanContext(values, span)
	}
	return &localContext{client: client, values: values, end: end}, nil
}

// Deadline implements [context.Context].
func (c *localContext) Deadline() (time.Time, bool) { return c.end, true }

// Value implements [context.Context]. If deadlineCtx exists, Value looks up the key in deadlineCtx. Therefore contexts
// that are derived from this context find deadlineCtx, and no goroutine is needed to watch for cancellation.
func (c *localContext) Value(key any) any {
	c.mu.Lock()
	values := c.deadlineCtx
	c.mu.Unlock()
	if values == nil {
		values = c.values
	}
	return values.Value(key)
}

// Done implements [context.Context].
func (c *localContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadlineCtx == nil {
		timed, cancel := context.WithDeadline(c.values, c.end)
		unlink := context.AfterFunc(c.client, cancel)
		c.deadlineCtx, c.stop = timed, func() {
			unlink()
			cancel()
		}
		if c.err != nil {
			c.stop() // Err has already reported the end
		}
	}
	return c.deadlineCtx.Done()
}

// Err implements [context.Context].
func (c *localContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
	case c.deadlineCtx != nil:
		c.err = c.deadlineCtx.Err()
	case c.client.Err() != nil:
		c.err = c.client.Err()
	case !time.Now().Before(c.end):
		c.err = context.DeadlineExceeded
	}
	return c.err
}

// finish cancels the context. It is called when the call returns.
func (c *localContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadlineCtx != nil {
		c.stop()
	}
	if c.err == nil {
		c.err = context.Canceled
	}
}

// errWrongMessageType is returned to a service in this process that calls a method with a message of the wrong type.
var errWrongMessageType = errors.New("a message inside the process has the wrong type")

// inside returns a method for calls from services in this process. The method has the same interceptors as over the
// network, except for the limits for unauthenticated callers.
func (c *chain) inside(method string, impl any, handle grpc.MethodHandler) localMethod {
	return func(ctx context.Context, principal string, args any) (resp any, err error) {
		defer func() { err = c.finish(ctx, method, recover(), err) }()
		principals := metadata.ValueFromIncomingContext(ctx, authn.PrincipalKey)
		if principal != "" {
			principals = []string{principal}
		}
		admitted, err := c.gate.admit(ctx, method, principals)
		if err != nil {
			return nil, err
		}
		return handle(impl, admitted, leaveEmpty, func(ctx context.Context, empty any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if reflect.TypeOf(empty) != reflect.TypeOf(args) {
				return nil, errWrongMessageType
			}
			return c.checked(ctx, args, info, next)
		})
	}
}

// leaveEmpty does not decode anything into the message. Inside the process, the handler receives the client's message
// itself.
func leaveEmpty(any) error { return nil }
