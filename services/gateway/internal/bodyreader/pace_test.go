package bodyreader_test

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
)

type bodySender struct{ *io.PipeWriter }

// send writes the given number of bytes, one piece per second, and reports whether every write succeeded.
func (s bodySender) send(bytes, piece int) bool {
	for ; bytes > 0; bytes -= piece {
		if _, err := io.WriteString(s, strings.Repeat("x", min(bytes, piece))); err != nil {
			return false
		}
		time.Sleep(time.Second)
	}
	return true
}

// Case X3. A server that sends a message below the minimum rate is disconnected if the message is charged to the memory
// budget. A server that keeps the minimum rate, or whose message is not charged, stays connected.
func TestPace_ClosesSlowServers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		held bool
		send func(bodySender) bool
		// If whole is true, the test must read the complete message. Otherwise the server must be disconnected within
		// the given time.
		whole  bool
		within time.Duration
	}{
		"a byte a second":            {true, func(s bodySender) bool { return s.send(1<<10, 1) }, false, 11 * time.Second},
		"32 KiB a second":            {true, func(s bodySender) bool { return s.send(8<<20, 32<<10) }, false, 21 * time.Second},
		"64 KiB a second":            {true, func(s bodySender) bool { return s.send(8<<20, 64<<10) }, true, 0},
		"much, and then nothing":     {true, func(s bodySender) bool { return s.send(15<<20, 1<<20) && s.send(100, 1) }, false, 26 * time.Second},
		"a byte a second, of little": {false, func(s bodySender) bool { return s.send(1<<10, 1) }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, w := io.Pipe()
				var sending sync.WaitGroup
				defer sending.Wait()
				sending.Go(func() {
					if tt.send(bodySender{w}) {
						_ = w.Close()
					}
				})
				begin := time.Now()
				p := bodyreader.Pace(body, func() bool { return tt.held }, func() { _ = body.Close() })
				n, err := io.Copy(io.Discard, p)
				took := time.Since(begin)
				t.Logf("%d bytes came within %v, %v", n, took, err)
				if tt.whole != (err == nil) || !tt.whole && (!errors.Is(err, bodyreader.ErrSlow) || took > tt.within) {
					t.Errorf("the error is %v after %v", err, took)
				}
			})
		})
	}
}

// Case X3. The time between two reads does not count toward the server's rate.
func TestPace_IgnoresTheTimeOfTheReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, w := io.Pipe()
		go func() {
			defer w.Close()
			_, _ = w.Write(make([]byte, 1<<20))
		}()
		p, piece := bodyreader.Pace(body, func() bool { return true }, func() { _ = body.Close() }), make([]byte, 64<<10)
		for {
			_, err := io.ReadFull(p, piece)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
	})
}
