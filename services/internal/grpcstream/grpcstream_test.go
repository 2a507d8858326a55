package grpcstream_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-mesh/sluice/services/internal/grpcstream"
)

var errAway = errors.New("away")

// messageStream is a stream that sends one of its words each second and then sends nothing more.
type messageStream struct {
	grpc.ClientStream

	ctx   context.Context //nolint:containedctx // belongs to the stream, as in gRPC
	words []string
}

func (s *messageStream) Recv() (*string, error) {
	if len(s.words) == 0 {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	time.Sleep(time.Second)
	word := s.words[0]
	s.words = s.words[1:]
	return &word, nil
}

func TestStream_ReopensBrokenAndSilentStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin, opened := time.Now(), []time.Duration(nil)
		var received []string
		var broken []error
		stream := grpcstream.Stream[string]{
			Open: func(ctx context.Context) (grpc.ServerStreamingClient[string], error) {
				opened = append(opened, time.Since(begin))
				switch len(opened) {
				case 1:
					return nil, errAway
				case 2:
					return &messageStream{ctx: ctx, words: []string{"one", "two"}}, nil
				default:
					return &messageStream{ctx: ctx, words: []string{"bad", "unheard"}}, nil
				}
			},
			Handle: func(word *string) error {
				if *word == "bad" {
					cancel()
					return errAway
				}
				received = append(received, *word)
				return nil
			},
			MaxSilence: 5 * time.Second,
			OnError:    func(err error) { broken = append(broken, err) },
		}
		stream.Run(ctx)
		if want := []string{"one", "two"}; !slices.Equal(received, want) {
			t.Errorf("heard %q, want %q", received, want)
		}
		// The second stream sends nothing after 2.2 s. It is treated as failed when MaxSilence (5 s) has passed, at 7.2
		// s.
		if want := []time.Duration{0, 200 * time.Millisecond, 7400 * time.Millisecond}; !slices.Equal(opened, want) {
			t.Errorf("opened after %v, want %v", opened, want)
		}
		if len(broken) != 2 || !errors.Is(broken[0], errAway) || broken[1].Error() != "the stream sent no message in time: context canceled" {
			t.Errorf("the stream broke with %q", broken)
		}
	})
}

func TestStream_ReopensWhenMessageIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		opened := 0
		stream := grpcstream.Stream[string]{
			Open: func(ctx context.Context) (grpc.ServerStreamingClient[string], error) {
				opened++
				return &messageStream{ctx: ctx, words: []string{"bad", "bad"}}, nil
			},
			Handle:     func(*string) error { return errAway },
			MaxSilence: time.Minute,
		}
		stream.Run(ctx)
		if opened != 3 { // a message takes 1 s, and 200 ms pass between two streams
			t.Errorf("opened %d times", opened)
		}
	})
}
