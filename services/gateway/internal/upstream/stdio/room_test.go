//go:build unix

package stdio_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// large contains the arguments of a call to the tool size. The answer to such a call is so large that the answer's size
// is charged to the memory budget.
var large = map[string]string{"bytes": strconv.Itoa(1 << 20)}

// Case X3. A large answer from a principal's own process waits while the principal's memory budget is exhausted.
func TestMemory_AnswerWaitsForTheBudgetOfItsPrincipal(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s, all := r.open(t, ana), r.all
	full := all.Open(upstreamtest.Holder(ana))
	if !full.Add(limits.PrincipalBytes) {
		t.Fatal("the memory budget is too small")
	}
	done := s.begin(1, "size", large)
	eventually.Holds(t, "the answer waits", func() bool {
		return all.Admit(t.Context(), upstreamtest.Holder(ana), soon/100) != nil
	})
	r.open(t, ben).call(2, "size", large)
	full.Close()
	if got := <-done; got.err != nil || len(got.Message.Raw) < 1<<20 {
		t.Errorf("once there is memory: %v", got.err)
	}
}

// Case X3. A shared process does not wait for any session. If a principal's budget is exhausted, an answer to this
// principal is lost, and the outcome of the call is unknown. Other sessions still receive their answers.
func TestMemory_SharedProcessWaitsForNoSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.Shared = true })
	anas, bens := r.open(t, ana), r.open(t, ben)
	full := r.all.Open(upstreamtest.Holder(ana))
	if !full.Add(limits.PrincipalBytes) {
		t.Fatal("the memory budget is too small")
	}
	if _, err := anas.try(1, "size", large); !errors.Is(err, upstream.ErrNoAnswer) || !errors.Is(err, limits.ErrMemory) {
		t.Errorf("the error is %v", err)
	}
	anas.call(2, "info", nil)
	bens.call(3, "size", large)
	full.Close()
	anas.call(4, "size", large)
}

// Case X3. A process that stalls in the middle of a large line is terminated, and the caller receives the reason.
func TestMemory_StalledLineEndsTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	begin := time.Now()
	if _, err := s.try(1, "stall", nil); !errors.Is(err, bodyreader.ErrSlow) || time.Since(begin) > patience {
		t.Errorf("after %v the error is %v", time.Since(begin), err)
	}
	s.call(2, "size", large)
}

// Case X3. A large answer to initialize is refused, because it would be stored for as long as the process runs.
func TestMemory_LargeGreetingIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, "verbose", nil)
	_, _, err := r.Open(t.Context(), ana, hello(0))
	if err == nil || !strings.Contains(err.Error(), limits.ErrMemory.Error()) {
		t.Errorf("the error is %v", err)
	}
}

// Case X3. A client does not read. The messages that are stored for the client are limited across all of its calls.
func TestMemory_QueuedMessagesAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s, all := r.open(t, ana), r.all
	full := all.Open(upstreamtest.Holder(ana))
	if !full.Add(limits.PrincipalBytes) {
		t.Fatal("the memory budget is too small")
	}
	began, read := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	seen, bytes := 0, 0
	go func() {
		_, err := s.conn.Request(t.Context(), toolCall(1, "burst", nil), func(m []byte) {
			if seen++; seen == 1 {
				close(began)
				<-read
			}
			bytes += len(m)
		})
		done <- err
	}()
	<-began
	s.call(2, "info", nil) // answered after all messages that the process has written before it
	close(read)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d messages of %d bytes came", seen, bytes)
	if bytes > limits.UncountedBytes+burstSize+1<<10 {
		t.Errorf("%d bytes waited for their reader", bytes)
	}
}
