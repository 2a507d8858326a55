//go:build unix

package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// newWriter returns a process whose only running goroutine is the one that writes to the process. It also returns the
// end of the pipe that the process would use as its standard input.
func newWriter(t *testing.T) (*process, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{
		server: &transport{cfg: Config{Name: "fake", WriteTimeout: time.Minute}}, stdin: w, lines: make(chan outgoing),
		replies: make(chan []byte, 1), endings: make(chan ending, 1), writeEnded: make(chan struct{}), done: make(chan struct{}),
	}
	p.piping.Go(p.write)
	t.Cleanup(func() {
		close(p.writeEnded)
		closeAll(w, r)
		p.piping.Wait()
	})
	return p, r
}

// fill writes to the pipe until the pipe is full, and returns the number of bytes written.
func (p *process) fill(t *testing.T) (n int) {
	t.Helper()
	raw, err := p.stdin.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 1} {
		if err := raw.Write(func(fd uintptr) bool {
			for {
				written, err := syscall.Write(int(fd), bytes.Repeat([]byte("."), size))
				if err != nil {
					return true
				}
				n += written
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// readFilling reads the bytes that fill has written.
func readFilling(t *testing.T, r io.Reader, n int) {
	t.Helper()
	if _, err := io.CopyN(io.Discard, r, int64(n)); err != nil {
		t.Fatal(err)
	}
}

// nextLine sends the line "next" and returns the line that the process receives first.
func (p *process) nextLine(t *testing.T, r io.Reader) string {
	t.Helper()
	go func() { _ = p.send(t.Context(), new(lineOrder), []byte("next\n"), nil) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// stoppablePermit is a permit that an operator can revoke. asked receives a value when HasEnded is called.
type stoppablePermit struct {
	stopped atomic.Bool
	asked   chan struct{}
}

var errStopped = errors.New("an operator has stopped the call")

func (p *stoppablePermit) Renew() error {
	if p.stopped.Load() {
		return errStopped
	}
	return nil
}

func (p *stoppablePermit) HasEnded() bool {
	select {
	case p.asked <- struct{}{}:
	default:
	}
	return p.stopped.Load()
}

// The process does not read, so its pipe is full. An operator stops a call while the gateway waits for the pipe. When the
// process reads again, it does not receive the call.
func TestSend_WritesNothingIfThePermitEndsWhileThePipeIsFull(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"a short line": 3 << 10, "a long line": 300 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, r := newWriter(t)
			filled := p.fill(t)
			permit, sent := &stoppablePermit{asked: make(chan struct{}, 1)}, make(chan error, 1)
			go func() {
				sent <- p.send(t.Context(), new(lineOrder), []byte(strings.Repeat("x", size)+"\n"), permit)
			}()
			<-permit.asked // the pipe is full, so the line waits
			permit.stopped.Store(true)
			readFilling(t, r, filled)
			if got := p.nextLine(t, r); got != "next\n" {
				t.Errorf("the process received %.20q", got)
			}
			if err := <-sent; !errors.Is(err, errStopped) || !errors.Is(err, upstream.ErrNeverSent) {
				t.Errorf("the call is %v, want that it was never sent because it was stopped", err)
			}
		})
	}
}

// The process does not read, so its pipe is full. The caller stops waiting while the gateway waits for the pipe. When
// the process reads again, it does not receive the line.
func TestSend_WritesNothingIfTheCallerLeavesWhileThePipeIsFull(t *testing.T) {
	t.Parallel()
	p, r := newWriter(t)
	filled := p.fill(t)
	ctx, cancel := context.WithCancel(t.Context())
	permit, sent := &stoppablePermit{asked: make(chan struct{}, 1)}, make(chan error, 1)
	go func() { sent <- p.send(ctx, new(lineOrder), []byte("x\n"), permit) }()
	<-permit.asked // the pipe is full, so the line waits
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) || !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("the call is %v, want that it was never sent", err)
	}
	readFilling(t, r, filled)
	if got := p.nextLine(t, r); got != "next\n" {
		t.Errorf("the process received %.20q", got)
	}
}

// The client cancels a request while the request waits for a process. The request is not sent.
func TestCancel_EndsARequestWithoutAProcess(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	c := newConn(nil, nil, false)
	if err := c.addFlight(&flight{key: jsonrpc.IDKey([]byte("7")), cancel: cancel}); err != nil {
		t.Fatal(err)
	}
	m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Notify(t.Context(), upstream.Request{Message: m}); err != nil || !errors.Is(context.Cause(ctx), upstream.ErrCancelled) {
		t.Errorf("%v; the request's context is %v", err, context.Cause(ctx))
	}
}

// The permit expires after a part of the line was written. The process nevertheless receives the whole line.
func TestSend_CompletesALineWhosePermitEnds(t *testing.T) {
	t.Parallel()
	p, r := newWriter(t)
	const size = 300 << 10 // more than a pipe holds
	permit, sent := &stoppablePermit{}, make(chan error, 1)
	go func() {
		sent <- p.send(t.Context(), new(lineOrder), []byte(strings.Repeat("x", size)+"\n"), permit)
	}()
	in := bufio.NewReader(r)
	if _, err := in.ReadByte(); err != nil {
		t.Fatal(err)
	}
	permit.stopped.Store(true)
	line, err := in.ReadString('\n')
	if err != nil || len(line) != size {
		t.Errorf("the process received %d bytes, %v; want %d", len(line), err, size)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// The process does not read, so its pipe is full. If no byte of a line is written within WriteTimeout, the line is
// reported as never sent, and the process is terminated.
func TestSend_EndsAProcessThatDoesNotRead(t *testing.T) {
	t.Parallel()
	p, _ := newWriter(t)
	p.server.cfg.WriteTimeout = 10 * time.Millisecond
	p.fill(t)
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() { sent <- p.send(ctx, new(lineOrder), []byte("late\n"), nil) }()
	if e := <-p.endings; !strings.Contains(e.reason.Error(), "did not read its standard input for 10ms") {
		t.Errorf("the process ends because %v", e.reason)
	}
	cancel() // the caller does not wait until the process has ended
	<-sent
}
