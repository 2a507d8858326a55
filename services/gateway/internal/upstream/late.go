package upstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// latePause is the pause after a failed attempt to build a transport. During the pause, all requests fail with the
// error of that attempt.
const latePause = 5 * time.Second

// late is a transport that builds the actual transport when the first session is opened. Its Close method waits for all
// its goroutines.
type late struct {
	ListChanged

	kind    string
	build   func(ctx context.Context) (Transport, error)
	closing context.Context //nolint:containedctx // the context of the transport
	stop    context.CancelCauseFunc
	running sync.WaitGroup

	mu sync.Mutex // guards the fields below
	// built is the actual transport. It is nil until it has been built.
	built Transport
	// underWay is the attempt in progress, or nil if there is none.
	underWay *lateAttempt
	// failure is the error of the last attempt. failedAt is the time at which that attempt ended.
	failure  error
	failedAt time.Time
}

// lateAttempt is one attempt to build the transport. The results of the attempt are set before done is closed.
type lateAttempt struct {
	begun time.Time
	done  chan struct{}
	built Transport
	err   error
}

// Late returns a transport of the given kind. It calls build when the first session is opened. Concurrent sessions
// share one call to build. If build fails, it is called again for a later session. The errors of build should wrap a
// [CauseError]. The context for build is cancelled when the transport is closed.
func Late(kind string, build func(ctx context.Context) (Transport, error)) Transport {
	closing, stop := context.WithCancelCause(context.Background())
	return &late{kind: kind, build: build, closing: closing, stop: stop}
}

// Kind implements Transport.
func (l *late) Kind() string { return l.kind }

// Open implements Transport.
func (l *late) Open(ctx context.Context, key principal.Key, hello Request) (Conn, Answer, error) {
	built, err := l.transport(ctx)
	if err != nil {
		return nil, Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	return built.Open(ctx, key, hello)
}

// transport returns the actual transport, and builds it if necessary.
func (l *late) transport(ctx context.Context) (Transport, error) {
	l.mu.Lock()
	switch {
	case l.built != nil:
		defer l.mu.Unlock()
		return l.built, nil
	case l.closing.Err() != nil:
		defer l.mu.Unlock()
		return nil, ErrShutdown
	case l.failure != nil && time.Since(l.failedAt) < latePause:
		defer l.mu.Unlock()
		return nil, l.failure
	}
	if l.underWay == nil {
		attempt := &lateAttempt{begun: time.Now(), done: make(chan struct{})}
		l.underWay = attempt
		l.running.Go(func() { l.try(attempt) })
	}
	attempt := l.underWay
	l.mu.Unlock()
	select {
	case <-attempt.done:
		return attempt.built, attempt.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *late) try(attempt *lateAttempt) {
	built, err := l.build(l.closing)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.built, l.failure, l.failedAt, l.underWay = built, err, time.Now(), nil
	attempt.built, attempt.err = built, err
	close(attempt.done)
	if err == nil {
		l.running.Go(func() { l.forward(built.ToolsChanged()) })
	}
}

// forward forwards the built transport's signals that the server's tool list has changed.
func (l *late) forward(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			l.Notify()
		case <-l.closing.Done():
			return
		}
	}
}

// StartingSince implements [Starter].
func (l *late) StartingSince() time.Time {
	l.mu.Lock()
	built, attempt := l.built, l.underWay
	l.mu.Unlock()
	if attempt != nil {
		return attempt.begun
	}
	if starter, ok := built.(Starter); ok {
		return starter.StartingSince()
	}
	return time.Time{}
}

// Notice implements [Starter].
func (l *late) Notice() string {
	l.mu.Lock()
	built := l.built
	l.mu.Unlock()
	if starter, ok := built.(Starter); ok {
		return starter.Notice()
	}
	return ""
}

// Close implements Transport.
func (l *late) Close() error {
	l.mu.Lock()
	l.stop(ErrShutdown)
	l.mu.Unlock()
	l.running.Wait()
	if l.built == nil { // all goroutines that could set built have ended
		return nil
	}
	return l.built.Close()
}
