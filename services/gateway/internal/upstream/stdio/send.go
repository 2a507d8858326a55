package stdio

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// send writes a line to the process and waits for the result. Earlier lines of the same session are written first. If
// the permit becomes invalid before the line is written, send renews it. If permit is nil, the line needs no permit.
// The errors are those of Conn.Request.
func (p *process) send(ctx context.Context, lines *lineOrder, line []byte, permit upstream.Permit) error {
	return p.sendOutgoing(ctx, lines, newOutgoing(line, permit, new(lineStart)))
}

// sendOutgoing is like send, but the line can be withdrawn. The goroutine that withdraws the line must also cancel ctx.
func (p *process) sendOutgoing(ctx context.Context, lines *lineOrder, out outgoing) error {
	turn := lines.enter()
	defer turn.leave()
	for {
		ended := lines.permitEnded()
		if err := upstream.Renew(out.permit); err != nil {
			return err
		}
		err := p.awaitTurn(ctx, turn, ended, out.permit)
		if err == nil {
			err = p.submit(ctx, out)
			if errors.Is(err, errPermitEnded) {
				lines.announcePermitEnded()
			}
		}
		if !errors.Is(err, errPermitEnded) {
			return err
		}
	}
}

// awaitTurn waits until the earlier lines of the session have been written. It returns errPermitEnded if the permit
// must be renewed.
func (p *process) awaitTurn(ctx context.Context, turn *lineTurn, ended <-chan struct{}, permit upstream.Permit) error {
	for {
		select {
		case <-turn.before:
			return nil
		case <-ended:
			if permit != nil && permit.HasEnded() {
				return errPermitEnded
			}
			ended = turn.order.permitEnded()
		case <-ctx.Done():
			return p.unsent(ctx)
		case <-p.writeEnded:
			return p.ended(ctx, upstream.ErrNeverSent)
		}
	}
}

// submit passes a line to the goroutine that writes lines, and waits for the result. If ctx is done before the first
// byte is written, submit withdraws the line.
func (p *process) submit(ctx context.Context, out outgoing) error {
	if ctx.Err() != nil {
		return p.unsent(ctx)
	}
	select {
	case p.lines <- out:
	case <-ctx.Done():
		return p.unsent(ctx)
	case <-p.writeEnded:
		return p.ended(ctx, upstream.ErrNeverSent)
	}
	select {
	case err := <-out.done:
		return p.writeResult(ctx, err)
	case <-ctx.Done():
	}
	// If the result arrived before ctx was done, return the result.
	select {
	case err := <-out.done:
		return p.writeResult(ctx, err)
	default:
	}
	if out.start.withdraw() {
		return p.unsent(ctx)
	}
	return p.server.waitError(ctx) // a part of the line is already written
}

// writeResult returns the result of submit. err is the result from the goroutine that writes lines.
func (p *process) writeResult(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errWithdrawn):
		<-ctx.Done()
		return p.unsent(ctx)
	case !errors.Is(err, errPermitEnded):
		return p.ended(ctx, err)
	case ctx.Err() != nil:
		return p.unsent(ctx)
	default:
		return err
	}
}

// unsent returns the error for a line that was not written before ctx was done.
func (p *process) unsent(ctx context.Context) error {
	return fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, p.server.cfg.Name, context.Cause(ctx))
}

// ended returns an error of the given class that describes how the process has ended.
func (p *process) ended(ctx context.Context, class error) error {
	select {
	case <-p.done:
		return fmt.Errorf("%w: %w", class, p.cause)
	case <-ctx.Done(): // the caller has stopped waiting for the cause
		return fmt.Errorf("%w: server %q is ending", class, p.server.cfg.Name)
	}
}

// lineOrder keeps the lines of one session in order. The zero value is ready to use. It is safe for concurrent use.
type lineOrder struct {
	mu sync.Mutex
	// last is the newest line, or nil if there is none.
	last *lineTurn
	// ended is closed when a line could not be written because its permit was no longer valid. It is nil if no sender is
	// waiting for this event.
	ended chan struct{}
}

// lineTurn is the position of a line in a lineOrder.
type lineTurn struct {
	order *lineOrder
	// before is closed when all earlier lines have been removed.
	before chan struct{}
	// previous and next are the adjacent lines, or nil.
	previous, next *lineTurn
}

// enter adds a line after all other lines. The caller must call leave once.
func (o *lineOrder) enter() *lineTurn {
	o.mu.Lock()
	defer o.mu.Unlock()
	turn := &lineTurn{order: o, before: make(chan struct{}), previous: o.last}
	if o.last == nil {
		close(turn.before)
	} else {
		o.last.next = turn
	}
	o.last = turn
	return turn
}

// leave removes a line that was written or will not be written.
func (t *lineTurn) leave() {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	if t.next == nil {
		t.order.last = t.previous
	} else {
		t.next.previous = t.previous
	}
	switch {
	case t.previous != nil:
		t.previous.next = t.next
	case t.next != nil:
		close(t.next.before)
	}
}

// permitEnded returns a channel that is closed when a line of the session was not written because its permit had ended.
// The senders of later lines then also renew their permits, at the same time. Otherwise, the policy service would
// evaluate the calls one after another, and the last line would wait for all of them.
func (o *lineOrder) permitEnded() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended == nil {
		o.ended = make(chan struct{})
	}
	return o.ended
}

func (o *lineOrder) announcePermitEnded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended != nil {
		close(o.ended)
		o.ended = nil
	}
}
