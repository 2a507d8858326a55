package app

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// The test sends two signals to its own process. If the handler had been removed, the second signal would terminate the
// process.
func TestSignals_IgnoresTheRepetitionOfASignal(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signals(time.Hour)
	defer stop()
	for range 2 {
		if err := self.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
	}
}
