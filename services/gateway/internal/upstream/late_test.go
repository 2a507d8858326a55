//go:build unix

package upstream_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// lateBuilt is a transport that counts its Close calls.
type lateBuilt struct {
	scripted

	upstream.ListChanged

	closed atomic.Int32
}

func (b *lateBuilt) ToolsChanged() <-chan struct{} { return b.ListChanged.ToolsChanged() }
func (b *lateBuilt) Close() error                  { b.closed.Add(1); return nil }

func newBuilt() *lateBuilt {
	b := new(lateBuilt)
	b.answer = well
	return b
}

func openLate(t *testing.T, over upstream.Transport) error {
	t.Helper()
	_, _, err := over.Open(t.Context(), ana, upstream.Request{})
	return err
}

func TestLate_BuildsOnceForAllSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var builds atomic.Int32
		b := newBuilt()
		over := upstream.Late("http", func(context.Context) (upstream.Transport, error) {
			builds.Add(1)
			time.Sleep(time.Second) // in the bubble's time
			return b, nil
		})
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := openLate(t, over); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		b.Notify()
		<-over.ToolsChanged()
		if err := over.Close(); err != nil || builds.Load() != 1 || b.closed.Load() != 1 {
			t.Errorf("%d builds, %d closed, %v", builds.Load(), b.closed.Load(), err)
		}
	})
}

func TestLate_TriesAgainAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var builds atomic.Int32
		locked := errors.New("locked")
		over := upstream.Late("http", func(context.Context) (upstream.Transport, error) {
			if builds.Add(1) == 1 {
				return nil, locked
			}
			return newBuilt(), nil
		})
		for range 3 {
			if err := openLate(t, over); !errors.Is(err, locked) || !errors.Is(err, upstream.ErrNeverSent) {
				t.Errorf("before the pause has ended: %v", err)
			}
		}
		time.Sleep(5 * time.Second) // in the bubble's time
		if err := openLate(t, over); err != nil || builds.Load() != 2 {
			t.Errorf("after the pause: %v, %d builds", err, builds.Load())
		}
		if err := over.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestLate_CloseEndsABuildInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := upstream.Late("stdio", func(ctx context.Context) (upstream.Transport, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, _, err := over.Open(ctx, ana, upstream.Request{})
				done <- err
			}()
		}
		synctest.Wait()
		if starter, ok := over.(upstream.Starter); !ok || starter.StartingSince().IsZero() {
			t.Error("the build is not reported as a start")
		}
		cancel(upstream.ErrCancelled) // of one client; the build goes on for the other
		if err := <-done; !errors.Is(err, upstream.ErrCancelled) || !errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("the client that has cancelled: %v", err)
		}
		if err := over.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, upstream.ErrShutdown) {
			t.Errorf("the client that waits: %v", err)
		}
		if err := openLate(t, over); !errors.Is(err, upstream.ErrShutdown) {
			t.Errorf("after Close: %v", err)
		}
	})
}
