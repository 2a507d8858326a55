package fairqueue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
)

func newQueue(t *testing.T, all, each int) *fairqueue.Queue[string] {
	t.Helper()
	turns, err := fairqueue.New[string](all, each)
	if err != nil {
		t.Fatal(err)
	}
	return turns
}

// take acquires a time slice. The slice must be available immediately.
func take(t *testing.T, turns *fairqueue.Queue[string], of string) func() {
	t.Helper()
	end, err := turns.Acquire(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// Case X1. An owner has endless work. This work does not delay the work of other owners, because owners take turns.
func TestTake_OwnersTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newQueue(t, 2, 2)
		first, second := take(t, turns, "flood"), take(t, turns, "flood")
		var order []string
		line := func(of string) {
			go func() {
				end, err := turns.Acquire(t.Context(), of)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, of)
				end()
			}()
			synctest.Wait()
		}
		for range 100 {
			line("flood")
		}
		line("good")
		line("other")
		line("good")
		first()
		synctest.Wait()
		if diff := cmp.Diff([]string{"flood", "good", "other", "flood", "good"}, order[:5]); diff != "" || len(order) != 103 {
			t.Errorf("%d turns, the first (-want +got):\n%s", len(order), diff)
		}
		second()
	})
}

// Case X1.
func TestTake_LimitsSlicesPerOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newQueue(t, 3, 2)
		ends := []func(){take(t, turns, "flood"), take(t, turns, "flood")}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Acquire(soon, "flood"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third slice of one owner: %v", err)
		}
		ends = append(ends, take(t, turns, "good"))
		for _, end := range ends {
			end()
		}
		take(t, turns, "flood")()
	})
}

// Case X1. The context of a waiting piece of work is cancelled. The work leaves the queue.
func TestTake_WaitEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newQueue(t, 1, 1)
		end := take(t, turns, "a")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		for range 2 {
			go func() {
				_, err := turns.Acquire(ctx, "b")
				failed <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if _, err := turns.Acquire(ctx, "c"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		end()
		take(t, turns, "c")()
	})
}

// Owners acquire and end slices, and stop waiting for slices, in random order. There are never more slices than the
// limits allow, and no slice is lost.
func TestTake_NeverExceedsLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			all, each := rapid.IntRange(1, 4).Draw(rt, "all"), rapid.IntRange(1, 3).Draw(rt, "each")
			turns := newQueue(t, all, each)
			var mu sync.Mutex
			working, most := map[string]int{}, 0
			count := func(of string, n int) {
				mu.Lock()
				defer mu.Unlock()
				working[of] += n
				most += n
				if working[of] > each || most > all {
					rt.Errorf("%d of %d slices are in use, %d of %d by one owner", most, all, working[of], each)
				}
			}
			for range rapid.IntRange(1, 60).Draw(rt, "asked") {
				of := fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "owner"))
				begin, patience := rapid.IntRange(0, 20).Draw(rt, "begin"), rapid.IntRange(0, 30).Draw(rt, "patience")
				took := rapid.IntRange(0, 10).Draw(rt, "took")
				go func() {
					time.Sleep(time.Duration(begin) * time.Second)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(patience)*time.Second)
					defer cancel()
					end, err := turns.Acquire(ctx, of)
					if err != nil {
						return
					}
					count(of, 1)
					time.Sleep(time.Duration(took) * time.Second)
					count(of, -1)
					end()
				}()
			}
			time.Sleep(time.Hour)
			for i := range 4 {
				take(t, turns, fmt.Sprint(i))()
			}
		})
	})
}

// Case X1. At most maxWaiting pieces of one owner's work can wait. When a piece stops waiting, another can wait.
func TestTake_LimitsWaitingPerOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newQueue(t, 1, 1)
		end := take(t, turns, "mallory")
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range 1024 {
			waiting.Go(func() {
				if _, err := turns.Acquire(ctx, "mallory"); !errors.Is(err, context.Canceled) {
					t.Errorf("waiting work failed: %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := turns.Acquire(t.Context(), "mallory"); !errors.Is(err, fairqueue.ErrBusy) {
			t.Errorf("more work than may wait: %v", err)
		}
		cancel()
		waiting.Wait()
		end()
		take(t, turns, "mallory")()
	})
}

func TestNew_RefusesLimitsBelowOne(t *testing.T) {
	t.Parallel()
	for _, n := range [][2]int{{0, 1}, {1, 0}, {-1, -1}} {
		if _, err := fairqueue.New[string](n[0], n[1]); err == nil {
			t.Errorf("%v turns", n)
		}
	}
	fairqueue.NewForProcessor[string]()
}

func BenchmarkTake(b *testing.B) {
	turns := fairqueue.NewForProcessor[string]()
	b.ReportAllocs()
	for b.Loop() {
		end, err := turns.Acquire(b.Context(), "a")
		if err != nil {
			b.Fatal(err)
		}
		end()
	}
}

// Case X1. After work that keeps a processor busy, its owner rests for as long as the work took, at most 1 s. During
// the rest, other owners receive time slices.
func TestTake_OwnerRestsAfterLongWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ works, waits time.Duration }{
		{time.Millisecond, 0},
		{2 * time.Millisecond, 2 * time.Millisecond},
		{300 * time.Millisecond, 300 * time.Millisecond},
		{time.Minute, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			turns := fairqueue.NewForProcessor[string]()
			end := take(t, turns, "flood")
			time.Sleep(c.works)
			end()
			ended := time.Now()
			take(t, turns, "good")()
			if waited := time.Since(ended); waited != 0 {
				t.Errorf("after a slice of %v of another owner: waited %v", c.works, waited)
			}
			take(t, turns, "flood")()
			if waited := time.Since(ended); waited != c.waits {
				t.Errorf("after a slice of %v of the same owner: waited %v, want %v", c.works, waited, c.waits)
			}
		})
	}
}
