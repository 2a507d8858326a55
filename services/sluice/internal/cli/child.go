package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// terminateTimeout limits how long Close waits for a program to exit: once after closing the program's standard input,
	// before it sends SIGTERM, and once more before it sends SIGKILL.
	terminateTimeout = 2 * time.Second
	// installTimeout is used instead of the first terminateTimeout if a program has not written to its standard output
	// yet. Such a program may be installing a package. If it were killed, an incomplete package would remain in the npx
	// cache.
	installTimeout = 30 * time.Second
	// outputTimeout limits how long Close waits for the rest of the output of a program that has exited.
	outputTimeout = time.Second
	// repeatedSignal is the time after the first signal in which a second signal still counts as a repetition. Package app
	// uses the same time.
	repeatedSignal = time.Second
)

// A childTransport connects to a program that it starts. Unlike [mcp.CommandTransport], it starts the program in a new
// process group, so that Ctrl-C does not kill the program in the middle of an installation.
type childTransport struct {
	cmd *exec.Cmd
	// stopped is closed when the person stops the command that runs the program.
	stopped <-chan struct{}
}

// Connect starts the program.
func (t *childTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	stdout, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stdin, err := t.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	ownGroup(t.cmd)
	t.cmd.WaitDelay = outputTimeout
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: t.cmd, stopped: t.stopped, stdin: stdin, stdout: stdout, exited: make(chan struct{})}
	return (&mcp.IOTransport{Reader: childOutput{c}, Writer: c}).Connect(ctx)
}

// child is a running program. Writing to a child writes to the program's standard input.
type child struct {
	cmd     *exec.Cmd
	stopped <-chan struct{}

	stdin  io.WriteCloser
	stdout io.Reader
	// started is true if the program has written to its standard output.
	started atomic.Bool
	exited  chan struct{}
	err     error // the result of Wait, valid when exited is closed
}

func (c *child) Write(p []byte) (int, error) { return c.stdin.Write(p) }

// Close closes the program's standard input and waits until the program has exited. If the program does not exit in
// time, Close sends SIGTERM and then SIGKILL. If the person stops the command again while Close waits, it sends SIGKILL
// immediately.
func (c *child) Close() error {
	if err := c.stdin.Close(); err != nil {
		return fmt.Errorf("close the standard input: %w", err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.exited)
	}()
	now, stop := secondSignal(c.stopped)
	defer stop()
	grace := installTimeout
	if c.started.Load() {
		grace = terminateTimeout
	}
	if c.ends(now, grace) {
		return c.err
	}
	if now.Err() == nil && signalGroup(c.cmd.Process, syscall.SIGTERM) == nil && c.ends(now, terminateTimeout) {
		return c.err
	}
	if err := signalGroup(c.cmd.Process, syscall.SIGKILL); err != nil {
		return err
	}
	<-c.exited
	return c.err
}

// ends reports whether the program exits within the given time. It returns false immediately if now is canceled.
func (c *child) ends(now context.Context, within time.Duration) bool {
	select {
	case <-c.exited:
		return true
	case <-time.After(within):
	case <-now.Done():
	}
	return false
}

// secondSignal returns a context that is canceled by the next SIGINT or SIGTERM after stopped is closed. It ignores
// signals that arrive within repeatedSignal after stopped is closed, because they may be repetitions of the signal that
// stopped the command.
func secondSignal(stopped <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		select {
		case <-stopped:
		case <-ctx.Done():
			return
		}
		for begin := time.Now(); ; {
			select {
			case <-signals:
				if time.Since(begin) >= repeatedSignal {
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// childOutput is the standard output of a program. Its method Close does nothing, because Wait closes the output.
type childOutput struct{ *child }

func (c childOutput) Read(p []byte) (int, error) {
	n, err := c.stdout.Read(p)
	if n > 0 {
		c.started.Store(true)
	}
	return n, err
}

func (childOutput) Close() error { return nil }
