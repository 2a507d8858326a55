package stdio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

const (
	killAfter = 2 * time.Second
	// settleTime is how long a process may take to exit by itself after the process or the gateway has closed a pipe (MCP
	// 2025-11-25, Shutdown). If the process exits within this time, its exit status is known.
	settleTime = 500 * time.Millisecond
	// statusTime is how long the gateway waits for the exit status of a process that has closed a pipe. On a busy
	// machine, a process that runs in its own namespaces takes longer than settleTime to exit.
	statusTime = 2 * time.Second
	// drainTime is how long the gateway reads the rest of the output after the process and its group have ended. After
	// that, only a descendant that has left the group can keep a pipe open.
	drainTime = time.Second
)

// process is one child process with its process group. The goroutine that runs supervise controls it.
type process struct {
	server  *transport
	host    *host
	log     *slog.Logger
	os      *os.Process
	started time.Time

	stdin, stdout, stderr *os.File
	// lines contains messages whose senders wait until they are written. replies contains messages from the gateway for
	// which no sender waits.
	lines     chan outgoing
	replies   chan []byte
	piping    sync.WaitGroup
	lastLines stderrTail
	// starting is a timer that limits how long the start may take.
	starting startTime
	// group contains the process and its descendants. disk measures the process's private directory.
	group *proclimit.Group
	disk  *disk
	// program is the installed package that the process runs, or nil for any other program.
	program *usedProgram

	// endings receives the reason why the process must end. Only the first reason counts.
	endings chan ending
	// exited is closed when the process has ended. writeEnded is closed when nothing more is written to the process. done
	// is closed when the process's output has ended and all processes in the group are dead.
	exited, writeEnded, done chan struct{}
	// reason is the reason why the gateway has terminated the process. It is nil if the process exited by itself.
	reason error
	// cause describes how the process ended. It is set before done is closed.
	cause error

	// room is the memory for the line that is being read. reading is cancelled when no other line is needed.
	room    *limits.Memory
	reading context.Context //nolint:containedctx // the context of the process
	unread  context.CancelFunc
	calls   callTable
	// drops contains the number of dropped messages by reason. Only the goroutine that runs read uses it.
	drops map[string]int
	// greeting contains the handshake requests. The first is the request that the process has accepted. hello is the
	// answer to this request. modern is true if the request was server/discover (revision 2026-07-28). These fields are
	// set before the process is used.
	greeting greeting
	hello    *jsonrpc.Answer
	modern   atomic.Bool
}

// ending is a request to terminate a process.
type ending struct {
	reason error
	// broken is true if the process has closed a pipe. In this case, it will probably exit soon.
	broken bool
}

// launch starts the process of a host.
func (s *transport) launch(h *host, used *usedProgram) (*process, error) {
	command, err := s.prepare(h, used)
	if err != nil {
		return nil, err
	}
	p := &process{
		server:     s,
		host:       h,
		started:    time.Now(),
		lines:      make(chan outgoing),
		replies:    make(chan []byte, 16),
		endings:    make(chan ending, 1),
		exited:     make(chan struct{}),
		writeEnded: make(chan struct{}),
		done:       make(chan struct{}),
		calls:      callTable{byID: make(map[int64]*pendingCall), abandoned: make(map[int64]struct{})},
		drops:      make(map[string]int),
		room:       h.room.Sibling(),
		program:    used,
	}
	p.disk = newDisk(s, command.Own)
	if err := p.disk.admit(); err != nil {
		return nil, err
	}
	p.group = s.limit.Group(s.cfg.Name, proclimit.Limits{Tasks: s.cfg.Limits.Tasks, Memory: s.cfg.Limits.Memory})
	p.reading, p.unread = context.WithCancel(context.Background())
	childEnds, err := p.pipes()
	if err != nil {
		p.group.Close()
		return nil, err
	}
	started := make(chan error, 1)
	s.running.Go(func() { p.supervise(command, childEnds, started) })
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// pipes creates the pipes and returns the ends for the child process.
func (p *process) pipes() (child [3]*os.File, err error) {
	var ends [6]*os.File
	for i := 0; i < len(ends); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ends[:i]...)
			return child, fmt.Errorf("make a pipe: %w", err)
		}
		ends[i], ends[i+1] = r, w //nolint:gosec // the array has an even length, and i increases by two
	}
	p.stdin, p.stdout, p.stderr = ends[1], ends[2], ends[4]
	return [3]*os.File{ends[0], ends[3], ends[5]}, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// supervise runs the process from its start to its end.
