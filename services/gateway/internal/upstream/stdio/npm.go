package stdio

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// npmFlags make npm install into the given directory and report errors in few lines. They override npm's configuration.
var npmFlags = []string{
	"--no-global", "--no-workspaces", "--no-dry-run", "--bin-links", "--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--color=false",
	"--loglevel=warn", "--logs-max=0",
}

// An npmError means that npm failed.
type npmError struct {
	state *os.ProcessState
	// reason is the redacted and escaped reason that npm has printed.
	reason string
}

func (e *npmError) Error() string { return fmt.Sprintf("npm ended, %s: %s", e.state, e.reason) }

// install installs the package. Before that, it waits until no other server is installing the same package, and until a
// slot is free.
func (p *program) install(run *installing) (*npx.Installed, error) {
	s := p.server
	done, err := s.installs.wait(s.closing, s.installed)
	if err != nil {
		return nil, err
	}
	defer done()
	place := s.installs.enqueue()
	defer s.installs.leave(place)
	run.place.Store(place)
	select {
	case <-place.granted:
	case <-s.closing.Done():
		return nil, context.Cause(s.closing)
	}
	return p.installNow()
}

func (p *program) installNow() (*npx.Installed, error) {
	s := p.server
	ctx, cancel := context.WithTimeoutCause(s.closing, max(installLimit, s.cfg.Start), fmt.Errorf("it did not end within %s", max(installLimit, s.cfg.Start)))
	defer cancel()
	installer, scripts, err := p.boxes()
	if err != nil {
		return nil, err
	}
	to, err := p.Folder.Begin()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := to.Remove(); err != nil {
			s.log.WarnContext(ctx, "the folder of an installation can't be removed; the next start of the gateway tries again", "error", err)
		}
	}()
	args := []string{"install", "--save", "--save-prod", "--no-package-lock-only"}
	if p.ScriptsApart {
		args = append(args, "--ignore-scripts")
	}
	if err := p.npm(ctx, installer, to, append(args, "--", p.Command.Package)...); err != nil {
		return nil, err
	}
	if p.ScriptsApart {
		if err := p.npm(ctx, scripts, to, "rebuild"); err != nil {
			return nil, err
		}
	}
	return to.Commit(&p.Command, p.Digest)
}

// npm runs npm in a sandbox with the server's limits, and waits until it ends.
func (p *program) npm(ctx context.Context, box *sandbox.Sandbox, to *npx.Attempt, args ...string) error {
	s := p.server
	// The comment in process.supervise explains why the thread is locked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close() //nolint:errcheck // the file is only read
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	r := &npmRun{server: s, output: read, exited: make(chan struct{}), outputEnded: make(chan struct{}), disk: diskOf(s, to.Work(), "its folder")}
	r.group = s.limit.Group(s.cfg.Name+"-install", proclimit.Limits{Tasks: s.cfg.Limits.Tasks, Memory: s.cfg.Limits.Memory})
	defer r.group.Close()
	r.os, err = box.StartJoined(p.command(to, args), [3]*os.File{null, write, write}, ownGroup(), r.group.Join)
	_ = write.Close() // npm has its own copy of the descriptor
	if err != nil {
		_ = read.Close()
		return fmt.Errorf("start npm: %w", err)
	}
	return r.run(ctx)
}

// command returns the command for npm. npm's environment contains only Install.Env and the PATH from the server's
// environment.
func (p *program) command(to *npx.Attempt, args []string) sandbox.Command {
	env := maps.Clone(p.Env)
	env["PATH"], env["HOME"], env["TMPDIR"] = p.server.cfg.environment("")["PATH"], to.Home(), to.Temporary()
	c := sandbox.Command{Path: p.NPM, Dir: to.Project(), Own: to.Work()}
	c.Args = slices.Concat([]string{p.NPM, args[0]}, npmFlags, []string{"--cache=" + to.Cache()}, args[1:])
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, name+"="+env[name])
	}
	return c
}

type npmRun struct {
	server *transport
	os     *os.Process
	output *os.File
	group  *proclimit.Group
	disk   *disk
	// exited is closed when npm has ended. outputEnded is closed when npm's output has ended.
	exited, outputEnded chan struct{}
	lastLines           stderrTail
	// reasons contains the lines in which npm says why it has failed.
	reasons []string
}

func (r *npmRun) run(ctx context.Context) error {
	go r.listen(ctx)
	go func() {
		awaitExit(r.os)
		close(r.exited)
	}()
	reason := r.untilEnd(ctx)
	if reason != nil {
		signalGroup(r.os, syscall.SIGKILL)
		r.group.End()
		<-r.exited
	}
	signalGroup(r.os, syscall.SIGKILL) // kills the remaining descendants of npm
	if reason == nil {
		reason = r.checkLimits()
	}
	r.group.End()
	closing := time.AfterFunc(drainTime, func() { _ = r.output.Close() })
	<-r.outputEnded
	closing.Stop()
	_ = r.output.Close()
	state, err := r.os.Wait()
	switch {
	case reason != nil:
		return reason
	case err != nil && len(r.reasons) == 0: // awaitExit can lose the exit status, but Commit then checks the result
		return nil
	case err != nil, !state.Success():
		return &npmError{state, r.reasonText()}
	}
	return nil
}

// untilEnd waits until npm has ended. If npm must be terminated before that, it returns an error.
func (r *npmRun) untilEnd(ctx context.Context) error {
	tick := time.NewTicker(proclimit.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.exited:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if err := r.checkLimits(); err != nil {
				return err
			}
		}
	}
}

func (r *npmRun) checkLimits() error {
	exceeded, ok := errors.AsType[*proclimit.ExceededError](r.group.Check())
	if ok {
		return r.server.limitError(exceeded.Limit, exceeded.Error())
	}
	return r.disk.check(time.Now(), r.group)
}

func (r *npmRun) listen(ctx context.Context) {
	defer close(r.outputEnded)
	from := bufio.NewReaderSize(r.output, maxReadLine)
	quota := rate{max: stderrRate, per: time.Second}
	for {
		line, err := firstOfLine(from)
		if len(line) > 0 {
			text := upstream.Escaped(r.server.operatorScrubber.Log(string(line)), maxLoggedLine)
			r.lastLines.add(text)
			r.note(text)
			if quota.allow(time.Now(), 1) {
				r.server.log.DebugContext(ctx, "npm wrote", "line", text)
			}
		}
		if err != nil {
			return
		}
	}
}

const maxReasons = 8

// ignoredLines identify the lines of npm's error output that do not say why npm failed.
var ignoredLines = []string{
	"A complete log of this run", "Log files were not written", "Note that you can also install from a", "tarball, folder, http url, or git folder", "tarball, folder, http url, or git url",
}

func isIgnored(line string) bool {
	return slices.ContainsFunc(ignoredLines, func(words string) bool { return strings.Contains(line, words) })
}

// note stores a line in which npm says why it has failed. It ignores other lines.
func (r *npmRun) note(line string) {
	text, is := strings.CutPrefix(line, "npm error ")
	if !is {
		text, is = strings.CutPrefix(line, "npm ERR! ") // npm 9 and earlier
	}
	text = strings.TrimSpace(text)
	if is && text != "" && text != "404" && len(r.reasons) < maxReasons && !isIgnored(text) {
		r.reasons = append(r.reasons, text)
	}
}

// reasonText returns the reasons that npm has printed, or npm's last line if there are none. It must be called after
// the output has ended.
func (r *npmRun) reasonText() string {
	if len(r.reasons) > 0 {
		return strings.Join(r.reasons, "; ")
	}
	return r.lastLines.line()
}
