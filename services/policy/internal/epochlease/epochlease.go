// Package epochlease records the epoch leases of gateways. All decisions in one epoch use the same policies and the
// same catalog. An epoch lease is the period in which a gateway may reuse an epoch's decisions from its cache. After a
// change, the policy service uses this package to wait until no gateway can reuse older decisions. The package does not
// read the clock, so callers pass the current time.
package epochlease

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// MaxDuration is the maximum duration of a lease.
const MaxDuration = time.Second

// ErrDisorder means that a gateway acknowledged a response that was never sent to it.
var ErrDisorder = errors.New("the gateway acknowledged a response that was not sent")

// A Register records the leases of all gateways. Epochs are numbers, and later epochs have greater numbers. A Register
// is safe for concurrent use.
type Register struct {
	mu      sync.Mutex
	holders map[*Holder]struct{}
	// freed is closed and replaced when a gateway stops using a lease before the lease expires.
	freed chan struct{}
}

// New returns a register without leases.
func New() *Register {
	return &Register{holders: make(map[*Holder]struct{}), freed: make(chan struct{})}
}

// A Holder is a gateway that receives numbered responses. Each response contains an epoch, and can grant a lease for
// this epoch.
type Holder struct {
	register *Register
	// last is the number of the newest response that was sent. taken is the number of the newest response that the gateway
	// acknowledged.
	last, taken uint64
	// grants contains one grant for each epoch whose decisions the gateway may use, ordered by epoch.
	grants []grant
	// left is true after a call to Leave.
	left bool
}

// A grant is a lease for one epoch.
type grant struct {
	// response is the number of the newest response that contained the epoch.
	response, epoch uint64
	// until is the time when the lease expires. It is zero if no lease was granted.
	until time.Time
}

// Enter adds a gateway without a lease. It also removes the gateways that have left and whose leases have expired.
func (r *Register) Enter(now time.Time) *Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h := range r.holders {
		if h.left && !slices.ContainsFunc(h.grants, func(g grant) bool { return g.until.After(now) }) {
			delete(r.holders, h)
		}
	}
	h := &Holder{register: r}
	r.holders[h] = struct{}{}
	return h
}

// Leave must be called after the last response to the gateway. The gateway's leases remain valid until they expire.
func (h *Holder) Leave() {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.left = true
}

// Record records that the next response is sent to the gateway, and returns the number of the response. It calls
// active, which returns the current epoch and the time when the lease for this epoch expires. If this time is zero, the
// response does not extend the lease.
//
// The register is locked while active runs, so that Record and [Register.OlderUntil] can't run at the same time. If the
// active epoch changes before a call to OlderUntil, then either this response contains the new epoch, or OlderUntil
// includes this lease.
func (h *Holder) Record(now time.Time, active func() (epoch uint64, until time.Time)) (response uint64) {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.last++
	if n := len(h.grants); n > 1 { // remove expired leases, which would accumulate if the gateway acknowledged no response
		over := func(g grant) bool { return !g.until.After(now) }
		h.grants = append(slices.DeleteFunc(h.grants[:n-1], over), h.grants[n-1])
	}
	epoch, until := active()
	if n := len(h.grants); n > 0 && h.grants[n-1].epoch == epoch {
		h.grants[n-1].response = h.last
		if until.After(h.grants[n-1].until) {
			h.grants[n-1].until = until
		}
	} else {
		h.grants = append(h.grants, grant{h.last, epoch, until})
	}
	return h.last
}

// Acknowledge records that the gateway has processed a response. After this, the gateway uses only decisions in the
// epoch of this response or in later epochs. Acknowledge returns [ErrDisorder] if the response was never sent.
func (h *Holder) Acknowledge(response uint64) error {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	if response > h.last {
		return ErrDisorder
	}
	if response <= h.taken {
		return nil
	}
	h.taken = response
	// Each grant contains the number of the newest response with its epoch. If this response is older than the
	// acknowledged one, the gateway has stopped using the epoch.
	keep := 0
	for keep < len(h.grants)-1 && h.grants[keep].response < response {
		keep++
	}
	if keep > 0 {
		h.grants = append(h.grants[:0], h.grants[keep:]...)
		close(h.register.freed)
		h.register.freed = make(chan struct{})
	}
	return nil
}

// OlderUntil returns the latest time when a lease for an epoch before the given epoch expires. It returns the zero time
// if no such lease is valid. The returned channel is closed when a gateway stops using a lease early. The caller should
// then call OlderUntil again, because the result may be earlier.
func (r *Register) OlderUntil(epoch uint64, now time.Time) (until time.Time, freed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h := range r.holders {
		for _, g := range h.grants {
			if g.epoch < epoch && g.until.After(now) && g.until.After(until) {
				until = g.until
			}
		}
	}
	return until, r.freed
}
