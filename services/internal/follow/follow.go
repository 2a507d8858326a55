// Package follow keeps up with what another role tells in a stream, whatever becomes of
// the stream.
package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
)

// retry is how long to wait before a stream that broke is opened again.
const retry = 200 * time.Millisecond

// errSilent means that a stream said nothing for too long.
var errSilent = errors.New("it says nothing")

// Stream is a stream whose other end says something now and then, be it that nothing
// has changed.
type Stream[T any] struct {
	// Open opens it, and Take takes each message. What either refuses breaks it.
	Open func(context.Context) (grpc.ServerStreamingClient[T], error)
	Take func(*T) error
	// Silence is how long it may say nothing before it counts as broken.
	Silence time.Duration
	// Broken hears each time why it broke; nil where nobody asks.
	Broken func(error)
}

// Run takes messages until ctx ends. Where the stream breaks it is opened again, for as
// long as that takes.
func (s *Stream[T]) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.once(ctx)
		if ctx.Err() == nil && s.Broken != nil {
			s.Broken(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// once takes the messages of one stream.
func (s *Stream[T]) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(s.Silence, func() { cancel(errSilent) })
	defer silence.Stop()
	stream, err := s.Open(ctx)
	for err == nil {
		var message *T
		if message, err = stream.Recv(); err == nil {
			silence.Reset(s.Silence)
			err = s.Take(message)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