func (p *process) supervise(command sandbox.Command, childEnds [3]*os.File, started chan<- error) {
	// Pdeathsig kills the child when the thread that started it ends. This can happen while the gateway is running, so the
	// thread is locked for the child's lifetime.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var err error
	p.os, err = p.server.box.StartJoined(command, childEnds, ownGroup(), p.group.Join)
	closeAll(childEnds[:]...)
	if err != nil {
		closeAll(p.stdin, p.stdout, p.stderr)
		p.group.Close()
		started <- err
		return
	}
	p.log = p.server.log.With("pid", p.os.Pid)
	p.log.InfoContext(context.Background(), "server process started")
	p.piping.Go(p.write)
	p.piping.Go(p.read)
	p.piping.Go(p.listen)
	var guarding sync.WaitGroup
	guarding.Go(p.guard)
	started <- nil

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.stop()
	}()
	awaitExit(p.os)
	close(p.exited)
	<-stopped
	guarding.Wait()
	// Before Wait, the leader is a zombie. Therefore, its process id, which is also the id of the group, can't have been
	// reused.
	signalGroup(p.os, syscall.SIGKILL)
	p.settleLimit()
	p.group.End()
	p.drain()
	state, _ := p.os.Wait()
	p.group.Close()
	p.logEnd(state)
}

// stop waits until the process has ended or must be terminated. If it must be terminated, stop terminates it.
func (p *process) stop() {
	p.reason = p.untilEnd()
	close(p.writeEnded)
	p.unread()
	_ = p.stdin.Close()
	if _, limited := errors.AsType[*upstream.LimitError](p.reason); limited {
		signalGroup(p.os, syscall.SIGKILL)
		p.group.End()
		return
	}
	if p.exits(settleTime) {
		return
	}
	signalGroup(p.os, syscall.SIGTERM)
	if !p.exits(killAfter) {
		signalGroup(p.os, syscall.SIGKILL)
	}
}

// untilEnd waits until the process has ended or must be terminated. It returns the reason for terminating the process,
// or nil if the process has ended by itself.
func (p *process) untilEnd() error {
	select {
	case <-p.exited:
		return nil
	case e := <-p.endings:
		if e.broken && p.exits(statusTime) {
			return nil
		}
		return e.reason
	}
}

// exits waits for at most d, and reports whether the process has ended.
func (p *process) exits(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// drain reads the rest of the pipes and closes them.
func (p *process) drain() {
	timer := time.AfterFunc(drainTime, func() { closeAll(p.stdout, p.stderr) })
	p.piping.Wait()
	timer.Stop()
	closeAll(p.stdout, p.stderr)
}

// logEnd records and logs how the process ended.
func (p *process) logEnd(state *os.ProcessState) {
	how := p.reason
	if how == nil {
		how = &upstream.CauseError{
			Text: fmt.Sprintf("it ended, %s", state), Detail: p.lastLines.line(),
			Err: fmt.Errorf("it ended by itself, %s after its start (%s)", time.Since(p.started).Round(time.Millisecond), state),
		}
	}
	p.cause = p.describe(how)
	level := slog.LevelWarn
	if errors.Is(how, errIdle) || errors.Is(how, errRecycled) || errors.Is(how, upstream.ErrShutdown) {
		level = slog.LevelInfo
	}
	if !p.calls.hasCalls() {
		how = p.cause
	} // in other cases, the last lines are not logged, because they may quote arguments
	p.log.Log(context.Background(), level, "server process ended", "cause", how, "dropped", p.drops)
	p.cancelRequests()
	if p.program != nil {
		p.server.program.release(p.program)
	}
	close(p.done)
}

// describe returns an error that says how the process has ended. The error contains the names of the server and the
// program, and the last lines of standard error. If err wraps an [upstream.CauseError], the error contains the text and
// the detail of that error.
func (p *process) describe(err error) error {
	text := ""
	if n := p.drops[dropMalformed]; n > 0 {
		text = fmt.Sprintf("; %d lines of its standard output were not messages", n)
	}
	out := &upstream.CauseError{Text: err.Error(), Detail: p.lastLines.line()}
	if cause := upstream.CauseOf(err); cause != nil {
		out.Text = cause.Text
		if cause.Detail != "" {
			out.Detail = cause.Detail
		}
	}
	out.Err = fmt.Errorf("server %q (%s): %w%s%s", p.server.cfg.Name, p.server.cfg.Command[0], err, text, p.lastLines.last())
	return out
}

// end makes the goroutine that runs supervise terminate the process. It does not wait until the process has ended.
func (p *process) end(reason error) { p.requestEnd(ending{reason: reason}) }

// endBroken makes the goroutine that runs supervise terminate a process that has closed a pipe.
func (p *process) endBroken(reason error) { p.requestEnd(ending{reason: reason, broken: true}) }

func (p *process) requestEnd(e ending) {
	select {
	case p.endings <- e:
	default: // the process is already ending
	}
}

// isGone reports whether the process accepts no more messages.
func (p *process) isGone() bool { return isClosed(p.writeEnded) }

func (p *process) isDone() bool { return isClosed(p.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
