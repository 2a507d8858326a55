package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	// readyTimeout limits how long a program may take to start. readyPoll is the interval between checks whether the
	// program is ready.
	readyTimeout = 20 * time.Second
	readyPoll    = 20 * time.Millisecond
	// stopTimeout is how long a program may take to stop before it is killed.
	stopTimeout = 5 * time.Second
	// maxLog limits how many bytes of a log an error quotes.
	maxLog = 4 << 10
)

type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// startProcess starts a program of a site, which is a group of processes that serves cells. The program's output is
// written to a file in the site's directory.
func startProcess(of *site, name, program string, args ...string) (*process, error) {
	out, err := os.Create(filepath.Join(of.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: name, cmd: exec.Command(program, args...), log: out.Name(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = out, out, of.env
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ready reports a process that has exited
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ready waits until a GET request to url returns status 200. It returns an error if the process exits, or if the
// process is not ready after readyTimeout.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		if answers(ctx, url) {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("%s ended by itself:\n%s", p.name, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait until %s serves: %w:\n%s", p.name, ctx.Err(), p.tail())
		}
	}
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status matters
	return resp.StatusCode == http.StatusOK
}

// tail returns the end of the process's output.
func (p *process) tail() []byte {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return raw[max(0, len(raw)-maxLog):]
}

func (p *process) close() {
	_ = p.cmd.Process.Signal(os.Interrupt) // the process may have exited
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// freeAddrs returns n different addresses on loopback on which no process listens. Another process may use these
// addresses later.
func freeAddrs(ctx context.Context, n int) ([]string, error) {
	var addrs []string
	var errs []error
	for range n {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { errs = append(errs, lis.Close()) }() // all listeners stay open until the end, so that their ports differ
		addrs = append(addrs, lis.Addr().String())
	}
	return addrs, errors.Join(errs...)
}
