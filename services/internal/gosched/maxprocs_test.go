package gosched_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

func TestRaiseMaxProcs_RaisesOnlyDuringLongWork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	defer gosched.RaiseMaxProcs(0)
	gosched.RaiseMaxProcs(5)
	if now := runtime.GOMAXPROCS(0); now != 2 {
		t.Fatalf("%d at a time without long work, want 2", now)
	}
	var s gosched.Work
	eventually.Holds(t, "five at a time", func() bool {
		for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
			s.Step()
		}
		return runtime.GOMAXPROCS(0) == 5
	})
	eventually.Holds(t, "two at a time", func() bool { return runtime.GOMAXPROCS(0) == 2 })
}
