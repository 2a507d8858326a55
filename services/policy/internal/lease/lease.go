// Package lease records until when gateways may use decisions that were made before a change. The policy service uses
// it. It makes no decisions and has no clock of its own.
package lease

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Longest is the longest lease.
const Longest = time.Second

// ErrDisorder means that a holder has taken a response that was not sent.
var ErrDisorder = errors.New("the response that was taken was never sent")

// A Register holds all leases. Epochs are numbers that grow. It is safe for concurrent use.
type Register struct {
	mu      sync.Mutex
	holders map[*Holder]struct{}
	// freed is closed, and replaced, when a holder gives up a lease.
	freed chan struct{}
}

// New returns a register without leases.
func New() *Register {
	return &Register{holders: make(map[*Holder]struct{}), freed: make(chan struct{})}
}

// A Holder receives epochs in numbered responses.
type Holder struct {
	register *Register
	// last is the number of the last response, and taken that of the newest response that the holder has taken.
	last, taken uint64
	grants      []grant
	gone        bool
}

// A grant says until when decisions of an epoch may be used, as of a response.
type grant struct {
	response, epoch uint64
	until           time.Time
}

// Enter adds a holder without a lease, and removes holders that have left and whose leases are over.
func (r *Register) Enter(now time.Time) *Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h := range r.holders {
		if h.gone && !slices.ContainsFunc(h.grants, func(g grant) bool { return g.until.After(now) }) {
			delete(r.holders, h)
		}
	}
	h := &Holder{register: r}
	r.holders[h] = struct{}{}
	return h
}

// Leave says that the holder gets no more responses. Its leases stay until they are over.
func (h *Holder) Leave() {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.gone = true
}

// Tell numbers the next response. It calls active under the register's lock for the content: the current epoch, and
// until when it may be used; the zero time does not extend the lease. A change that happens before [Register.Before]
// is thus either sent here, or the lease is seen there.
func (h *Holder) Tell(now time.Time, active func() (epoch uint64, until time.Time)) (response uint64) {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.last++
	if n := len(h.grants); n > 1 { // a holder that takes nothing must not accumulate leases that are over
		over := func(g grant) bool { return !g.until.After(now) }
		h.grants = append(slices.DeleteFunc(h.grants[:n-1], over), h.grants[n-1])
	}
	epoch, until := active()
	if n := len(h.grants); n > 0 && h.grants[n-1].epoch == epoch { // one entry for each epoch
		h.grants[n-1].response = h.last
		if until.After(h.grants[n-1].until) {
			h.grants[n-1].until = until
		}
	} else {
		h.grants = append(h.grants, grant{h.last, epoch, until})
	}
	return h.last
}

// Took says that the holder has taken a response, and uses only decisions of that response's epoch.
func (h *Holder) Took(response uint64) error {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	if response > h.last {
		return ErrDisorder
	}
	if response <= h.taken {
		return nil
	}
	h.taken = response
	// Epochs are in order, each as one entry with its newest response. Entries before the one that the response belongs
	// to, or belonged to, are not used any more.
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

// Before returns until when a holder may use decisions of an epoch before this one, as far as is known now; zero if
// none may. freed is closed when a holder gives up a lease.
func (r *Register) Before(epoch uint64, now time.Time) (until time.Time, freed <-chan struct{}) {
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
