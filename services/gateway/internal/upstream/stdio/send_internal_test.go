package stdio

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// newUnwritten returns a process without the goroutine that writes lines. The test itself receives the lines.
func newUnwritten() *process {
	return &process{
		server: &transport{cfg: Config{Name: "fake"}}, lines: make(chan outgoing),
		writeEnded: make(chan struct{}), done: make(chan struct{}),
	}
}

// lateContext is a context that is cancelled immediately before the sender waits for the result of its line.
type lateContext struct {
	context.Context

	cancel context.CancelFunc
	// passed is called before the context is cancelled.
	passed func()
	waits  int
}

func newLateContext(t *testing.T, passed func()) *lateContext {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return &lateContext{Context: ctx, cancel: cancel, passed: passed}
}

func (c *lateContext) Done() <-chan struct{} {
	if c.waits++; c.waits == 2 {
		c.passed()
		c.cancel()
	}
	return c.Context.Done()
}

// A line was refused because its permit has expired, and its caller stops waiting. The line is reported as never sent.
func TestSubmit_ReportsARefusedLineAsNeverSentIfTheCallerLeaves(t *testing.T) {
	t.Parallel()
	for range 50 { // the result and the end of the context are ready at the same time
		p, refused := newUnwritten(), make(chan struct{})
		go func() {
			out := <-p.lines
			out.done <- errPermitEnded
			close(refused)
		}()
		err := p.submit(newLateContext(t, func() { <-refused }), newOutgoing([]byte("x\n"), nil, new(lineStart)))
		if !errors.Is(err, upstream.ErrNeverSent) || !errors.Is(err, context.Canceled) {
			t.Fatalf("the line is %v, want that it was never sent", err)
		}
	}
}

// countingPermit is a permit that expires once. It counts how often HasEnded is called.
type countingPermit struct {
	renewals, asked atomic.Int64
	renewed         func()
}

func (p *countingPermit) Renew() error {
	if p.renewals.Add(1) == 2 {
		p.renewed()
	}
	return nil
}

func (p *countingPermit) HasEnded() bool {
	p.asked.Add(1)
	return p.renewals.Load() < 2
}

// The permits of many waiting lines expire. The senders check their permits only when one line could not be written, so
// each sender checks its permit only once.
func TestSend_WaitingSendersLookOnceWhenAPermitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiting = 20
		p, order, renewed := newUnwritten(), new(lineOrder), make(chan struct{})
		first := order.enter() // a line that is being written
		var permits []*countingPermit
		sent := make(chan error, waiting)
		for range waiting {
			permit := &countingPermit{renewed: func() { <-renewed }}
			permits = append(permits, permit)
			go func() { sent <- p.send(t.Context(), order, []byte("x\n"), permit) }()
			synctest.Wait()
		}
		order.announcePermitEnded()
		synctest.Wait() // all permits are being renewed
		close(renewed)
		synctest.Wait() // all senders wait for their turn
		for i, permit := range permits {
			if n := permit.asked.Load(); n != 1 {
				t.Errorf("sender %d looked at its permit %d times", i, n)
			}
		}
		first.leave()
		for range waiting {
			out := <-p.lines
			out.done <- nil
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
	})
}

// Many senders wait for an earlier line, and then stop waiting. They leave no goroutines behind, and a later line still
// waits for the earlier line.
func TestLineOrder_SendersThatLeaveLeaveNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	var order lineOrder
	first := order.enter()
	for range 100 {
		order.enter().leave()
	}
	second, third := order.enter(), order.enter()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("there are %d goroutines, and were %d", n, before)
	}
	if !isClosed(first.before) || isClosed(second.before) || isClosed(third.before) {
		t.Error("the lines are not in order")
	}
	second.leave()
	if isClosed(third.before) {
		t.Error("the third line does not wait for the first one")
	}
	first.leave()
	if !isClosed(third.before) {
		t.Error("the third line waits for no line")
	}
	third.leave()
	if last := order.enter(); !isClosed(last.before) {
		t.Error("a line waits in an empty order")
	}
}

// The caller stops waiting before its request is sent, so the process does not owe an answer to that request.
func TestDo_ProcessOwesNoAnswerToARequestThatWasNeverSent(t *testing.T) {
	t.Parallel()
	p := newUnwritten()
	p.calls = callTable{byID: make(map[int64]*pendingCall), abandoned: make(map[int64]struct{})}
	m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}`), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	call := p.register(m, nil, false)
	call.lines = new(lineOrder)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.do(ctx, call, nil); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("the request is %v, want that it was never sent", err)
	}
	if len(p.calls.abandoned) != 0 || len(p.calls.byID) != 0 {
		t.Errorf("the process owes the answers to %v", p.calls.abandoned)
	}
}
