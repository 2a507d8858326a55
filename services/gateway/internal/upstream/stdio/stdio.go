// Package stdio runs MCP servers as child processes that speak MCP over standard input
// and output (MCP 2025-11-25, "Transports", "stdio").
package stdio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/quota"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/internal/scrub"
)

// Config says how to run a server.
type Config struct {
	// Name is the server's configured name: ^[a-z0-9-]{1,32}$.
	Name string
	// Command is the program and its arguments; no shell reads them. The program
	// is an absolute path, or a bare name that is looked for in Path.
	Command []string
	// Env are variables for the process, references resolved. They may set PATH
	// and HOME. Besides these two and Env a process inherits nothing.
	Env map[string]string
	// Secrets are values that no answer is to hold; those of at least 8 bytes are
	// blotted out of it.
	Secrets []string
	// Path is the PATH of the processes. Absolute folders of it, and of a PATH in Env, that do not exist when the
	// server is made are left out: a process could make one, and put programs into it.
	Path string
	// Install is how the package of the program is installed before the first process is started; nil: it is there
	// already, or the command installs it at each start.
	Install *Install
	// Home is the HOME of the processes where Dir is set. A process in a private
	// folder has that folder as its HOME, so that what programs keep there is not
	// shared either.
	Home string
	// Shared means one process for all principals; otherwise each has its own.
	Shared bool
	// Dir is the working directory, an absolute path. Empty means a private one
	// below WorkRoot, which a later process of the same principal finds again. That of an agent of the mesh is removed
	// when no process has used it for 7 days.
	Dir string
	// WorkRoot is where private folders are made, an absolute path. Not needed
	// where Dir is set.
	WorkRoot string
	// Remove are files that an earlier process may have left behind, such as a lock,
	// as clean paths relative to the private folder. What is there of them is removed
	// before a process is started; where that can't be, or it is no regular file, or
	// a symbolic link leads out of the folder, none is. Not to be set with Dir.
	Remove []string
	// Recycle is how many calls of tools a process serves. Then it is ended as soon as
	// none is in flight, and the next request starts another; 0 means as many as come.
	Recycle int
	// Limits are what one process may take; the zero value means [DefaultLimits].
	Limits Limits
	// Start bounds the time from a start to the answer to initialize. 0 means 60 s and longer, up to 10 min, while the
	// process writes to standard error.
	Start time.Duration
	// WriteTimeout is how long a process may leave a message unread before it is
	// ended; 0 means 10 s.
	WriteTimeout time.Duration
	// IdleTimeout is how long a process lives after its last session was closed;
	// 0 means 5 min.
	IdleTimeout time.Duration
	// MaxProcesses is how many principals may have a process at a time; 0 means
	// 256. One principal and all agents made by it may have a quarter of them, and all principals of one
	// person half, each at least one. Where Shared is set there is one process.
	MaxProcesses int
	// MaxMessage is the longest line that is taken from a process, in bytes; one
	// that is longer ends the process. 0 means [upstream.MaxMessage], which is also the
	// most.
	MaxMessage int
}

// Deps is what a server over stdio needs.
type Deps struct {
	// Log receives starts and ends of processes, what is dropped of their messages
	// and, at level debug only, for it may quote arguments, their standard error.
	// Values of Config.Env are blotted out.
	Log *slog.Logger
	// Room is where answers lie until they are read.
	Room *room.Room
	// Sandbox starts the processes.
	Sandbox *sandbox.Sandbox
	// Installer makes the sandbox for Config.Install, whose own folder alone is writable, and scripts that for install
	// scripts where these run apart. It is called for each installation; not needed without Config.Install.
	Installer func() (installer, scripts *sandbox.Sandbox, err error)
	// Limiter holds them to their limits.
	Limiter *proclimit.Limiter
	// Installs lets one installation of a package run at a time, of all servers; nil: of this one.
	Installs *Installs
}

