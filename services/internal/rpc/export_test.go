package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// Carried is a connection whose calls wait until a stream is open. They are then carried on the stream if possible.
type Carried struct{ *Conn }

// Invoke implements [grpc.ClientConnInterface].
func (c Carried) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	for end := time.Now().Add(10 * time.Second); c.carries(method) && c.stream() == nil && ctx.Err() == nil && time.Now().Before(end); {
		<-time.After(time.Millisecond)
	}
	return c.Conn.Invoke(ctx, method, args, reply, opts...)
}

// Sent returns the number of calls that were sent on the open stream.
func (c Carried) Sent() uint64 {
	on := c.open.Load()
	if on == nil {
		return 0
	}
	on.mu.Lock()
	defer on.mu.Unlock()
	return on.last
}

// InFlight returns the number of calls by people that are in flight on a server, and the number of bytes that they use.
func InFlight(s *Server) (calls, held int) {
	p := s.chain.people
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.usage {
		calls += l.calls
	}
	return calls, p.held
}
