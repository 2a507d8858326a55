package stdio

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// Install is how the package of a server's program is installed, once for all its processes.
type Install struct {
	// Command names the package and what runs of it.
	Command npx.Command
	// Folder is where the server's packages are installed, and Digest names what Command and all else come to that
	// decides what is installed.
	Folder npx.Folder
	Digest string
	// NPM is the file of npm, and Env its environment without PATH, HOME and TMPDIR. Install scripts of packages read it.
	NPM string
	Env map[string]string
	// ScriptsApart runs the install scripts of packages in a step and a sandbox of their own.
	ScriptsApart bool
}

const (
	// installLimit is how long an installation may last. npm says nothing while a package builds, so silence is no
	// reason to end it.
	installLimit = 10 * time.Minute
	// renewAfter is how old an installation is that a start has renewed, of a package without an exact version, and
	// renewAgain how long after that the next attempt is where one failed.
	renewAfter = 24 * time.Hour
	renewAgain = time.Hour
	// renewWait is how long a start waits for that, before it takes the older one.
	renewWait = 20 * time.Second
	// installPause is how long after a failure the next installation is, which doubles so many times.
	installPause     = 5 * time.Second
	installDoublings = 5
)

// errInstall is in the chain of every error of an installation.
var errInstall = errors.New("its package was not installed")

// program is the installed package of a server.
type program struct {
	*Install

	server *transport
	boxes  func() (installer, scripts *sandbox.Sandbox, err error)

	mu sync.Mutex // guards all below
	// newest is what the next process runs; nil until it is known.
	newest *usedProgram
	// underWay is the installation that runs; nil if none does.
	underWay *installing
	// failure is the end of the last one if it has failed, failed when that was, and failures how many in a row have.
	failure  *upstream.CauseError
	failed   time.Time
	failures int
}

// usedProgram is an installation with the number of processes that run it.
type usedProgram struct {
	*npx.Installed

	users int
}

// installing is one installation. Its error is set before done is closed.
type installing struct {
	begun time.Time
	done  chan struct{}
	err   error
}

// take returns the program for a process, which gives it back. It installs the package if need be, and waits for that.
func (p *program) take() (*usedProgram, error) {
	p.mu.Lock()
	found := p.Folder.Newest(p.Digest)
	missing := found == nil
	switch {
	case missing:
		p.newest = nil // an operator may have removed it
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

// isOld reports whether a newer version is to be looked for. It needs the lock.
func (p *program) isOld(found *npx.Installed) bool {
	return !p.Command.IsExact() && time.Since(found.Since) > renewAfter && time.Since(p.failed) > renewAgain
}

// paused returns the last failure while no other installation is to be begun. It needs the lock.
func (p *program) paused() error {
	if p.failure == nil || p.underWay != nil {
		return nil
	}
	wait := installPause<<min(p.failures-1, installDoublings) - time.Since(p.failed)
	if wait <= 0 {
		return nil
	}
	again := *p.failure
	again.RetryAfter = wait
	return &again
}

// begin begins an installation unless one is under way. It needs the lock.
func (p *program) begin() *installing {
	if p.underWay == nil {
		run := &installing{begun: time.Now(), done: make(chan struct{})}
		p.underWay = run
		p.server.running.Go(func() { p.finish(run) })
	}
	return p.underWay
}

// await waits for the end of an installation, if there is an older one at most until renewWait after it began.
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

// finish installs the package.
func (p *program) finish(run *installing) {
	installed, err := p.install()
	p.mu.Lock()
	old := p.newest
	p.underWay = nil
	if err != nil {
		cause := p.cause(err)
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

// cause returns the error that callers and operators are told.
func (p *program) cause(err error) *upstream.CauseError {
	text := fmt.Sprintf("the installation of %s for server %s failed", upstream.Escaped(p.Command.Shown(), tailKept), p.server.cfg.Name)
	out := &upstream.CauseError{Text: text, RetryAfter: installPause << min(p.failures, installDoublings), Err: fmt.Errorf("%s: %w: %w", text, errInstall, err)}
	if limit, ok := errors.AsType[*upstream.LimitError](err); ok {
		out.Text += fmt.Sprintf(": %s (%s)", limit.What, limit.Key)
		out.Err = fmt.Errorf("%w: %s", errInstall, out.Text) // the chain holds no limit: it was not the server's process
		return out
	}
	detail := err.Error()
	if failed, ok := errors.AsType[*npmError](err); ok {
		detail = failed.said
	}
	out.Detail = upstream.Escaped(p.server.told.Log(detail), stderrKept)
	return out
}

// report has the log tell the end of an installation.
func (p *program) report(installed *npx.Installed, err error, hasOlder bool) {
	log, ctx := p.server.log.With("package", p.Command.Shown()), context.Background()
	switch cause := upstream.CauseOf(err); {
	case err == nil:
		log.InfoContext(ctx, "package installed", "version", installed.Version, "folder", installed.Dir)
	case errors.Is(err, upstream.ErrShutdown):
		log.InfoContext(ctx, "package not installed", "reason", "the gateway stops")
	case hasOlder:
		log.WarnContext(ctx, "no newer version of the package was installed; the server goes on with the older one", "next_attempt", renewAgain, "reason", cause.Detail)
	default:
		log.WarnContext(ctx, "package not installed; calls to the server are refused", "reason", cause.Detail)
	}
}

// notice says that an older version goes on because the last installation has failed; empty if it has not.
func (p *program) notice() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil || p.failure == nil { // without a version calls are refused, which the last error says
		return ""
	}
	return upstream.Escaped(fmt.Sprintf("no newer version of %s could be installed, so version %s goes on: %s",
		p.Command.Shown(), p.newest.Version, p.failure.Detail), stderrKept)
}

// give gives a program back when its process has ended.
func (p *program) give(used *usedProgram) {
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

// isInstalling reports whether a process waits for an installation.
func (p *program) isInstalling() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.underWay != nil && p.newest == nil
}