// New returns a server that is run as child processes. None is started
// before a session is opened, and one that has ended is started again by the
// next request: its sessions go on, though the server has forgotten what it kept
// in memory.
//
// A process ends with its whole group: its standard input is closed, it gets
// SIGTERM, and 2 s later SIGKILL; one that has reached a limit gets that at once. What has left the group is killed
// likewise, as far as deps.Limiter knows of it.
//
// A process is initialized once, with the initialize of the session that
// started it, of a shared server without client capabilities: such a process can't know
// which of its sessions to ask, so the gateway answers its requests itself (ping with a
// result, all else with -32601). All sessions get that one answer to initialize.
// One that refuses it is asked for 2026-07-28 (server/discover), which has no
// sessions; where it speaks that, the next ones are asked for that first.
//
// Ids and progress tokens are replaced by numbers of the gateway's own, so that
// sessions of one process can't meet. Progress goes to the request whose token
// it has. A log message goes to the one request in flight, unless the server is
// shared or there are more. What else it says goes to who listens, or subscribes.
// Messages that are malformed or answer nothing are dropped.
//
// Errors of sessions quote the process's standard error, which may hold data of
// other sessions: they are for the operator, not for clients.
func New(cfg Config, deps Deps) (upstream.Transport, error) {
	if deps.Log == nil || deps.Room == nil || deps.Sandbox == nil || deps.Limiter == nil {
		return nil, errors.New("stdio: a log, room for answers, a sandbox and a limiter are required")
	}
	if !groupsWork {
		return nil, fmt.Errorf("server %q: processes are run on Unix alone; reach it over http", cfg.Name)
	}
	if cfg.Install != nil && deps.Installer == nil {
		return nil, errors.New("stdio: a sandbox for the installation is required")
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("server %q: %w", cfg.Name, err)
	}
	cfg.Command = slices.Clone(cfg.Command)
	cfg.Env = maps.Clone(cfg.Env)
	cfg.Remove = slices.Clone(cfg.Remove)
	cfg.Limits = cmp.Or(cfg.Limits, DefaultLimits())
	cfg.Path = present(cfg.Path)
	if path, ok := cfg.Env["PATH"]; ok {
		cfg.Env["PATH"] = present(path)
	}
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 10*time.Second)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 5*time.Minute)
	cfg.MaxProcesses = cmp.Or(cfg.MaxProcesses, 256)
	cfg.MaxMessage = cmp.Or(cfg.MaxMessage, upstream.MaxMessage)
	if deps.Installs == nil {
		deps.Installs = new(Installs)
	}
	closing, stop := context.WithCancelCause(context.Background())
	s := &transport{
		closing: closing, stop: stop, installs: deps.Installs, installed: packageOf(cfg.Command),
		cfg:   cfg,
		log:   deps.Log.With("server", cfg.Name),
		box:   deps.Sandbox,
		limit: deps.Limiter,
		clean: scrub.New(cfg.Env, cfg.Secrets),
		told:  scrub.Every(slices.AppendSeq(slices.Clone(cfg.Secrets), maps.Values(cfg.Env))),
		room:  deps.Room,
		hosts: make(map[principal.Key]*host),
		shares: quota.NewTally("processes of this server", quota.Limits{
			Principal: max(1, cfg.MaxProcesses/4), Person: max(1, cfg.MaxProcesses/2),
		}),
	}
	if cfg.Install != nil {
		s.program = &program{Install: cfg.Install, server: s, boxes: deps.Installer}
	}
	return s, nil
}

