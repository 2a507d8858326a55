// Package stdio runs MCP servers as child processes that use MCP over standard input and output (MCP 2025-11-25,
// Transports, stdio).
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

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/quota"
	"github.com/sluice-mesh/sluice/services/internal/redact"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// Config describes a server and the limits of its processes.
type Config struct {
	// Name is the server's configured name. It matches ^[a-z0-9-]{1,32}$.
	Name string
	// Command is the program and its arguments. No shell interprets them. The program is an absolute path, or a bare
	// name that is looked up in Path.
	Command []string
	// Env contains variables for the process, without unresolved references. They may set PATH and HOME. A process has
	// only the environment variables PATH, HOME and those in Env.
	Env map[string]string
	// Secrets are values that an answer must not contain. Values of at least 8 bytes are redacted.
	Secrets []string
	// Path is the PATH of the processes. New removes absolute directories that do not exist from Path and from a PATH in
	// Env. Otherwise, a process could create such a directory and put programs into it.
	Path string
	// Install describes how the program's package is installed before the first process is started. It is nil if the
	// package is already installed, or if the command installs it at each start.
	Install *Install
	// Home is the HOME of the processes if Dir is set. If Dir is empty, the HOME of a process is its private directory, so
	// that processes share no files in HOME.
	Home string
	// HomeEntries are clean paths relative to Home. For each path that exists, a private directory contains a link to it.
	// HomeEntries must be empty if Dir is set.
	HomeEntries []string
	// Shared is true if one process serves all principals. Otherwise each principal has its own process.
	Shared bool
	// Dir is the absolute path of the working directory. If Dir is empty, each process has a private directory below
	// WorkRoot. Later processes of the same principal use the same directory. The directory of an agent of the mesh is
	// removed when no process has used it for 30 days. It is removed earlier if the person for whom the agent works has
	// too many ended agents.
	Dir string
	// WorkRoot is the absolute path of the directory in which private directories are created. It is not needed if Dir is
	// set.
	WorkRoot string
	// Remove lists files that an earlier process may have left behind, such as a lock. They are clean paths relative to
	// the private directory. Existing files are removed before a process is started. The process is not started if the
	// removal fails, if a file is not a regular file, or if a symbolic link leads out of the directory. Remove must be
	// empty if Dir is set.
	Remove []string
	// Recycle is the number of tool calls that a process serves. After that number of calls, the process is terminated
	// when no call is in flight. The next request then starts another process. If Recycle is 0, there is no limit.
	Recycle int
	// Limits are the limits of one process. The zero value selects [DefaultLimits].
	Limits Limits
	// Start limits how long a process may take from its start until it answers initialize. If it is 0, the limit is 60 s,
	// or up to 10 min if the process keeps writing to standard error.
	Start time.Duration
	// WriteTimeout is how long a process may take to read a message before it is terminated. If it is 0, the limit is 10
	// seconds.
	WriteTimeout time.Duration
	// IdleTimeout is how long a process may run without open sessions before it is terminated. If it is 0, the limit is 5
	// minutes.
	IdleTimeout time.Duration
	// MaxProcesses is the maximum number of principals that have a process at the same time. If it is 0, the maximum is
	// 256. A principal and the agents that it has created may together have a quarter of these processes. All principals
	// of one person may together have half of them. Each of these quotas is at least one process. A shared server has only
	// one process.
	MaxProcesses int
	// MaxMessage is the maximum length, in bytes, of a line from a process. A process that writes a longer line is
	// terminated. If MaxMessage is 0, the maximum is [upstream.MaxMessage]. MaxMessage must not be larger than
	// [upstream.MaxMessage].
	MaxMessage int
}

