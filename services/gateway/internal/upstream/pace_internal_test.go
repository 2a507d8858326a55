package upstream

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// sender is a server's end of a body.
type sender struct{ *io.PipeWriter }

// send sends so many bytes, a piece each second, and tells whether they were taken.
func (s sender) send(bytes, piece int) bool {
	for ; bytes > 0; bytes -= piece {
		if _, err := io.WriteString(s, strings.Repeat("x", min(bytes, piece))); err != nil {
			return false
		}
		time.Sleep(time.Second)
	}
	return true
}

// X3: a server that is too slow with what takes room is cut off, and soon; one that keeps
// to the pace, or takes no room, may take as long as it likes.
func TestX3SlowServersAreCutOff(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		held bool
		send func(sender) bool
		// whole tells whether all comes, else it is cut off within that time.
		whole  bool
		within time.Duration
	}{
		"a byte a second":            {true, func(s sender) bool { return s.send(1<<10, 1) }, false, 11 * time.Second},
		"32 KiB a second":            {true, func(s sender) bool { return s.send(8<<20, 32<<10) }, false, 21 * time.Second},
		"64 KiB a second":            {true, func(s sender) bool { return s.send(8<<20, 64<<10) }, true, 0},
		"much, and then nothing":     {true, func(s sender) bool { return s.send(15<<20, 1<<20) && s.send(100, 1) }, false, 26 * time.Second},
		"a byte a second, of little": {false, func(s sender) bool { return s.send(1<<10, 1) }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, w := io.Pipe()
				var sending sync.WaitGroup
				defer sending.Wait()
				sending.Go(func() {
					if tt.send(sender{w}) {
						_ = w.Close()
					}
				})
				begin := time.Now()
				p := newPace(body, func() bool { return tt.held }, closer(body))
				n, err := io.Copy(io.Discard, p)
				took := time.Since(begin)
				t.Logf("%d bytes came within %v, %v", n, took, err)
				if tt.whole != (err == nil) || !tt.whole && (!errors.Is(err, ErrSlow) || took > tt.within) {
					t.Errorf("the error is %v after %v", err, took)
				}
			})
		})
	}
}

// X3: the time in which we do not read is not the server's.
func TestX3AServerIsNotBlamedForItsReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, w := io.Pipe()
		go func() {
			defer w.Close()
			_, _ = w.Write(make([]byte, 1<<20))
		}()
		p, piece := newPace(body, func() bool { return true }, closer(body)), make([]byte, 64<<10)
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

// X3: what a slow tool tells from time to time, be it large, takes no room while nothing
// comes.
func TestX3AStreamMayBeSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, err := room.New(room.Answers())
		if err != nil {
			t.Fatal(err)
		}
		has := all.Open(&room.Holder{Server: "s"})
		defer has.Close()
		body, w := io.Pipe()
		progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"` + strings.Repeat("x", 1<<20) + `"}}`
		go func() {
			defer w.Close()
			for range 20 {
				_, _ = io.WriteString(w, "data: "+progress+"\n\n")
				time.Sleep(time.Hour)
				_, _ = io.WriteString(w, ": still there\n\n")
			}
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":1,"result":{}}`+"\n\n")
		}()
		came := 0
		req := asking()
		req.Room = has
		answer, err := readEvents(t.Context(), body, new(scrubber), req, func([]byte) { came++ })
		if err != nil || came != 20 || !answer.Result.Present() {
			t.Errorf("%d events came, and then %v", came, err)
		}
	})
}

// X3: of an event whose end does not come, nobody waits for the rest.
func TestX3AnEventMayNotStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, err := room.New(room.Answers())
		if err != nil {
			t.Fatal(err)
		}
		has := all.Open(&room.Holder{Server: "s"})
		defer has.Close()
		body, w := io.Pipe()
		var sending sync.WaitGroup
		defer sending.Wait()
		defer body.Close()
		sending.Go(func() {
			_, err := io.WriteString(w, "data: "+strings.Repeat("x", 1<<20)+"\n")
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(w, ": more\n")
			}
		})
		req := asking()
		req.Room = has
		begin := time.Now()
		if _, err := readEvents(t.Context(), body, new(scrubber), req, nil); !errors.Is(err, ErrSlow) || time.Since(begin) > 12*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}
