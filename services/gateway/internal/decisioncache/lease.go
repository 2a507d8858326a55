package decisioncache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/grpcstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// renewEvery is how often the gateway renews the lease. longest limits how long a lease is used, even if the policy
	// service grants a longer lease.
	renewEvery = 250 * time.Millisecond
	longest    = time.Second
	// drift determines the part at the end of a lease that is not used, which is 1/drift of the lease's duration. This
	// margin is necessary because clocks run at different rates.
	drift = 100
	// silence is how long the policy service may send no message before it counts as unavailable. The service responds
	// to every lease request.
	silence = 2 * time.Second
)

type lastMessage struct {
	revision string
	at       time.Time
}

// UnavailableReason returns the reason why the gateway knows no active policy revision. It returns "" if the gateway
// knows one.
func (d *Cache) UnavailableReason() string {
	last := d.received.Load()
	switch {
	case last.isSilent():
		return "the policy service is unavailable"
	case last.revision == "":
		return "no policy is active"
	default:
		return ""
	}
}

// Revision returns the policy revision that was active when the policy service sent its last message. It returns "" if
// that message is more than 2 s old. No call is evaluated with an older revision than the one that Revision returns.
func (d *Cache) Revision() string {
	last := d.received.Load()
	if last.isSilent() {
		return ""
	}
	return last.revision
}

func (h *lastMessage) isSilent() bool { return h == nil || time.Since(h.at) > silence }

// LeasedRevision returns the policy revision for which the gateway has a lease, or "" if the gateway has no lease.
func (d *Cache) LeasedRevision() string {
	e := d.epoch.Load()
	if e == nil || !e.isLeased(d.clock()) {
		return ""
	}
	return e.revision
}

// Run follows the policy service's epochs and renews the lease until ctx is cancelled.
func (d *Cache) Run(ctx context.Context) error {
	var helpers sync.WaitGroup
	defer helpers.Wait()
	helpers.Go(func() { d.forgetIdle(ctx) })
	var asks *leaseStream
	stream := grpcstream.Stream[policyv1.LeaseRevisionResponse]{
		Open: func(ctx context.Context) (grpc.ServerStreamingClient[policyv1.LeaseRevisionResponse], error) {
			stream, err := d.deps.Policy.LeaseRevision(ctx)
			if err != nil {
				return nil, err
			}
			now := &leaseStream{stream: stream, clock: d.clock, answered: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
			helpers.Go(func() { now.run(ctx) })
			asks = now
			return stream, nil
		},
		Handle: func(resp *policyv1.LeaseRevisionResponse) error {
			asks.noteResponse(resp, d.applyResponse(resp, asks.sent.Load()))
			return nil
		},
		MaxSilence: silence,
	}
	stream.Run(ctx)
	return nil
}

// applyResponse applies a response, which contains a lease or notifies the gateway of a change. It reports whether the
// response starts a new epoch. requested is when the last request was sent.
func (d *Cache) applyResponse(resp *policyv1.LeaseRevisionResponse, requested *instant) (changed bool) {
	e := d.epoch.Load()
	if e == nil || e.name != resp.GetEpoch() {
		changed = true
		e = &epoch{name: resp.GetEpoch(), revision: resp.GetRevision().GetId(), scopes: newServerScopes(resp.GetNeededScopes()), people: make(map[principal.Key]*personEntries)}
		d.epoch.Store(e)
	}
	if lease := min(resp.GetLease().AsDuration(), longest); resp.GetRequest() != 0 && e.name != "" && lease > 0 {
		until := requested.after(lease - lease/drift)
		e.until.Store(&until)
	}
	d.received.Store(&lastMessage{revision: resp.GetRevision().GetId(), at: time.Now()})
	return changed
}

func (d *Cache) forgetIdle(ctx context.Context) {
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

// leaseStream sends lease requests on a stream. It sends each request after the previous one was answered.
type leaseStream struct {
	stream grpc.BidiStreamingClient[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse]
	clock  func() instant
	// sent is when the last request was sent. applied is the number of the last response that the cache has applied.
	sent    atomic.Pointer[instant]
	applied atomic.Uint64
	// answered signals that the last request was answered. changed signals that a new epoch has started, which the
	// gateway must confirm to the policy service with a request.
	answered, changed chan struct{}
}

// run requests a lease at the interval renewEvery, and whenever a new epoch starts, until ctx is cancelled.
func (a *leaseStream) run(ctx context.Context) {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for number := uint64(1); ; number++ {
		sent := a.clock()
		a.sent.Store(&sent)
		if a.stream.Send(&policyv1.LeaseRevisionRequest{Number: number, Taken: a.applied.Load()}) != nil {
			return // the receiving goroutine handles the error
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

func (a *leaseStream) noteResponse(resp *policyv1.LeaseRevisionResponse, changed bool) {
	a.applied.Store(resp.GetNumber())
	if changed {
		signal(a.changed)
	}
	if resp.GetRequest() != 0 {
		signal(a.answered)
	}
}

// signal sends a value on the channel, unless the channel's buffer is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
