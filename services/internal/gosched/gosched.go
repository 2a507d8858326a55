// Package gosched lets long computations yield the processor to other goroutines, and raises GOMAXPROCS during long
// computations.
package gosched

import (
	"cmp"
	"os"
	"runtime"
	"sync"
	"time"
)

const (
	// yieldAfter is how long a computation runs before it lets other goroutines run.
	yieldAfter = 250 * time.Microsecond
	// maxYieldAfter limits how long a computation runs before it yields. After a call to [Yield], a computation may run
	// for as long as that call took, but at most maxYieldAfter. If it could run only for yieldAfter each time, many
	// short computations could delay it without limit.
	maxYieldAfter = 10 * time.Millisecond
	stepsPerCheck = 64
)

// Work is a computation that may use a processor for a long time. The runtime would preempt it only after 10 ms, and
// other goroutines would wait meanwhile. Therefore Work yields the processor between its steps. The zero value is ready
// to use. A Work must be used by only one goroutine.
type Work struct {
	// Longest limits how long the work uses a processor before it yields. The default is 10 ms.
	Longest time.Duration

	steps int
	began time.Time
	// rested is the duration of the last call to [Yield].
	rested time.Duration
}

// Step ends a step that took at most a few microseconds. Step yields the processor if the computation has used the
// processor for long enough.
func (s *Work) Step() {
	if s.steps++; s.steps%stepsPerCheck == 0 {
		s.Part()
	}
}

// Part is like [Work.Step], but for a longer step.
func (s *Work) Part() {
	switch {
	case s.began.IsZero():
		s.began = time.Now()
	case time.Since(s.began) > max(yieldAfter, min(s.rested, cmp.Or(s.Longest, maxYieldAfter))):
		NoteLongWork()
		rest := time.Now()
		Yield()
		s.began = time.Now()
		s.rested = s.began.Sub(rest)
	}
}

// Yield lets all other runnable goroutines run, including goroutines for which network data has arrived.
// [runtime.Gosched] is not enough, because the runtime polls the network only if no goroutine is runnable, or after 10
// ms, and the goroutine that calls Gosched is always runnable. Therefore Yield also waits until the runtime has polled
// the network, by reading from a pipe that becomes readable immediately.
func Yield() {
	if poller == nil || !poller.wait() {
		runtime.Gosched()
	}
}

// netPoller is a pipe that the runtime polls together with the network.
type netPoller struct {
	in, out *os.File

	mu sync.Mutex
	// waiting contains the mutexes that are unlocked when the byte in the pipe has been read. They are mutexes because a
	// channel from outside a synctest bubble can't wake a goroutine inside the bubble. broken is true if no more bytes
	// will be read.
	waiting []*sync.Mutex
	broken  bool
}

// poller is the netPoller of the process, or nil if there is none. It is created when the process starts, before the
// process can run out of file descriptors.
var poller = newPoller()

func newPoller() *netPoller {
	in, out, err := os.Pipe()
	if err != nil {
		return nil
	}
	b := &netPoller{in: in, out: out}
	go b.listen()
	return b
}

// wait writes a byte to the pipe and waits until the byte has been read. It returns false if the pipe is broken.
func (b *netPoller) wait() bool {
	woken := new(sync.Mutex)
	woken.Lock()
	b.mu.Lock()
	if b.broken {
		b.mu.Unlock()
		return false
	}
	b.waiting = append(b.waiting, woken)
	first := len(b.waiting) == 1
	b.mu.Unlock()
	if first { // otherwise the byte has already been written
		if _, err := b.out.Write([]byte{0}); err != nil {
			b.wake(true)
		}
	}
	woken.Lock()
	return true
}

func (b *netPoller) listen() {
	for one := make([]byte, 1); ; {
		_, err := b.in.Read(one)
		runtime.Gosched() // goroutines with data from the network run first
		if b.wake(err != nil); err != nil {
			return
		}
	}
}

func (b *netPoller) wake(broken bool) {
	b.mu.Lock()
	waiting := b.waiting
	b.waiting, b.broken = nil, b.broken || broken
	b.mu.Unlock()
	for _, woken := range waiting {
		woken.Unlock()
	}
}
