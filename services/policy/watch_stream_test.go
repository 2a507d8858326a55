package policy_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// longestSilence is the largest interval between messages that the contracts promise to watchers.
const longestSilence = 500 * time.Millisecond

// A hearing is the stream of a watcher inside a synctest bubble. It is safe for concurrent use.
type hearing[M any] struct {
	grpc.ServerStream
	ctx   context.Context
	begun time.Time

	mu    sync.Mutex
	heard []heard[M]
}

type heard[M any] struct {
	at      time.Time
	after   time.Duration
	message *M
}

func newHearing[M any](ctx context.Context) *hearing[M] {
	return &hearing[M]{ctx: ctx, begun: time.Now()}
}

// Context implements grpc.ServerStream.
func (h *hearing[M]) Context() context.Context { return h.ctx }

// Send implements grpc.ServerStreamingServer.
func (h *hearing[M]) Send(m *M) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, heard[M]{at: time.Now(), after: time.Since(h.begun), message: m})
	return nil
}

func (h *hearing[M]) all() []heard[M] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.heard)
}

// wantBeats checks that no interval between messages was longer than promised.
func (h *hearing[M]) wantBeats(t *testing.T) {
	t.Helper()
	var last time.Duration
	for i, m := range h.all() {
		if m.after-last > longestSilence {
			t.Errorf("before message %d there was a silence of %v", i, m.after-last)
		}
		last = m.after
	}
	if silence := time.Since(h.begun) - last; silence > longestSilence {
		t.Errorf("after the last message there was a silence of %v", silence)
	}
}
