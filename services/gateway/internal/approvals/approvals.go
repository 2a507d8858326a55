// Package approvals takes calls that need an approval from the approval request to the claim, which allows to send
// the call once, and reports the outcome to the approval service. Package pipeline uses it; calls that need no
// approval do not pass through it.
package approvals

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

// Clerk requests approvals for calls, claims them, and reports the outcomes to the approval service, which is another
// role. It is safe for concurrent use.
type Clerk struct {
	waiter *Waiter
	desk   *attempt.Desk
	log    *slog.Logger
	// draining is cancelled by drain when calls must no longer be held.
	draining context.Context
	drain    context.CancelFunc
	// cut is cancelled by stop when nothing more must be reported.
	cut  context.Context
	stop context.CancelFunc
	// telling are the reports in the background.
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

// Drain ends the holding of calls: they get their tickets.
func (k *Clerk) Drain() { k.drain() }

// Stop ends the holding of calls and cancels the reports in the background.
func (k *Clerk) Stop() {
	k.drain()
	k.stop()
}

// Wait waits until all outcomes are reported to the approval service. When ctx is cancelled, it cancels the remaining
// reports; a replay makes them later. No call may be under way.
func (k *Clerk) Wait(ctx context.Context) {
	defer context.AfterFunc(ctx, k.stop)()
	k.telling.Wait()
}

// Knows reports whether this gateway remembers an approval for a call of this tool by this agent on this server. If
// not, there is no approval of the call to look for.
func (k *Clerk) Knows(a attempt.Attempt) bool { return k.waiter.tickets.any(callOf(a).place()) }
