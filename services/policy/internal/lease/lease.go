// Package lease knows who may still use what was decided before a change. It decides
// nothing, and has no clock of its own.
package lease

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Longest is for how long a lease may be.
const Longest = time.Second

// ErrDisorder means that somebody has taken what was not sent.
var ErrDisorder = errors.New("a response is taken that was not sent")

// A Register has every lease that was given out. Epochs are numbers that grow. It is safe
// for concurrent use.
type Register struct {
	mu      sync.Mutex
	holders map[*Holder]struct{}
	// freed is closed, and made again, when somebody gives up a lease.
	freed chan struct{}
}

// New returns a register without leases.
func New() *Register {
	return &Register{holders: make(map[*Holder]struct{}), freed: make(chan struct{})}
}

// A Holder is somebody who is told of epochs, by responses with numbers.
type Holder struct {
	register *Register
	// last is the number of the last response, and of those that were taken none before
	// taken counts any more.
	last, taken uint64
	grants      []grant
	gone        bool
}

// A grant is until when decisions of an epoch may be used, as a response has said.
type grant struct {
	response, epoch uint64
	until           time.Time
}

// Enter adds a holder, which has no lease, and forgets those that have left and have none
// any more.
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

// Leave says that the holder is told nothing any more. What it was told holds until it is
// over.
func (h *Holder) Leave() {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.gone = true
}

// Tell numbers the next response. What it says comes from active, which is called under
// the register's lock: the epoch that counts now, and until when it may be used; zero is
// for no longer than was said before. So a change that happens before [Register.Before] is
// either told here, or the lease is seen there.
func (h *Holder) Tell(now time.Time, active func() (epoch uint64, until time.Time)) (response uint64) {
	h.register.mu.Lock()
	defer h.register.mu.Unlock()
	h.last++
	if n := len(h.grants); n > 1 { // who takes nothing does not pile up what is over
		over := func(g grant) bool { return !g.until.After(now) }
		h.grants = append(slices.DeleteFunc(h.grants[:n-1], over), h.grants[n-1])
	}
	epoch, until := active()
	if n := len(h.grants); n > 0 && h.grants[n-1].epoch == epoch { // one entry an epoch
		h.grants[n-1].response = h.last
		if until.After(h.grants[n-1].until) {
			h.grants[n-1].until = until
		}
	} else {
		h.grants = append(h.grants, grant{h.last, epoch, until})
	}
	return h.last
}

// Took says that the holder has taken a response, and uses no decisions of another epoch
// than that response's.
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
	// Epochs come in order, each as one entry with its newest response: what stands before
	// the entry that response is of, or was of, is not used any more.
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

// Before returns until when somebody may use decisions of an epoch before this one, as far
// as is known now; freed is closed when somebody gives up a lease. The zero time is never.
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
