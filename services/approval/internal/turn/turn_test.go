package turn_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/approval/internal/turn"
)

// X1: however much one makes, another's work comes next.
func TestX1OneWhoMakesMuchWaitsForItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := turn.New(1)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { work(t, turns, "mallory") })
		}
		synctest.Wait()
		begin := time.Now()
		work(t, turns, "bot")
		if took := time.Since(begin); took != 2*time.Second { // one piece of mallory's, and its own
			t.Errorf("somebody else waited %v", took)
		}
		wg.Wait()
		if took := time.Since(begin); took != 21*time.Second {
			t.Errorf("all together took %v", took)
		}
	})
}

// As many work at a time as there are places, each for another principal.
func TestPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns, begin := turn.New(2), time.Now()
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() { work(t, turns, fmt.Sprint(n)) })
		}
		wg.Wait()
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("four, two at a time, took %v", took)
		}
	})
}

// Who has gone holds no place, also one that waits; and too many do not wait.
func TestWhoGivesUpHoldsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := turn.New(1)
		end, err := turns.Take(t.Context(), "bot")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, who := range []string{"bot", "other"} {
			if _, err := turns.Take(ctx, who); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, without a place: %v", who, err)
			}
		}
		var wg sync.WaitGroup
		for range 1024 {
			wg.Go(func() {
				if end, err := turns.Take(t.Context(), "bot"); err == nil {
					end()
				}
			})
		}
		synctest.Wait()
		if _, err := turns.Take(t.Context(), "bot"); !errors.Is(err, turn.ErrBusy) {
			t.Errorf("one more than may wait: %v", err)
		}
		end()
		wg.Wait()
		work(t, turns, "bot")
	})
}

func work(t *testing.T, turns *turn.Turns, who string) {
	t.Helper()
	end, err := turns.Take(t.Context(), who)
	if err != nil {
		t.Error(err)
		return
	}
	time.Sleep(time.Second)
	end()
}
