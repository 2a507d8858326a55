package cli

import (
	"sync"
	"time"
)

// quietFor is how long a step runs before a line about it is printed.
const quietFor = time.Second

// progress prints the steps of several goroutines. Lines from different steps are never mixed.
type progress struct {
	mu    sync.Mutex
	print func(format string, args ...any)
}

// during prints a line if the step takes longer than quietFor. The caller must call the returned function after the
// step.
func (p *progress) during(format string, args ...any) (ended func()) {
	finished := false
	timer := time.AfterFunc(quietFor, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !finished {
			p.print(format, args...)
		}
	})
	return func() {
		timer.Stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		finished = true
	}
}

// do calls print while no other line is printed.
func (p *progress) do(print func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	print()
}