// Deps are the dependencies of a transport. All fields except Installer and Installs are required. Installer is
// required if Config.Install is set.
type Deps struct {
	// Log receives messages about processes that start or end, and about dropped messages. At debug level it also
	// receives the processes' standard error, which may quote arguments. Values in Config.Env are redacted.
	Log *slog.Logger
	// Room is the memory budget for messages that are read from processes. The memory for an answer is later charged to
	// the request that it answers.
	Room *limits.Budget
	// Sandbox starts the processes.
	Sandbox *sandbox.Sandbox
	// Installer returns two sandboxes for one installation of Config.Install. It is called for each installation. In the
	// first sandbox, only the installation's directory is writable. The second sandbox is used for install scripts if they
	// run separately.
	Installer func() (installer, scripts *sandbox.Sandbox, err error)
	// Limiter enforces the processes' limits.
	Limiter *proclimit.Limiter
	// Agents returns the subjects of a tenant's agents that have not ended or can still be restored.
	Agents func(ctx context.Context, tenant string) (map[string]bool, error)
	// Installs allows only one installation of a package at a time, for all servers with the same Installs. If it is nil,
	// the server uses its own Installs.
	Installs *Installs
}

// New returns a transport to a server that runs as child processes. A process is started when a session is opened. If
// the process has ended, the next request starts another process. Sessions then stay open, but the server's state in
// memory is lost.
//
// A process is terminated together with its process group. The gateway closes the standard input, then sends SIGTERM,
// and 2 s later SIGKILL. A process that has reached a limit receives SIGKILL immediately. Processes that have left the
// group are killed if deps.Limiter can find them.
//
// A process is initialized once, with the initialize request of the session that has started it. All sessions receive
// the answer to that request. For a shared server, the request declares no client capabilities, because the process
// could not distinguish the clients. The gateway itself responds to requests from a shared process. It responds to ping
// with a result, and to all other requests with the error -32601.
//
// If a server refuses initialize, the gateway sends server/discover to determine whether the server supports revision
// 2026-07-28, which has no sessions. If it does, the server's next processes receive server/discover first.
//
// The gateway replaces ids and progress tokens with its own numbers, so that the ids and tokens of different sessions
// can't collide in one process. A progress notification is passed to the request that has its token. A log message is
// passed to the request in flight if there is exactly one and the server is not shared. Other messages are passed to
// listeners and subscriptions. Malformed messages and answers without a request are dropped.
//
// Errors of a session may quote the standard error of the process, which can contain data of other sessions. Only
// operators may see these errors.
func New(cfg Config, deps Deps) (upstream.Transport, error) {
	if deps.Log == nil || deps.Room == nil || deps.Sandbox == nil || deps.Limiter == nil || deps.Agents == nil {
		return nil, errors.New("stdio: a log, a memory budget for answers, a sandbox, a limiter and the agents are required")
	}
	if !groupsWork {
		return nil, fmt.Errorf("server %q: stdio servers run only on Unix; connect to it over http", cfg.Name)
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
	cfg.Path = existingFolders(cfg.Path)
	if path, ok := cfg.Env["PATH"]; ok {
		cfg.Env["PATH"] = existingFolders(path)
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
		cfg:              cfg,
		log:              deps.Log.With("server", cfg.Name),
		box:              deps.Sandbox,
		limit:            deps.Limiter,
		agents:           deps.Agents,
		clean:            redact.New(cfg.Env, cfg.Secrets),
		operatorScrubber: redact.NewForAllForms(slices.AppendSeq(slices.Clone(cfg.Secrets), maps.Values(cfg.Env))),
		room:             deps.Room,
		hosts:            make(map[principal.Key]*host),
		processCount: quota.NewTally("processes of this server", quota.Limits{
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
		return errors.New("the name must have 1 to 32 lower case letters, digits and hyphens")
	case len(c.Command) == 0 || c.Command[0] == "":
		return errors.New("the command is empty")
	case strings.ContainsRune(c.Command[0], filepath.Separator) && !filepath.IsAbs(c.Command[0]):
		return fmt.Errorf("the program %q is neither an absolute path nor a bare name", c.Command[0])
	case strings.Contains(strings.Join(c.Command, ""), "\x00"):
		return errors.New("the command contains a NUL byte")
	case c.Dir != "" && !filepath.IsAbs(c.Dir):
		return fmt.Errorf("the folder %q is not an absolute path", c.Dir)
	case c.Dir == "" && !filepath.IsAbs(c.WorkRoot):
		return fmt.Errorf("private folders need a root, but %q is not an absolute path", c.WorkRoot)
	case c.Dir != "" && len(c.Remove) > 0:
		return errors.New("files to remove need a private folder, but a folder is configured")
	case min(c.Start, c.WriteTimeout, c.IdleTimeout) < 0:
		return errors.New("a timeout is negative")
	case c.Limits != Limits{} && (c.Limits.Tasks < 1 || c.Limits.Memory < 1 || c.Limits.Disk < 1):
		return errors.New("a limit is not positive")
	case c.Recycle < 0:
		return errors.New("the number of calls for each process is negative")
	case c.MaxProcesses < 0:
		return errors.New("the number of processes is negative")
	case c.MaxMessage < 0 || c.MaxMessage > upstream.MaxMessage:
		return fmt.Errorf("the longest message is not within 0 to %d bytes", upstream.MaxMessage)
	}
	if c.Dir != "" && len(c.HomeEntries) > 0 {
		return errors.New("entries of HOME need a private folder, but a folder is configured")
	}
	for _, name := range c.Remove {
		if !inFolder(name) {
			return fmt.Errorf("the file %q to remove is not a clean path inside the folder", name)
		}
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("the variable %q can't be set for a process", name)
		}
	}
	return nil
}

// transport implements upstream.Transport. Its Close method waits for all goroutines of the transport.
type transport struct {
	cfg    Config
	log    *slog.Logger
	box    *sandbox.Sandbox
	limit  *proclimit.Limiter
	agents func(ctx context.Context, tenant string) (map[string]bool, error)
	// program is the package that the gateway installs. It is nil if the gateway installs no package.
	program *program
	clean   *redact.Redactor
	// operatorScrubber redacts a process's output before operators can read it.
	operatorScrubber *redact.Redactor
	room             *limits.Budget
	running          sync.WaitGroup
	upstream.ListChanged
	// closing is the context of all operations of the transport. stop cancels it when the transport is closed.
	closing context.Context //nolint:containedctx // the context of the transport
	stop    context.CancelCauseFunc
	// installs allows only one installation of a package at a time. installed is the package that a process may install
	// when it starts, or "".
	installs  *Installs
	installed string
	// family records which revisions the server supports. It is nil until this is known.
	family atomic.Pointer[protocolFamily]

	mu           sync.Mutex // guards the fields below and the fields of all hosts
	hosts        map[principal.Key]*host
	processCount *quota.Tally // counts the processes of each principal, but not the process of a shared server
	closed       bool
	sweeps       bool // true if agents' unused directories are being removed
}

// Kind implements upstream.Transport.
func (*transport) Kind() string { return "stdio" }

// Open implements upstream.Transport.
func (s *transport) Open(ctx context.Context, key principal.Key, hello upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if hello.Kind() != jsonrpc.Request || hello.Method() != mcp.MethodInitialize && hello.Method() != mcp.MethodDiscover {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with initialize or server/discover", upstream.ErrNeverSent)
	}
	modern := hello.Method() == mcp.MethodDiscover
	m := hello.Message.Clone()
	known := s.family.Load()
	if modern && known != nil && !known.isModern() { // otherwise, this request would start a process
		return s.wrongFamily(known, m)
	}
	h, err := s.addSession(key, hello.Room)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	p, err := s.acquire(ctx, h, greetingOf(m, known))
	if err != nil {
		s.removeSession(h)
		return nil, upstream.Answer{}, err
	}
	if p.modern.Load() != modern {
		s.removeSession(h)
		return s.wrongFamily(s.family.Load(), m)
	}
	answer, err := p.greetingFor(m)
	if err != nil {
		s.removeSession(h)
		return nil, upstream.Answer{}, err
	}
	return newConn(s, h, modern), upstream.Answer{Message: answer}, nil
}

// wrongFamily returns the result of Open if the server does not support the client's revisions.
func (s *transport) wrongFamily(known *protocolFamily, hello *jsonrpc.Message) (upstream.Conn, upstream.Answer, error) {
	err := fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, s.cfg.Name, upstream.ErrRevision)
	if !known.isModern() {
		return nil, upstream.Answer{}, err
	}
	answer, failed := known.refusal.WithID(hello.ID.Of(hello.Raw))
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
