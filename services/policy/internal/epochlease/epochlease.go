// Package epochlease records epoch leases. All decisions of an epoch are made with the same policies and the same
// catalog. An epoch lease is the period in which a gateway may reuse decisions of an epoch from its cache. After a
// change, the policy service uses this package to wait until no gateway can reuse older decisions. The package has no
// clock: callers pass the time.
package epochlease

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// MaxDuration is the maximum duration of a lease.
const MaxDuration = time.Second

// ErrDisorder means that a holder acknowledged a response that was never sent to it.
var ErrDisorder = errors.New("the gateway acknowledged a response that was not sent")

// A Register records all leases. Epochs are numbers, and a later epoch has a greater number. A Register is safe for
// concurrent use.
type Register struct {
	mu      sync.Mutex
	holders map[*Holder]struct{}
	// freed is closed and replaced when a holder no longer uses a lease.
	freed chan struct{}
}

// New returns a register without leases.
func New() *Register {
	return &Register{holders: make(map[*Holder]struct{}), freed: make(chan struct{})}
}

// A Holder is a gateway that receives epochs in numbered responses. It may hold leases on them.
type Holder struct {
	register *Register
	// last is the number of the last response. The field taken is the number of the newest response that the holder has
	// acknowledged.
	last, taken uint64
	// grants contains one grant for each epoch, ordered by epoch.
	grants []grant
	// left is true after Leave has been called.
	left bool
}

// A grant is a lease on the decisions of an epoch. The field response is the number of the newest response that
// contained the epoch. The field until is the time at which the lease expires, or zero if no lease was granted.
type grant struct {
	response, epoch uint64
	until           time.Time
}

// Enter adds a holder without a lease. It also removes holders that have left and whose leases have expired.
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

// Leave records that the holder receives no more responses. The holder's leases remain valid until they expire.
func (h *Holder) Leave() {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.left = true
}

// Record records the next response to the holder and returns its number. While the register is locked, Record calls the
// function active, which returns the current epoch and the time at which the lease expires. If this time is zero, the
// lease is not extended.
//
// Because of the lock, Record and [Register.OlderUntil] run one after the other. If the active epoch changes before
// OlderUntil is called, either this response contains the new epoch, or OlderUntil takes this lease into account.
func (h *Holder) Record(now time.Time, active func() (epoch uint64, until time.Time)) (response uint64) {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.last++
	if n := len(h.grants); n > 1 { // remove ended leases, which would accumulate if the holder acknowledged no response
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

// Acknowledge records that the holder has processed a response. From now on, the holder uses only decisions of the
// epoch in this response. Acknowledge returns [ErrDisorder] if the response was never sent.
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
	// Each grant contains the number of the newest response with its epoch. The holder no longer uses an epoch if the
	// newest response with this epoch is older than the acknowledged response.
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

// OlderUntil returns the time at which the last lease on an epoch older than the given epoch expires. It returns the
// zero time if no such lease is valid at now. The channel freed is closed when a holder no longer uses a lease. The
// caller should then call OlderUntil again, because the result may be earlier.
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
