// Package secretcommand runs the commands that print secrets: the password managers and cloud tools of
// `secrets.commands` in the configuration.
package secretcommand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	// maxOutput is the maximum size of a secret, in bytes.
	maxOutput = 64 << 10
	// maxShown is the maximum length, in bytes, of what an error repeats of a command's standard error.
	maxShown = 200
	// waitDelay is how long the output may stay open after the command has ended, because a child process may still have
	// it.
	waitDelay = time.Second
)

// Command is a command that prints a secret.
type Command struct {
	// Args are the program and its arguments. No shell interprets them. A program without a slash is looked up in PATH.
	Args []string
	// Dir is the working directory.
	Dir string
	// Timeout is the time after which the command is killed.
	Timeout time.Duration
}

// Run runs a command and returns its standard output without trailing newlines. The command has the environment and the
// terminal of this process, so that it can ask a person, but no standard input. An error never contains the output. It
// contains the first line of standard error.
func Run(ctx context.Context, c Command) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...) //nolint:gosec // the operator's configuration names the program
	out, messages := limited{max: maxOutput + 2}, limited{max: 4 << 10}
	cmd.Dir, cmd.WaitDelay, cmd.Stdout, cmd.Stderr = c.Dir, waitDelay, &out, &messages
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the command has succeeded, but a process that it has started has not ended
	}
	secret := strings.TrimRight(out.text.String(), "\r\n")
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil:
		return "", fmt.Errorf("it did not end within %s: set a longer timeout, or check whether it waits for input", c.Timeout)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("the program %s is not in PATH: install it, or write its absolute path", c.Args[0])
	case errors.Is(err, exec.ErrDot):
		return "", fmt.Errorf("the program %s was found only in the working directory: write its absolute path", c.Args[0])
	case err != nil:
		return "", fmt.Errorf("%w%s", err, messages.firstLine())
	case len(secret) > maxOutput:
		return "", fmt.Errorf("it has printed more than %d bytes: a secret is shorter", maxOutput)
	case secret == "":
		return "", fmt.Errorf("it has printed nothing%s", messages.firstLine())
	case !utf8.ValidString(secret), strings.ContainsRune(secret, 0):
		return "", errors.New("it has printed bytes that are not text")
	}
	return secret, nil
}

// limited keeps the beginning of what is written to it, and discards the rest.
type limited struct {
	text bytes.Buffer
	max  int
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	l.text.Write(b[:min(len(b), l.max-l.text.Len())])
	return len(b), nil
}

// firstLine returns the first line with text, for the end of an error. It is empty if there is no such line.
func (l *limited) firstLine() string {
	line, _, _ := strings.Cut(strings.TrimSpace(l.text.String()), "\n")
	if line = safetext.Line(strings.TrimSpace(line)); line == "" {
		return ""
	}
	if len(line) > maxShown {
		line = strings.ToValidUTF8(line[:maxShown], "") + "…"
	}
	return ": " + line
}
