package turn

import (
	"cmp"
	"os"
	"runtime"
	"sync"
	"time"
)

const (
	// longStint is how long work may keep a processor until others go before.
	longStint = 250 * time.Microsecond
	// longestStint is how long it may at the most, where its rests are as long: else small
	// work without end would let long work never end.
	longestStint = 10 * time.Millisecond
	// fewSteps are done without looking at the clock.
	fewSteps = 64
)

// A Stint is work that may keep a processor for long: the runtime takes it away after
// 10 ms alone, for which everybody else waits. Short work never rests. The zero value is
// ready, for one goroutine.
type Stint struct {
	// Longest is how long it may keep a processor at the most; 0: 10 ms.
	Longest time.Duration

	steps int
	began time.Time
	// rested is how long it rested last.
	rested time.Duration
}

// Step ends a step that takes some microseconds at the most, and rests where the work
// has gone on for long.
func (s *Stint) Step() {
	if s.steps++; s.steps%fewSteps == 0 {
		s.Part()
	}
}

// Part is [Stint.Step] for one that may take longer.
func (s *Stint) Part() {
	switch {
	case s.began.IsZero():
		s.began = time.Now()
	case time.Since(s.began) > max(longStint, min(s.rested, cmp.Or(s.Longest, longestStint))):
		longWork()
		rest := time.Now()
		Rest()
		s.began = time.Now()
		s.rested = s.began.Sub(rest)
	}
}

// Rest lets all others go before that have something to do, those too whose network has
// something for them. [runtime.Gosched] does not: the runtime looks at the network once
// nothing else can run, or after 10 ms, and who calls that can run. So this waits for the
// network as well, which answers at once.
func Rest() {
	if network == nil || !network.wait() {
		runtime.Gosched()
	}
}

// bell is rung over the network, as far as the runtime sees.
type bell struct {
	in, out *os.File

	mu sync.Mutex
	// waiting are unlocked once it was heard, for who waits in a bubble of testing/synctest
	// can't be told by a channel; broken says that it never will be.
	waiting []*sync.Mutex
	broken  bool
}

// network is the process's bell; nil where there is none. It is made at the start, before
// anybody can have taken all files.
var network = newBell()

func newBell() *bell {
	in, out, err := os.Pipe()
	if err != nil {
		return nil
	}
	b := &bell{in: in, out: out}
	go b.listen()
	return b
}

// wait rings and waits until that was heard. It reports whether it was.
func (b *bell) wait() bool {
	heard := new(sync.Mutex)
	heard.Lock()
	b.mu.Lock()
	if b.broken {
		b.mu.Unlock()
		return false
	}
	b.waiting = append(b.waiting, heard)
	first := len(b.waiting) == 1
	b.mu.Unlock()
	if first { // else it was rung already
		if _, err := b.out.Write([]byte{0}); err != nil {
			b.heard(true)
		}
	}
	heard.Lock()
	return true
}

func (b *bell) listen() {
	for one := make([]byte, 1); ; {
		_, err := b.in.Read(one)
		runtime.Gosched() // what the network had besides goes before
		if b.heard(err != nil); err != nil {
			return
		}
	}
}

// heard lets all go on that wait.
func (b *bell) heard(broken bool) {
	b.mu.Lock()
	waiting := b.waiting
	b.waiting, b.broken = nil, b.broken || broken
	b.mu.Unlock()
	for _, heard := range waiting {
		heard.Unlock()
	}
}
