//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// By the time the process is ready for a call, the call may no longer begin. The process receives nothing, and the next
// call succeeds.
func TestRequest_IsNotWrittenWhenItMayNotBegin(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	before := s.call(1, "info", nil)
	withheld := errors.New("withheld")
	req := toolCall(2, "info", nil)
	req.Permit = upstreamtest.Permit{Begin: func() error { return withheld }}
	answer, err := s.conn.Request(t.Context(), req, nil)
	if !errors.Is(err, withheld) || !errors.Is(err, upstream.ErrNeverSent) || !errors.Is(err, upstream.ErrWithheld) || answer.Message != nil {
		t.Fatalf("%+v, %v", answer, err)
	}
	begun := 0
	req = toolCall(3, "info", nil)
	req.Permit = upstreamtest.Permit{Begin: func() error { begun++; return nil }}
	if _, err := s.conn.Request(t.Context(), req, nil); err != nil || begun != 1 {
		t.Errorf("begin was called %d times: %v", begun, err)
	}
	if after := s.call(4, "info", nil); after["pid"] != before["pid"] {
		t.Errorf("the process has changed: %v, %v", before, after)
	}
}

// endingPermit is a permit that expires whenever the process is ready for the request. Once valid is set, it no longer
// expires. renew is called with the number of the renewal.
type endingPermit struct {
	valid atomic.Bool
	count atomic.Int64
	renew func(n int64) error
}

func (p *endingPermit) Renew() error   { return p.renew(p.count.Add(1)) }
func (p *endingPermit) HasEnded() bool { return !p.valid.Load() }

// beginWith starts a tool call that has the given permit, and does not wait for the answer.
func (s session) beginWith(ctx context.Context, id int, tool string, permit upstream.Permit) <-chan outcome {
	done := make(chan outcome, 1)
	req := toolCall(id, tool, map[string]string{"line": `{"jsonrpc":"2.0","id":ID,"result":{}}`})
	req.Permit = permit
	go func() {
		answer, err := s.conn.Request(ctx, req, nil)
		done <- outcome{answer, err}
	}()
	return done
}

func (s session) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	s.t.Cleanup(cancel)
	return ctx
}

// A call's permit expires before the process is ready for the call, and the policy service is slow to renew the permit.
// Meanwhile, calls of another session succeed.
func TestRequest_OtherSessionsDoNotWaitForTheRenewalOfAPermit(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.Shared = true })
	slow, other := r.open(t, ana), r.open(t, ben)
	asked, response := make(chan struct{}), make(chan struct{})
	respond := sync.OnceFunc(func() { close(response) })
	defer respond()
	permit := &endingPermit{}
	permit.renew = func(n int64) error {
		if n == 2 {
			close(asked)
			<-response
			permit.valid.Store(true)
		}
		return nil
	}
	waiting := slow.beginWith(slow.within(patience), 1, "raw", permit)
	<-asked
	for id := range 3 {
		req := toolCall(id, "info", nil)
		answer, err := other.conn.Request(other.within(soon), req, nil)
		if err != nil {
			t.Fatalf("another session's call: %v", err)
		}
		if got := resultOf(answer)["raws"]; got != "0" {
			t.Fatalf("the process received %s calls without a permit", got)
		}
	}
	respond()
	if got := <-waiting; got.err != nil {
		t.Errorf("after the renewal: %v", got.err)
	}
	if raws := other.call(9, "info", nil)["raws"]; raws != "1" || permit.count.Load() != 2 {
		t.Errorf("the process received the call %s times after %d renewals", raws, permit.count.Load())
	}
}

// A call's permit expires again and again. The call ends when its caller disconnects, and the process does not receive
// the call.
func TestRequest_RenewsItsPermitUntilTheCallerIsGone(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	ctx, cancel := context.WithCancelCause(s.within(patience))
	gone := errors.New("the caller is gone")
	permit := &endingPermit{renew: func(n int64) error {
		if n == 5 {
			cancel(gone)
		}
		return nil
	}}
	if got := <-s.beginWith(ctx, 1, "raw", permit); !errors.Is(got.err, upstream.ErrNeverSent) || !errors.Is(got.err, gone) {
		t.Errorf("%v", got.err)
	}
	if raws := s.call(2, "info", nil)["raws"]; raws != "0" || permit.count.Load() != 5 {
		t.Errorf("the process received the call %s times after %d renewals", raws, permit.count.Load())
	}
}

