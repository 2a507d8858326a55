// Package grpcstream receives the messages of a gRPC stream from another service, and reopens the stream when it fails.
package grpcstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
)

// retryDelay is the time between the failure of a stream and the attempt to reopen it.
const retryDelay = 200 * time.Millisecond

// ErrSilent means that a stream sent no message for too long. Use errors.Is to test for it.
var ErrSilent = errors.New("the stream sent no message in time")

// Stream is a stream on which the server regularly sends a message, even if there is nothing new to report.
type Stream[T any] struct {
	// Open opens the stream. Handle processes each message. If either function returns an error, the stream fails.
	Open   func(context.Context) (grpc.ServerStreamingClient[T], error)
	Handle func(*T) error
	// MaxSilence limits the time between two messages. If no message arrives in this time, the stream is treated as
	// failed.
	MaxSilence time.Duration
	// OnError is called with the reason each time the stream fails. It may be nil.
	OnError func(error)
}

// Run receives messages until ctx is done. Whenever the stream fails, Run reopens it.
func (s *Stream[T]) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.receive(ctx)
		if ctx.Err() == nil && s.OnError != nil {
			s.OnError(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

// receive opens one stream and receives messages until the stream fails.
func (s *Stream[T]) receive(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(s.MaxSilence, func() { cancel(ErrSilent) })
	defer silence.Stop()
	stream, err := s.Open(ctx)
	for err == nil {
		var message *T
		if message, err = stream.Recv(); err == nil {
			silence.Reset(s.MaxSilence)
			err = s.Handle(message)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
