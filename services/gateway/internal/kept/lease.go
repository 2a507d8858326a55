package kept

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/follow"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// renewEvery is how often the lease is renewed, and longest is how long a lease is used at most, even if policy
	// grants more.
	renewEvery = 250 * time.Millisecond
	longest    = time.Second
	// drift is the divisor for the part of a lease that is not used, because clocks differ in pace: 1 percent.
	drift = 100
	// silence is how long the policy role may send nothing before it counts as unavailable. It answers every request
	// for a lease.
	silence = 2 * time.Second
)

// heard is the last message of the policy role.
type heard struct {
	revision string
	at       time.Time
}

// Missing says why no revision is known to be active; empty if one is known.
func (d *Decisions) Missing() string {
	last := d.heard.Load()
	switch {
	case last.isSilent():
		return "the policy service is unavailable"
	case last.revision == "":
		return "no policy is active"
	default:
		return ""
	}
}

// Revision returns the revision that was active when the policy role last sent a message; empty if that is longer
// than 2 s ago. No call is judged by an older revision.
func (d *Decisions) Revision() string {
	last := d.heard.Load()
	if last.isSilent() {
		return ""
	}
	return last.revision
}

func (h *heard) isSilent() bool { return h == nil || time.Since(h.at) > silence }

// Leased returns the revision on which the gateway has a lease; empty if it has none.
func (d *Decisions) Leased() string {
	e := d.epoch.Load()
	if e == nil || !e.leased(d.clock()) {
		return ""
	}
	return e.revision
}

// Run follows the epochs of the policy role and renews the lease, until ctx is cancelled.
func (d *Decisions) Run(ctx context.Context) error {
	var helpers sync.WaitGroup
	defer helpers.Wait()
	helpers.Go(func() { d.forgetIdle(ctx) })
	var asks *asking
	stream := follow.Stream[policyv1.LeaseRevisionResponse]{
		Open: func(ctx context.Context) (grpc.ServerStreamingClient[policyv1.LeaseRevisionResponse], error) {
			stream, err := d.deps.Policy.LeaseRevision(ctx)
			if err != nil {
				return nil, err
			}
			now := &asking{stream: stream, clock: d.clock, answered: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
			helpers.Go(func() { now.run(ctx) })
			asks = now
			return stream, nil
		},
		Take: func(resp *policyv1.LeaseRevisionResponse) error {
			asks.took(resp, d.take(resp, asks.sent.Load()))
			return nil
		},
		Silence: silence,
	}
	stream.Run(ctx)
	return nil
}

// take applies a response and reports whether it begins another epoch. asked is when the last request was sent.
func (d *Decisions) take(resp *policyv1.LeaseRevisionResponse, asked *instant) (changed bool) {
	e := d.epoch.Load()
	if e == nil || e.name != resp.GetEpoch() {
		changed = true
		e = &epoch{name: resp.GetEpoch(), revision: resp.GetRevision().GetId(), shares: make(map[principal.Key]*share)}
		d.epoch.Store(e)
	}
	if lease := min(resp.GetLease().AsDuration(), longest); resp.GetRequest() != 0 && e.name != "" && lease > 0 {
		until := asked.after(lease - lease/drift)
		e.until.Store(&until)
	}
	d.heard.Store(&heard{revision: resp.GetRevision().GetId(), at: time.Now()})
	return changed
}

// forgetIdle removes the decisions for idle principals.
func (d *Decisions) forgetIdle(ctx context.Context) {
	tick := time.NewTicker(idleAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if e := d.epoch.Load(); e != nil {
				e.forget(d.clock())
			}
		}
	}
}

// asking requests leases on one stream, one after the other.
type asking struct {
	stream grpc.BidiStreamingClient[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse]
	clock  func() instant
	// sent is when the last request was sent, and taken is the number of the last response that was applied.
	sent  atomic.Pointer[instant]
	taken atomic.Uint64
	// answered reports that the last request was answered. changed reports another epoch, of which policy waits for a
	// confirmation.
	answered, changed chan struct{}
}

// run requests a lease every renewEvery and after each change of the epoch, until ctx is cancelled.
func (a *asking) run(ctx context.Context) {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for number := uint64(1); ; number++ {
		sent := a.clock()
		a.sent.Store(&sent)
		if a.stream.Send(&policyv1.LeaseRevisionRequest{Number: number, Taken: a.taken.Load()}) != nil {
			return // the receiver gets the cause
		}
		select {
		case <-ctx.Done():
			return
		case <-a.answered:
		}
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		case <-renew.C:
		}
	}
}

// took notes a response that was applied, and whether it has changed the epoch.
func (a *asking) took(resp *policyv1.LeaseRevisionResponse, changed bool) {
	a.taken.Store(resp.GetNumber())
	if changed {
		signal(a.changed)
	}
	if resp.GetRequest() != 0 {
		signal(a.answered)
	}
}

// signal puts a signal in c unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
