// Package approvals obtains approvals for calls that need one. It requests the approval, waits for the decision, claims
// the approval, and reports the call's outcome to the approval service. A claim permits the gateway to send the call
// once. If the policy no longer requires an approval for a call, the package cancels an approval that was requested
// earlier for an equal call.
package approvals

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

// Manager requests approvals for calls, claims the approvals, and reports the outcomes to the approval service. It is
// safe for concurrent use.
type Manager struct {
	client   *Client
	attempts *attempt.Client
	log      *slog.Logger
	// draining is cancelled by Drain and Stop. From then on, the manager holds no calls.
	draining context.Context
	drain    context.CancelFunc
	// stopped is cancelled by Stop. From then on, the manager sends no reports.
	stopped context.Context
	stop    context.CancelFunc
	// reports tracks the reports that are sent in the background.
	reports sync.WaitGroup
}

// New returns a manager, or an error if a dependency is missing.
func New(client *Client, attempts *attempt.Client, log *slog.Logger) (*Manager, error) {
	if client == nil || attempts == nil || log == nil {
		return nil, errors.New("approvals: every dependency is required")
	}
	k := &Manager{client: client, attempts: attempts, log: log}
	k.draining, k.drain = context.WithCancel(context.Background())
	k.stopped, k.stop = context.WithCancel(context.Background())
	return k, nil
}

// Drain stops holding calls. The callers of held calls receive their tickets, which are refusals that contain the
// approval's id.
func (k *Manager) Drain() { k.drain() }

// Stop stops holding calls, and cancels the reports that are being sent in the background.
func (k *Manager) Stop() {
	k.drain()
	k.stop()
}

// Wait waits until all outcomes have been reported to the approval service. The caller must make sure that no call is
// in flight. If ctx is cancelled, Wait cancels the remaining reports, which the gateway sends after its next start,
// when it replays the journal.
func (k *Manager) Wait(ctx context.Context) {
	defer context.AfterFunc(ctx, k.stop)()
	k.reports.Wait()
}

// HasTicket reports whether this gateway remembers an approval for a call to the same tool by the same agent on the
// same server.
func (k *Manager) HasTicket(a attempt.Attempt) bool { return k.client.tickets.hasAny(callFor(a).key()) }
