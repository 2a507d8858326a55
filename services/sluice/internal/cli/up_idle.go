package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice"
)

// defaultIdle is how long a mesh that a client started runs without connections before it exits.
const defaultIdle = 30 * time.Minute

// waitIdle waits until no client has been connected for the given time and there is no pending work. It returns false
// if ctx is done first. The function busy describes the pending work.
func waitIdle(ctx context.Context, busy func(context.Context) (string, error), connections *sluice.Connections, idle time.Duration, log *slog.Logger) bool {
	connections.Begin()
	const checks = 10 // the number of checks in each idle period
	tick := time.NewTicker(max(idle/checks, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		since, free := connections.IdleSince()
		if !free || time.Since(since) < idle {
			continue
		}
		work, err := busy(ctx)
		if err != nil {
			log.WarnContext(ctx, "the mesh stays, because it does not know whether it has work", "error", err)
			continue
		}
		if work == "" {
			log.WarnContext(ctx, "the mesh ends, because no client was connected for a while; the next client starts it again", "idle", idle)
			return true
		}
	}
}
