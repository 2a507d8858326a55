package upstream

import (
	"context"
	"sync"
	"time"
)

// maxPaused is how long a server may wait for its client in the course of one call.
const maxPaused = time.Hour

// Patience bounds a server's work on a call, but for the time in which the server itself
// waits for the client. The zero value is ready, and a nil one bounds nothing. It is safe for
// concurrent use.
type Patience struct {
	mu sync.Mutex
	// work and wait are what is left of both, since then; asked is how often the server
	// waits now.
	work, wait time.Duration
	since      time.Time
	// limit is how long the server may work without progress, most in all, and worked how long it has.
	limit, most, worked time.Duration
	paused              time.Duration
	asked               int
	timer               *time.Timer // nil while nothing is bounded
}

// Begin has the call end once the server has worked that long, with the cause
// [context.DeadlineExceeded], unless stop is called before. With each progress it has that long again, up to most in
// all; a most below limit counts as limit. It begins once.
func (p *Patience) Begin(limit, most time.Duration, end context.CancelCauseFunc) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work, p.wait, p.paused, p.since = limit, maxPaused, 0, time.Now()
	p.limit, p.most, p.worked = limit, max(limit, most), 0
	first := limit
	if p.asked > 0 { // on the session's stream, before this call was sent
		first = p.wait
	}
	timer := time.AfterFunc(first, func() { end(context.DeadlineExceeded) })
	p.timer = timer
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		timer.Stop()
		p.timer = nil
	}
}

// Pause says that the server waits for the client, until resume is called, once.
func (p *Patience) Pause() (resume func()) {
	if p == nil {
		return func() {}
	}
	p.turn(1)
	return func() { p.turn(-1) }
}

// Paused is for how long the server has waited for the client so far.
func (p *Patience) Paused() time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// Progressed says that the server made progress.
func (p *Patience) Progressed() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.account(0, true)
	}
}

// Worked returns for how long the server has worked, and reports whether that is the most that it may in all.
func (p *Patience) Worked() (worked time.Duration, most bool) {
	if p == nil {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if worked = p.worked; p.asked == 0 {
		worked += time.Since(p.since)
	}
	return worked, p.most > p.limit && worked >= p.most
}

// turn counts how often the server waits, and sets the timer to what is left of that.
func (p *Patience) turn(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.account(by, false)
}

// account does what turn says, and gives the server its time again if it made progress. It needs the lock.
func (p *Patience) account(by int, progressed bool) {
	now := time.Now()
	spent, took := &p.work, now.Sub(p.since)
	if p.asked > 0 {
		spent = &p.wait
		p.paused += took
	} else {
		p.worked += took
	}
	*spent -= took
	p.since = now
	p.asked += by
	if progressed {
		p.work = min(p.limit, p.most-p.worked)
	}
	left := p.work
	if p.asked > 0 {
		left = p.wait
	}
	if p.timer != nil && p.timer.Stop() { // else the time is up
		p.timer.Reset(max(0, left))
	}
}
