package edge

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
)

const (
	// renewEvery is how often servers are listed, so that news of one are known before
	// what is known counts as old.
	renewEvery = discovery.Fresh - 30*time.Second
	// retryEvery is how soon one is asked again that could not be listed.
	retryEvery = 15 * time.Second
	// maxDiscovering is how many are listed at a time.
	maxDiscovering = 4
	// scanEvery is how often is looked for servers that are to be listed.
	scanEvery = time.Second
)

// Discover lists every server for the catalogue, and again on a schedule, until ctx ends; what
// is asked then ends with its session. A program that is started for it is listed again only
// while somebody uses it.
func (e *Edge) Discover(ctx context.Context) error {
	places := make(chan struct{}, maxDiscovering)
	due := make(map[string]time.Time, len(e.targets))
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		for _, name := range slices.Sorted(maps.Keys(e.targets)) {
			target := e.targets[name]
			if e.deps.Revision() == "" || time.Now().Before(due[name]) || target.asleep() { // without policy nobody takes what is listed
				continue
			}
			if found := target.found.Last(); found != nil && time.Since(found.At) < renewEvery {
				due[name] = found.At.Add(renewEvery)
				continue
			}
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			due[name] = time.Now().Add(retryEvery)
			go func() {
				defer func() { <-places }()
				_, _ = target.found.Found(ctx, scanEvery) // who needs it asks again, and says why it fails
			}()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// asleep reports whether a server is a program that was listed and that nobody has used
// since.
func (t Target) asleep() bool {
	found := t.found.Last()
	return found != nil && t.Server.Transport() == "stdio" && time.Unix(0, t.used.Load()).Before(found.At)
}
