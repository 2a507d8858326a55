// Package notices notifies the user of this machine about calls that wait for approval. Notices consist of fixed words,
// counts and identifiers. Strings from agents and servers may be passed to a command only on its standard input.
package notices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

const (
	// maxCommands is the maximum number of commands that run at the same time. maxQueued is the maximum number of waiting
	// jobs.
	maxCommands = 4
	maxQueued   = 100
	// commandTimeout limits how long a command may run.
	commandTimeout = 30 * time.Second
	// outputDelay limits how long the output of a command is copied after the command has exited. Other processes can keep
	// the output open.
	outputDelay = time.Second
)

// A Job is one run of the command.
type Job struct {
	// ID is the identifier of an approval. The command gets it in the variable SLUICE_APPROVAL_ID.
	ID string
	// Pending is the number of pending approvals. The command gets it in the variable SLUICE_APPROVALS_PENDING.
	Pending int
	// Input is the standard input of the command.
	Input []byte
}

// Commands runs a command once for each job.
type Commands struct {
	argv    []string
	output  io.Writer
	timeout time.Duration
	queue   chan Job
	workers sync.WaitGroup
}

// StartCommands returns a Commands that runs argv until ctx is done. The writer output receives the command's output,
// and one line for each failed run. It must be safe for concurrent use. The caller must cancel ctx and call
// [Commands.Wait].
func StartCommands(ctx context.Context, argv []string, output io.Writer) (*Commands, error) {
	if _, err := exec.LookPath(argv[0]); err != nil {
		return nil, fmt.Errorf("find the command: %w", err)
	}
	return startCommands(ctx, argv, output, commandTimeout), nil
}

func startCommands(ctx context.Context, argv []string, output io.Writer, timeout time.Duration) *Commands {
	c := &Commands{argv: argv, output: output, timeout: timeout, queue: make(chan Job, maxQueued)}
	for range maxCommands {
		c.workers.Go(func() { c.work(ctx) })
	}
	return c
}

// Add adds a job, and reports whether it did. It does not add the job if too many jobs are waiting.
func (c *Commands) Add(j Job) bool {
	select {
	case c.queue <- j:
		return true
	default:
		return false
	}
}

// Full reports whether no more jobs can be added, because too many jobs are waiting.
func (c *Commands) Full() bool { return len(c.queue) == cap(c.queue) }

// Wait waits until no command is running. The context of [StartCommands] must be done.
func (c *Commands) Wait() { c.workers.Wait() }

func (c *Commands) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-c.queue:
			if problem := c.run(ctx, j); problem != "" && ctx.Err() == nil {
				fmt.Fprintf(c.output, "sluice: the command for approval %s %s\n", j.ID, problem)
			}
		}
	}
}

// run runs the command once. It returns a description of the failure, or "" if the run succeeds.
func (c *Commands) run(ctx context.Context, j Job) string {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...) //nolint:gosec // the user's own command
	cmd.Env = append(cmd.Environ(), "SLUICE_APPROVAL_ID="+j.ID, "SLUICE_APPROVALS_PENDING="+strconv.Itoa(j.Pending))
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(j.Input), c.output, c.output, outputDelay
	killDescendants(cmd)
	err := cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // a process that the command left behind still holds the output
		return ""
	case ctx.Err() != nil:
		return fmt.Sprintf("was stopped, because it did not end within %v", c.timeout)
	case exited && exit.Exited():
		return fmt.Sprintf("failed with exit code %d", exit.ExitCode())
	default:
		return fmt.Sprintf("failed: %v", err)
	}
}
