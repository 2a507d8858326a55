package stdio

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// Install describes how the package of a server's program is installed. One installation is used for all processes of
// the server.
type Install struct {
	// Command names the package and the program in the package.
	Command npx.Command
	// Folder is the directory that contains the server's installations. Digest is the digest of Command and all other
	// inputs of an installation.
	Folder npx.Folder
	Digest string
	// NPM is the path of the npm program. Env is npm's environment without PATH, HOME and TMPDIR. The install scripts of
	// packages can read Env.
	NPM string
	Env map[string]string
	// ScriptsApart is true if install scripts run in a separate step and a separate sandbox.
	ScriptsApart bool
}

const (
	// installLimit limits how long an installation may take. The gateway does not stop an installation earlier, because
	// npm prints nothing while it builds a package.
	installLimit = 10 * time.Minute
	// renewAfter is the maximum age of an installation if the command names no exact version of the package. When a
	// process is started, an older installation is renewed. renewAgain is the time between a failed renewal and the next
	// attempt.
	renewAfter = 24 * time.Hour
	renewAgain = time.Hour
	// renewWait limits how long the start of a process waits for a renewal before it uses the older version.
	renewWait = 20 * time.Second
	// installPause is the pause after a failed installation. It doubles with each further failure, up to
	// installDoublings times.
	installPause     = 5 * time.Second
	installDoublings = 5
)

// errInstall means that a package was not installed. All errors of installations wrap it.
var errInstall = errors.New("its package was not installed")

type program struct {
	*Install

	server *transport
	boxes  func() (installer, scripts *sandbox.Sandbox, err error)

	mu sync.Mutex // guards the fields below
	// newest is the program that the next process runs, or nil while it is not known.
	newest *usedProgram
	// underWay is the installation that is in progress, or nil if there is none.
	underWay *installing
	// failure is the error of the last installation, or nil if the installation succeeded. failed is the time of the
	// failure, and failures is the number of consecutive failures.
	failure  *upstream.CauseError
	failed   time.Time
	failures int
}

// usedProgram is an installation, together with the number of processes that run it.
type usedProgram struct {
	*npx.Installed

	users int
}

// installing is one installation in progress. Its error is set before done is closed.
type installing struct {
	begun time.Time
	// place is the installation's slot in the queue of all installations, or nil if the installation has no slot yet.
	place atomic.Pointer[place]
	done  chan struct{}
	err   error
}

// acquire returns the program for a process. If necessary, it installs the package first. The caller must call release
// when the process has ended.
func (p *program) acquire() (*usedProgram, error) {
	p.mu.Lock()
	found := p.Folder.Latest(p.Digest)
	missing := found == nil
	switch {
	case missing:
		p.newest = nil // an operator may have removed the directory
	case p.newest == nil || p.newest.Dir != found.Dir:
		p.newest = &usedProgram{Installed: found}
	}
	if !missing && !p.isOld(found) {
		defer p.mu.Unlock()
		p.newest.users++
		return p.newest, nil
	}
	if err := p.paused(); missing && err != nil {
		p.mu.Unlock()
		return nil, err
	}
	run := p.begin()
	p.mu.Unlock()
	run.await(missing)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil {
		return nil, run.err
	}
	p.newest.users++
	return p.newest, nil
}

// isOld reports whether an installation must be renewed. The caller must hold the lock.
func (p *program) isOld(found *npx.Installed) bool {
	return !p.Command.IsExact() && time.Since(found.Since) > renewAfter && time.Since(p.failed) > renewAgain
}

// paused returns the last failure if the next installation may not begin yet. The caller must hold the lock.
func (p *program) paused() error {
	if p.failure == nil || p.underWay != nil {
		return nil
	}
	wait := installPause<<min(p.failures-1, installDoublings) - time.Since(p.failed)
	if wait <= 0 {
		return nil
	}
	copied := *p.failure
	copied.RetryAfter = wait
	return &copied
}

// begin starts an installation unless one is in progress. The caller must hold the lock.
func (p *program) begin() *installing {
	if p.underWay == nil {
		run := &installing{begun: time.Now(), done: make(chan struct{})}
		p.underWay = run
		p.server.running.Go(func() { p.finish(run) })
	}
	return p.underWay
}

