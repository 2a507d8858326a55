package identity_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// maxSilence is the maximum time between two messages of a watch stream that the API promises.
const maxSilence = 500 * time.Millisecond

// A watchStream is the server's side of a watcher's stream in a synctest bubble. It records the messages that the
// service sends. It is safe for concurrent use.
type watchStream[M any] struct {
	grpc.ServerStream
	ctx   context.Context
	begun time.Time

	mu   sync.Mutex
	sent []sentMessage[M]
}

type sentMessage[M any] struct {
	at      time.Time
	after   time.Duration
	message *M
}

func newWatchStream[M any](ctx context.Context) *watchStream[M] {
	return &watchStream[M]{ctx: ctx, begun: time.Now()}
}

// Context implements grpc.ServerStream.
func (h *watchStream[M]) Context() context.Context { return h.ctx }

// Send implements grpc.ServerStreamingServer.
func (h *watchStream[M]) Send(m *M) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = append(h.sent, sentMessage[M]{at: time.Now(), after: time.Since(h.begun), message: m})
	return nil
}

func (h *watchStream[M]) messages() []sentMessage[M] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.sent)
}

func (h *watchStream[M]) wantHeartbeats(t *testing.T) {
	t.Helper()
	var last time.Duration
	for i, m := range h.messages() {
		if m.after-last > maxSilence {
			t.Errorf("before message %d there was an interval of %v", i, m.after-last)
		}
		last = m.after
	}
	if silence := time.Since(h.begun) - last; silence > maxSilence {
		t.Errorf("after the last message there was an interval of %v", silence)
	}
}
