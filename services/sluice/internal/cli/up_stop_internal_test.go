package cli

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// After Ctrl-C, the command prints the requests for which the mesh waits before it stops. It prints them again when
// they change. After the mesh has stopped, the command prints nothing.
func TestUp_PrintsWhichRequestsAStopWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		var asked atomic.Int32
		ctx, stop := context.WithCancel(t.Context())
		ended, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			(&tool{errOut: &out}).reportStopping(ctx, ended, func() map[string]int {
				switch asked.Add(1) {
				case 1, 2:
					return map[string]int{"web": 1, "files": 2}
				case 3:
					return map[string]int{"web": 1}
				default:
					return nil
				}
			})
		}()
		synctest.Wait()
		if asked.Load() != 0 {
			t.Error("the command asks for the requests before the stop")
		}
		stop()
		time.Sleep(4 * stopReportInterval)
		close(ended)
		<-done
		const again = "; press Ctrl-C again to stop at once"
		want := "Stopping: waiting at most 30 s for requests that servers have not answered: files (2), web (1)" + again + "\n" +
			"Stopping: waiting at most 30 s for requests that servers have not answered: web (1)" + again + "\n" +
			"Stopping: no request waits for a server; closing programs and the journal" + again + "\n"
		if out.String() != want {
			t.Errorf("the command prints\n%s\nwant\n%s", out.String(), want)
		}
	})
}

func TestUp_PrintsNothingAboutAStopWhenItEndsByItself(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	ended := make(chan struct{})
	close(ended)
	(&tool{errOut: &out}).reportStopping(t.Context(), ended, func() map[string]int { return nil })
	if out.String() != "" {
		t.Errorf("the command prints %q", out.String())
	}
}
