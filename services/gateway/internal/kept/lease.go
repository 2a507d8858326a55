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
	// renewEvery is how often the lease is renewed, and longest for how long one counts,
	// whatever policy says.
	renewEvery = 250 * time.Millisecond
	longest    = time.Second
	// drift is which part of a lease is not used, for clocks that differ in pace.
	drift = 100
	// silence is how long the policy role may say nothing before it counts as away. It
	// answers every request for a lease.
	silence = 2 * time.Second
)

// heard is what the policy role has said last, and when.
type heard struct {
	revision string
	at       time.Time
}

// Missing says why no revision is known to be active; empty where one is.
func (d *Decisions) Missing() string {
	last := d.heard.Load()
	switch {
	case last.isSilent():
		return "the policy service is away"
	case last.revision == "":
		return "no policy is active"
	default:
		return ""
	}
}

// Revision returns the revision that was active when the policy role was heard last; empty
// where that is long ago. No call is judged by an older one.
func (d *Decisions) Revision() string {
	last := d.heard.Load()
	if last.isSilent() {
		return ""
	}
	return last.revision
}

func (h *heard) isSilent() bool { return h == nil || time.Since(h.at) > silence }

// Leased returns the revision that is active now; empty where that is not known for sure.
func (d *Decisions) Leased() string {
	e := d.epoch.Load()
	if e == nil || !e.leased(d.clock()) {
		return ""
	}
	return e.revision
}

// Run keeps up with what decisions are made from, and has a lease on it, until ctx ends.
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

// take goes over to what a response says. It reports whether that is another epoch. asked is
// when the last request was sent.
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

// forgetIdle forgets what is kept for nobody.
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

// asking asks for leases on one stream, one after the other.
type asking struct {
	stream grpc.BidiStreamingClient[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse]
	clock  func() instant
	// sent is when the last request was sent, and taken the number of the last
	// response.
	sent  atomic.Pointer[instant]
	taken atomic.Uint64
	// answered says that the last request was answered, and changed that the epoch is another
	// one, which policy waits to be told.
	answered, changed chan struct{}
}

// run asks now and then, and whenever something has changed, until ctx ends.
func (a *asking) run(ctx context.Context) {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for number := uint64(1); ; number++ {
		sent := a.clock()
		a.sent.Store(&sent)
		if a.stream.Send(&policyv1.LeaseRevisionRequest{Number: number, Taken: a.taken.Load()}) != nil {
			return // whoever receives learns why
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

// took notes a response that was taken, and whether it has changed the epoch.
func (a *asking) took(resp *policyv1.LeaseRevisionResponse, changed bool) {
	a.taken.Store(resp.GetNumber())
	if changed {
		signal(a.changed)
	}
	if resp.GetRequest() != 0 {
		signal(a.answered)
	}
}

// signal says something once, however often.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
