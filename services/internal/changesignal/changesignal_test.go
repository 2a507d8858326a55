package changesignal_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/internal/changesignal"
)

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestWait_ChannelIsClosedByTheNextChange(t *testing.T) {
	t.Parallel()
	s := changesignal.New()
	s.Notify() // a change before Wait does not count
	ch := s.Wait()
	if isClosed(ch) {
		t.Fatal("the channel is closed before the change")
	}
	s.Notify()
	if !isClosed(ch) {
		t.Error("the channel is open after the change")
	}
}

func TestNotify_ClosesTheChannelsOfEarlierChangesOnlyOnce(t *testing.T) {
	t.Parallel()
	s := changesignal.New()
	first := s.Wait()
	s.Notify()
	second := s.Wait()
	if !isClosed(first) || isClosed(second) {
		t.Fatalf("after one change, the first channel is closed: %t, and the second: %t", isClosed(first), isClosed(second))
	}
	s.Notify() // would panic if it closed the first channel again
	if !isClosed(second) {
		t.Error("the second channel is open after the second change")
	}
	if isClosed(s.Wait()) {
		t.Error("a channel from after the second change is closed")
	}
}

func TestNotify_WakesEveryWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters = 10
		s := changesignal.New()
		var woken atomic.Int32
		for range waiters {
			go func() {
				<-s.Wait()
				woken.Add(1)
			}()
		}
		synctest.Wait()
		if n := woken.Load(); n != 0 {
			t.Fatalf("%d waiters are awake before the change", n)
		}
		s.Notify()
		synctest.Wait()
		if n := woken.Load(); n != waiters {
			t.Errorf("%d of %d waiters are awake after the change", n, waiters)
		}
	})
}

// A waiter that calls Wait before it reads the value misses no change. If a change were lost, the waiters would block
// forever, and the bubble would report a deadlock.
func TestSignal_ConcurrentWaitersMissNoChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters, writers, changes = 8, 8, 200
		s := changesignal.New()
		var value, done atomic.Int32
		for range waiters {
			go func() {
				for {
					ch := s.Wait()
					if value.Load() == writers*changes {
						break
					}
					<-ch
				}
				done.Add(1)
			}()
		}
		for range writers {
			go func() {
				for range changes {
					value.Add(1)
					s.Notify()
				}
			}()
		}
		synctest.Wait()
		if n := done.Load(); n != waiters {
			t.Errorf("%d of %d waiters have seen the last change", n, waiters)
		}
	})
}
