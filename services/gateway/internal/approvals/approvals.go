// Package approvals brings a call that needs a person from the question to the right to
// send it, once, and tells the approval service what came of it. A call that no person is
// asked about passes none of it.
package approvals

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

// Clerk takes calls through their approvals: it has people asked, claims, and tells the
// approval service, which is another role, what came of them. It is safe for concurrent use.
type Clerk struct {
	waiter *Waiter
	desk   *attempt.Desk
	log    *slog.Logger
	// draining ends when calls are to be held no longer, which drain makes it.
	draining context.Context
	drain    context.CancelFunc
	// cut ends when nobody is to be told any more, which stop makes it.
	cut  context.Context
	stop context.CancelFunc
	// telling are the outcomes that are being told.
	telling sync.WaitGroup
}

// New returns a clerk.
func New(waiter *Waiter, desk *attempt.Desk, log *slog.Logger) (*Clerk, error) {
	if waiter == nil || desk == nil || log == nil {
		return nil, errors.New("approvals: every dependency is required")
	}
	k := &Clerk{waiter: waiter, desk: desk, log: log}
	k.draining, k.drain = context.WithCancel(context.Background())
	k.cut, k.stop = context.WithCancel(context.Background())
	return k, nil
}

// Drain lets go of the calls that wait for people: they get their tickets.
func (k *Clerk) Drain() { k.drain() }

// Stop lets go of the calls that wait for people, and ends what is being told.
func (k *Clerk) Stop() {
	k.drain()
	k.stop()
}

// Wait waits until the approval service was told of every call, or ctx ends; what it
// was not told then a replay tells it. No call may be under way.
func (k *Clerk) Wait(ctx context.Context) {
	defer context.AfterFunc(ctx, k.stop)()
	k.telling.Wait()
}

// Knows reports whether people were asked about a call of that tool, by this agent on this
// server, of late: where they were not there is no approval of the call.
func (k *Clerk) Knows(a attempt.Attempt) bool { return k.waiter.tickets.any(callOf(a).place()) }
