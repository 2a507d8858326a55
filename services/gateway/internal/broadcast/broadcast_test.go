package broadcast_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/broadcast"
)

// A notification wakes all goroutines that are waiting. A goroutine that starts to wait later is not woken.
func TestNotify_WakesAllThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b broadcast.Broadcaster
		b.Notify() // no goroutine waits
		var woken sync.WaitGroup
		for range 10 {
			changed := b.Wait()
			woken.Go(func() { <-changed })
		}
		b.Notify()
		woken.Wait()
		later := b.Wait()
		synctest.Wait()
		select {
		case <-later:
			t.Error("a notification wakes a goroutine that began to wait later")
		default:
		}
		b.Notify()
		<-later
	})
}
