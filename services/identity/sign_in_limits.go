package identity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	"github.com/sluice-mesh/sluice/services/internal/connlimit"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/lru"
)

const (
	// maxSignIns limits how many requests without a credential are processed at the same time. maxSignInsOfClient limits
	// how many of these requests come from one client. A client is an IPv4 address or an IPv6 network.
	maxSignIns, maxSignInsOfClient = 16, 4
	// signInRate is the number of requests without a credential that are accepted per second. signInBurst is the number of
	// requests that are accepted at once after an idle period. clientRate and clientBurst are the same limits for one
	// client.
	signInRate, signInBurst = 20, 100
	clientRate, clientBurst = 5, 30
	// maxClients is the maximum number of clients whose requests are counted separately.
	maxClients = 4096
	// signInPatience is how long a request waits until it may be processed.
	signInPatience = time.Second
	// failureInterval is the minimum time between two messages about failed sign-ins without a known person.
	failureInterval = time.Minute
)

var errBusy = errors.New("too many sign-ins are in progress: try again")

// signInLimits limits the work for callers without a credential. It is safe for concurrent use.
type signInLimits struct {
	requests, verifications *fairqueue.Queue[netip.Prefix]
	total                   *rate.Limiter
	clients                 *lru.Cache[netip.Prefix, *rate.Limiter]
	// failures counts failed sign-ins without a known person.
	failures failureCount
}

func newSignInLimits() (*signInLimits, error) {
	requests, err1 := fairqueue.New[netip.Prefix](maxSignIns, maxSignInsOfClient)
	verifications, err2 := fairqueue.New[netip.Prefix](max(1, fairqueue.Processors()/4), 1)
	return &signInLimits{
		requests: requests, verifications: verifications, total: rate.NewLimiter(signInRate, signInBurst),
		clients: lru.New[netip.Prefix](maxClients, maxClients, func(*rate.Limiter) int { return 1 }),
	}, errors.Join(err1, err2)
}

// clientOf returns the client that has sent a call.
func clientOf(ctx context.Context) netip.Prefix {
	if from, ok := peer.FromContext(ctx); ok {
		return connlimit.ClientOf(from.Addr)
	}
	return netip.Prefix{}
}

// begin waits until a request may be processed. The caller must call the returned function once.
func (l *signInLimits) begin(ctx context.Context) (end func(), err error) {
	from := clientOf(ctx)
	if !l.limiterOf(from).Allow() || !l.total.Allow() {
		return nil, signInStatus(errBusy)
	}
	return l.wait(ctx, l.requests, from)
}

// beginVerification waits until the signature of a token may be verified. The caller must call the returned function
// once.
func (l *signInLimits) beginVerification(ctx context.Context) (end func(), err error) {
	return l.wait(ctx, l.verifications, clientOf(ctx))
}

func (l *signInLimits) wait(ctx context.Context, in *fairqueue.Queue[netip.Prefix], from netip.Prefix) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, signInPatience)
	defer cancel()
	if end, err = in.Acquire(ctx, from); err != nil {
		return nil, signInStatus(fmt.Errorf("%w: %w", errBusy, err))
	}
	return end, nil
}

// limiterOf returns the limiter of a client. If a new client sends two requests at the same time, one of the requests
// might not be counted.
func (l *signInLimits) limiterOf(from netip.Prefix) *rate.Limiter {
	if known, ok := l.clients.Get(from); ok {
		return known
	}
	added := rate.NewLimiter(clientRate, clientBurst)
	l.clients.Put(from, added)
	return added
}

// failureCount limits the log messages about failures that callers without a credential can cause. The zero value is
// ready for use. It is safe for concurrent use.
type failureCount struct {
	mu    sync.Mutex
	count int
	next  time.Time
}

// add counts a failure. If a message should be logged now, add returns the number of failures since the last message.
// Otherwise it returns 0.
func (f *failureCount) add(now time.Time) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count++; now.Before(f.next) {
		return 0
	}
	count := f.count
	f.count, f.next = 0, now.Add(failureInterval)
	return count
}
