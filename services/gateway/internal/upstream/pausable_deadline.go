package upstream

import (
	"context"
	"sync"
	"time"
)

// maxPaused limits the total time for which a server may wait for its client during one call.
const maxPaused = time.Hour

// PausableDeadline limits how long a server works on a call. Time during which the server waits for the client does not
// count. The zero value is ready to use, and a nil PausableDeadline has no limit. It is safe for concurrent use.
type PausableDeadline struct {
	mu sync.Mutex
	// since is the time of the last update. work is the remaining time, from since, for which the server may work. wait is
	// the remaining time for which it may wait. waiting is the number of the server's requests that wait for the client.
	work, wait time.Duration
	since      time.Time
	// limit is the maximum working time without progress. maxWork is the maximum total working time. worked is the
	// total working time until since.
	limit, maxWork, worked time.Duration
	paused                 time.Duration
	waiting                int
	timer                  *time.Timer // nil while there is no limit
}

// Begin starts to measure the time of a call. It must be called only once. If the server works for limit without
// reporting progress, cancel is called with the cause [context.DeadlineExceeded]. [PausableDeadline.Stop] prevents
// this. The total working time is limited to maxTotal, or to limit if maxTotal is less than limit.
func (p *PausableDeadline) Begin(limit, maxTotal time.Duration, cancel context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work, p.wait, p.paused, p.since = limit, maxPaused, 0, time.Now()
	p.limit, p.maxWork, p.worked = limit, max(limit, maxTotal), 0
	first := limit
	if p.waiting > 0 { // a request on the session's stream may already be waiting before this call is sent
		first = p.wait
	}
	p.timer = time.AfterFunc(first, func() { cancel(context.DeadlineExceeded) })
}

// Stop ends the measurement. If the time is not being measured, it does nothing.
func (p *PausableDeadline) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// Pause pauses the deadline while the server waits for the client. The caller must call the returned function once to
// continue the deadline.
func (p *PausableDeadline) Pause() (resume func()) {
	if p == nil {
		return func() {}
	}
	p.addWaiting(1)
	return func() { p.addWaiting(-1) }
}

// Paused returns the total time for which the server has waited for the client.
func (p *PausableDeadline) Paused() time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// Progressed records that the server has reported progress.
func (p *PausableDeadline) Progressed() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.update(0, true)
	}
}

// Worked returns the server's total working time. isExhausted is true if progress could extend the deadline, but the
// server has used its maximum total working time.
func (p *PausableDeadline) Worked() (worked time.Duration, isExhausted bool) {
	if p == nil {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if worked = p.worked; p.waiting == 0 {
		worked += time.Since(p.since)
	}
	return worked, p.maxWork > p.limit && worked >= p.maxWork
}

// addWaiting adds change, which may be negative, to the number of requests that wait for the client. It then sets the
// timer to the remaining time.
func (p *PausableDeadline) addWaiting(change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.update(change, false)
}

// update is like addWaiting, but the caller must hold the lock. If progressed is true, update also restarts the time
// without progress.
func (p *PausableDeadline) update(change int, progressed bool) {
	now := time.Now()
	spent, took := &p.work, now.Sub(p.since)
	if p.waiting > 0 {
		spent = &p.wait
		p.paused += took
	} else {
		p.worked += took
	}
	*spent -= took
	p.since = now
	p.waiting += change
	if progressed {
		p.work = min(p.limit, p.maxWork-p.worked)
	}
	remaining := p.work
	if p.waiting > 0 {
		remaining = p.wait
	}
	if p.timer != nil && p.timer.Stop() { // false if the timer has already expired
		p.timer.Reset(max(0, remaining))
	}
}