// A call's permit expires before the process is ready for the call. While the permit is renewed, later messages of the
// session wait, so that the process receives all messages in the order in which they were sent.
func TestRequest_MessagesOfASessionStayInOrderWhileAPermitIsRenewed(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	asked, response, follows := make(chan struct{}), make(chan struct{}), make(chan struct{})
	respond := sync.OnceFunc(func() { close(response) })
	defer respond()
	first := &endingPermit{}
	first.renew = func(n int64) error {
		if n == 2 {
			close(asked)
			<-response
			first.valid.Store(true)
		}
		return nil
	}
	one := s.beginWith(s.within(patience), 1, "raw", first)
	<-asked
	two := s.beginWith(s.within(patience), 2, "info", upstreamtest.Permit{Begin: func() error { close(follows); return nil }})
	<-follows
	select {
	case got := <-two:
		t.Fatalf("the second call was answered first: %v, %v", resultOf(got.Answer), got.err)
	case <-time.After(100 * time.Millisecond): // enough for a call that does not wait
	}
	respond()
	if got := <-one; got.err != nil {
		t.Fatal(got.err)
	}
	if got := <-two; got.err != nil || resultOf(got.Answer)["raws"] != "1" {
		t.Errorf("%v, %v", resultOf(got.Answer), got.err)
	}
}

// The permits of several calls of one session expire while the process is busy. The gateway renews all of them at the
// same time.
func TestRequest_PermitsOfASessionAreRenewedTogether(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	const calls = 4
	var begun, renewed atomic.Int64
	allBegun, allRenewed := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(s.within(soon * 4))
	defer cancel()
	var waiting []<-chan outcome
	for id := range calls {
		permit := &endingPermit{}
		entered := make(chan struct{})
		permit.renew = func(n int64) error {
			switch n {
			case 1: // all calls wait in their order before the first one is passed to the process
				close(entered)
				if begun.Add(1) == calls {
					close(allBegun)
				}
				select {
				case <-allBegun:
				case <-ctx.Done():
					return ctx.Err()
				}
			case 2:
				if renewed.Add(1) == calls {
					close(allRenewed)
				}
				select {
				case <-allRenewed:
				case <-ctx.Done():
					return ctx.Err()
				}
				permit.valid.Store(true)
			}
			return nil
		}
		waiting = append(waiting, s.beginWith(ctx, id, "raw", permit))
		<-entered
	}
	for id, call := range waiting {
		if got := <-call; got.err != nil {
			t.Errorf("call %d of %d, of which %d have asked policy at the same time: %v", id, calls, renewed.Load(), got.err)
		}
	}
}

// slowPermit returns a permit whose second renewal waits until respond is called. asked is closed when that renewal
// begins.
func slowPermit() (permit *endingPermit, asked <-chan struct{}, respond func()) {
	begun, response := make(chan struct{}), make(chan struct{})
	permit = &endingPermit{}
	permit.renew = func(n int64) error {
		if n == 2 {
			close(begun)
			<-response
			permit.valid.Store(true)
		}
		return nil
	}
	return permit, begun, sync.OnceFunc(func() { close(response) })
}

func cancellation(id int) upstream.Request {
	return request(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
}

// A call waits behind another call whose permit is being renewed, and the client cancels the waiting call. The
// cancelled call ends at once. The process receives neither the cancelled call nor the cancellation.
func TestCancel_EndsACallThatWasNotWritten(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	permit, asked, respond := slowPermit()
	defer respond()
	one := s.beginWith(s.within(patience), 1, "raw", permit)
	<-asked
	follows := make(chan struct{})
	two := s.beginWith(s.within(soon), 2, "raw", upstreamtest.Permit{Begin: func() error { close(follows); return nil }})
	<-follows
	if err := s.conn.Notify(s.within(soon), cancellation(2)); err != nil {
		t.Error(err)
	}
	if got := <-two; !errors.Is(got.err, upstream.ErrNeverSent) || !errors.Is(got.err, upstream.ErrCancelled) {
		t.Errorf("the cancelled call is %v, want that it was never sent because it was cancelled", got.err)
	}
	respond()
	if got := <-one; got.err != nil {
		t.Fatal(got.err)
	}
	if info := s.call(3, "info", nil); info["raws"] != "1" || info["cancelled"] != "" {
		t.Errorf("the process received %s calls and the cancellations %q", info["raws"], info["cancelled"])
	}
}

// While the permit of a session's next call is being renewed, the client cancels an earlier call that the process has
// already received. The process receives the cancellation before the renewal ends, and the cancelled call ends after a
// grace period.
func TestCancel_DoesNotWaitForTheRenewalOfAnotherPermit(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s, other := r.open(t, ana), r.open(t, ana)
	one := s.begin(1, "hold", map[string]string{"key": "first"})
	eventually.Holds(t, "the call is held", func() bool { return other.call(1, "info", nil)["held"] == "first" })
	permit, asked, respond := slowPermit()
	defer respond()
	two := s.beginWith(s.within(patience), 2, "raw", permit)
	<-asked
	if err := s.conn.Notify(s.within(soon), cancellation(1)); err != nil {
		t.Error(err)
	}
	if info := other.call(2, "info", nil); info["cancelled"] != info["first"] {
		t.Errorf("the process received the cancellations %q, want %q", info["cancelled"], info["first"])
	}
	if got := <-one; !errors.Is(got.err, upstream.ErrCancelled) {
		t.Errorf("the cancelled call is %v", got.err)
	}
	respond()
	if got := <-two; got.err != nil {
		t.Error(got.err)
	}
}
