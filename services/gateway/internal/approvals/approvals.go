// Package approvals handles calls that need an approval. It requests the approval, waits for it, claims it, and reports
// the outcome of the call to the approval service. A claim allows the gateway to send the call once. Package pipeline
// uses this package; calls that need no approval do not pass through it.
package approvals

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

// Clerk requests approvals for calls, claims the approvals, and reports the outcomes to the approval service, which is
// another role. It is safe for concurrent use.
type Clerk struct {
	waiter *Waiter
	desk   *attempt.Desk
	log    *slog.Logger
	// draining is cancelled by Drain and Stop. After that, no call is held.
	draining context.Context
	drain    context.CancelFunc
	// cut is cancelled by Stop. After that, nothing is reported.
	cut  context.Context
	stop context.CancelFunc
	// telling counts the reports that run in the background.
	telling sync.WaitGroup
}

// New returns a clerk, or an error if a dependency is missing.
func New(waiter *Waiter, desk *attempt.Desk, log *slog.Logger) (*Clerk, error) {
	if waiter == nil || desk == nil || log == nil {
		return nil, errors.New("approvals: every dependency is required")
	}
	k := &Clerk{waiter: waiter, desk: desk, log: log}
	k.draining, k.drain = context.WithCancel(context.Background())
	k.cut, k.stop = context.WithCancel(context.Background())
	return k, nil
}

// Drain ends the holding of calls. Calls that are held get their tickets.
func (k *Clerk) Drain() { k.drain() }

// Stop ends the holding of calls and cancels the reports that run in the background.
func (k *Clerk) Stop() {
	k.drain()
	k.stop()
}

// Wait waits until all outcomes are reported to the approval service. When ctx is cancelled, Wait cancels the remaining
// reports; a replay makes them after the next start. No call may be in flight.
func (k *Clerk) Wait(ctx context.Context) {
	defer context.AfterFunc(ctx, k.stop)()
	k.telling.Wait()
}

// Knows reports whether this gateway remembers an approval for a call of this tool by this agent on this server. If it
// does not, the call has no earlier approval.
func (k *Clerk) Knows(a attempt.Attempt) bool { return k.waiter.tickets.any(callOf(a).place()) }