var serverName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func (c *Config) check() error {
	switch {
	case !serverName.MatchString(c.Name):
		return errors.New("a name has 1 to 32 lower case letters, digits and hyphens")
	case len(c.Command) == 0 || c.Command[0] == "":
		return errors.New("the command is empty")
	case strings.ContainsRune(c.Command[0], filepath.Separator) && !filepath.IsAbs(c.Command[0]):
		return fmt.Errorf("the program %q is neither an absolute path nor a bare name", c.Command[0])
	case strings.Contains(strings.Join(c.Command, ""), "\x00"):
		return errors.New("the command holds a NUL byte")
	case c.Dir != "" && !filepath.IsAbs(c.Dir):
		return fmt.Errorf("the folder %q is not an absolute path", c.Dir)
	case c.Dir == "" && !filepath.IsAbs(c.WorkRoot):
		return fmt.Errorf("private folders need a root, but %q is not an absolute path", c.WorkRoot)
	case c.Dir != "" && len(c.Remove) > 0:
		return errors.New("files are removed from private folders alone")
	case min(c.Start, c.WriteTimeout, c.IdleTimeout) < 0:
		return errors.New("a timeout is negative")
	case c.Limits != Limits{} && (c.Limits.Tasks < 1 || c.Limits.Memory < 1 || c.Limits.Disk < 1):
		return errors.New("a limit is not positive")
	case c.Recycle < 0:
		return errors.New("the number of calls to recycle after is negative")
	case c.MaxProcesses < 0:
		return errors.New("the number of processes is negative")
	case c.MaxMessage < 0 || c.MaxMessage > upstream.MaxMessage:
		return fmt.Errorf("the longest message is not within 0 to %d bytes", upstream.MaxMessage)
	}
	for _, name := range c.Remove {
		if !inFolder(name) {
			return fmt.Errorf("the file %q to remove is not named by a clean path inside of the folder", name)
		}
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("the variable %q can't be one of a process", name)
		}
	}
	return nil
}

// transport implements upstream.Transport. It owns every goroutine below it.
type transport struct {
	cfg   Config
	log   *slog.Logger
	box   *sandbox.Sandbox
	limit *proclimit.Limiter
	// program is the package that the gateway installs; nil if it installs none.
	program *program
	clean   *scrub.Scrubber
	// told is for what operators are shown of a program's own words.
	told    *scrub.Scrubber
	room    *room.Room
	running sync.WaitGroup
	upstream.ListChanged
	// closing ends when the transport is closed, which stop does.
	closing context.Context //nolint:containedctx // it is the transport's own
	stop    context.CancelCauseFunc
	// installed is the package that a start may install; empty where it installs none.
	installs  *Installs
	installed string
	// era is what the server was found to speak; nil while that is not known.
	era atomic.Pointer[era]

	mu     sync.Mutex // guards all below and the fields of all hosts
	hosts  map[principal.Key]*host
	shares *quota.Tally // of the processes; a shared server has one, which is nobody's
	closed bool
	sweeps bool // whether folders of agents are looked for
}

// Kind implements upstream.Transport.
func (*transport) Kind() string { return "stdio" }

// Open implements upstream.Transport.
func (s *transport) Open(ctx context.Context, who principal.Key, hello upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if hello.Kind() != gate.Request || hello.Method() != mcp.MethodInitialize && hello.Method() != mcp.MethodDiscover {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with initialize, or server/discover", upstream.ErrNeverSent)
	}
	modern := hello.Method() == mcp.MethodDiscover
	m := hello.Message.Clone()
	known := s.era.Load()
	if modern && known != nil && !known.isModern() { // to ask it would start a program
		return s.otherEra(known, m)
	}
	h, err := s.join(who, hello.Room)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	p, err := s.acquire(ctx, h, greetingOf(m, known))
	if err != nil {
		s.leave(h)
		return nil, upstream.Answer{}, err
	}
	if p.modern.Load() != modern {
		s.leave(h)
		return s.otherEra(s.era.Load(), m)
	}
	answer, err := p.greet(m)
	if err != nil {
		s.leave(h)
		return nil, upstream.Answer{}, err
	}
	return newConn(s, h, modern), upstream.Answer{Message: answer}, nil
}

// otherEra is what a greeting comes to of a server that is of the other era.
func (s *transport) otherEra(known *era, hello *gate.Message) (upstream.Conn, upstream.Answer, error) {
	err := fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, s.cfg.Name, upstream.ErrRevision)
	if !known.isModern() {
		return nil, upstream.Answer{}, err
	}
	answer, failed := known.refusal.Addressed(hello.ID.Of(hello.Raw))
	if failed != nil {
		return nil, upstream.Answer{}, err
	}
	return nil, upstream.Answer{Message: answer}, err
}

// Close implements upstream.Transport.
func (s *transport) Close() error {
	s.mu.Lock()
	s.closed = true
	s.stop(upstream.ErrShutdown)
	for _, h := range s.hosts {
		h.stopIdle()
		if h.proc != nil {
			h.proc.end(upstream.ErrShutdown)
		}
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}