// await waits until an installation has ended. If missing is false, an older version exists. In this case, await
// returns at the latest when renewWait has passed since the installation began.
func (i *installing) await(missing bool) {
	if missing {
		<-i.done
		return
	}
	timer := time.NewTimer(renewWait - time.Since(i.begun))
	defer timer.Stop()
	select {
	case <-i.done:
	case <-timer.C:
	}
}

// finish installs the package and records the result.
func (p *program) finish(run *installing) {
	installed, err := p.install(run)
	p.mu.Lock()
	old := p.newest
	p.underWay = nil
	if err != nil {
		cause := p.causeOf(err)
		p.failure, p.failed, run.err = cause, time.Now(), cause
		p.failures++
	} else {
		p.newest, p.failure, p.failed, p.failures = &usedProgram{Installed: installed}, nil, time.Time{}, 0
	}
	unused := err == nil && old != nil && old.users == 0
	close(run.done)
	p.mu.Unlock()
	if unused {
		p.remove(old)
	}
	p.report(installed, run.err, old != nil)
}

// causeOf converts the error of an installation into a form that callers and operators may see.
func (p *program) causeOf(err error) *upstream.CauseError {
	text := fmt.Sprintf("the installation of %s for server %s failed", upstream.Escaped(p.Command.DisplayPackage(), maxTailLine), p.server.cfg.Name)
	out := &upstream.CauseError{Text: text, RetryAfter: installPause << min(p.failures, installDoublings), Err: fmt.Errorf("%s: %w: %w", text, errInstall, err)}
	if limit, ok := errors.AsType[*upstream.LimitError](err); ok {
		out.Text += fmt.Sprintf(": %s (%s)", limit.What, limit.Key)
		out.Err = fmt.Errorf("%w: %s", errInstall, out.Text) // the error must not wrap a LimitError, because the server's process has not reached a limit
		return out
	}
	detail := err.Error()
	if failed, ok := errors.AsType[*npmError](err); ok {
		detail = failed.reason
	}
	out.Detail = upstream.Escaped(p.server.operatorScrubber.Log(detail), maxLoggedLine)
	return out
}

// report writes a log message about the end of an installation.
func (p *program) report(installed *npx.Installed, err error, hasOlder bool) {
	log, ctx := p.server.log.With("package", p.Command.DisplayPackage()), context.Background()
	switch cause := upstream.CauseOf(err); {
	case err == nil:
		log.InfoContext(ctx, "package installed", "version", installed.Version, "folder", installed.Dir)
	case errors.Is(err, upstream.ErrShutdown):
		log.InfoContext(ctx, "package not installed", "reason", "the gateway is stopping")
	case hasOlder:
		log.WarnContext(ctx, "no newer version of the package was installed; the server keeps the older one", "next_attempt", renewAgain, "reason", cause.Detail)
	default:
		log.WarnContext(ctx, "package not installed; calls to the server are refused", "reason", cause.Detail)
	}
}

// notice returns a warning if an older version is used because the last installation failed. Otherwise it returns "".
func (p *program) notice() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil || p.failure == nil { // if no version is installed, the server's last error contains the reason
		return ""
	}
	return upstream.Escaped(fmt.Sprintf("no newer version of %s could be installed, so version %s is still used: %s",
		p.Command.DisplayPackage(), p.newest.Version, p.failure.Detail), maxLoggedLine)
}

// release records that a process no longer uses an installation. If no other process uses it and a newer installation
// exists, release removes it.
func (p *program) release(used *usedProgram) {
	p.mu.Lock()
	used.users--
	unused := used.users == 0 && used != p.newest
	p.mu.Unlock()
	if unused {
		p.remove(used)
	}
}

func (p *program) remove(old *usedProgram) {
	if err := old.Remove(); err != nil {
		p.server.log.WarnContext(context.Background(), "an older version of the package can't be removed", "folder", old.Dir, "error", err)
	}
}

// progress returns the reason why the start of a process is delayed, or "" if the start is not waiting for an
// installation.
func (p *program) progress() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.underWay == nil || p.newest != nil:
		return ""
	case p.underWay.isWaiting():
		return ": its package is installed after those of other servers"
	default:
		return ": its package is being installed"
	}
}

func (i *installing) isWaiting() bool {
	place := i.place.Load()
	return place != nil && !place.isGranted()
}
