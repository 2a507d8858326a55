package config

import (
	"time"

	"github.com/sluice-mesh/sluice/services/internal/observe"
)

// Server is an MCP server behind the gateway. Exactly one of HTTP, Stdio and GRPC must be set.
type Server struct {
	// HTTP connects to a server over Streamable HTTP, or over HTTP+SSE. Set exactly one of `http`, `stdio` and `grpc`.
	HTTP *HTTPServer `yaml:"http"`
	// Stdio starts a program.
	Stdio *StdioServer `yaml:"stdio"`
	// GRPC connects to a gRPC server whose methods are tools.
	GRPC *GRPCServer `yaml:"grpc"`
	// Unwrap is `claude-flow` for a server that hides its tools' errors in results that report success. It is empty for
	// other servers.
	Unwrap string `yaml:"unwrap"`
	// Timeout is the maximum duration of a call: 1 ms to 24 h. The default for the mesh's own agents is `15m`, but `60s`
	// when `sluice up` runs without `servers`.
	Timeout time.Duration `yaml:"timeout"`
	// MaxTimeout is the maximum duration of a call whose server reports progress: `timeout` to 24 h. Each progress message
	// restarts `timeout`. The default is ten times `timeout`, but at most 1 h, and at least `timeout`.
	MaxTimeout time.Duration `yaml:"max_timeout"`
	// Record says what is stored of the calls, besides the journal.
	Record Record `yaml:"record"`
	// Pin is the mode of pinning the tools' definitions: `first_use`, `review` or `off`. Empty means `first_use`, or `off`
	// for the mesh's own agents.
	Pin string `yaml:"pin"`
	// Trusted accepts annotations with which the server declares a tool harmless.
	Trusted bool `yaml:"trusted"`
	// Mode is `enforce` or `observe`. With `observe`, calls that policy would refuse or ask about pass until `until`, and
	// their records contain what policy would have decided.
	Mode string `yaml:"mode"`
	// Until is the end of `mode: observe`: a date, which means midnight UTC at its beginning, or a time. It is at most 30
	// days from the start of the program.
	Until observe.Until `yaml:"until"`

	// host is the client whose own tools the server has, or empty. Only `hooks` adds such servers.
	host string
}

// Host returns the client whose own tools the server has, or "" for an MCP server.
func (s Server) Host() string { return s.host }

// PinMode returns the mode of pinning the definitions of the server's tools. By default, the tools of the mesh's own
// agents and of clients are not pinned, because their definitions are part of the mesh.
func (s Server) PinMode() string {
	switch {
	case s.Pin != "":
		return s.Pin
	case s.host != "", s.GRPC != nil && IsAgentService(s.GRPC.Target):
		return "off"
	default:
		return "first_use"
	}
}

// HTTPServer configures a server over Streamable HTTP, or over HTTP+SSE.
type HTTPServer struct {
	// URL is the address of the MCP endpoint. References are refused. Required.
	URL string `yaml:"url"`
	// Headers are sent with every request.
	Headers map[string]Secret `yaml:"headers"`
	// Proxy is the http or https URL of a proxy for an https server, or `env` for HTTPS_PROXY and NO_PROXY in the
	// gateway's environment. If it is empty, no proxy is used.
	Proxy Secret `yaml:"proxy"`
	// CA is a PEM file of certificates to trust instead of the system's, also for an https proxy. The gateway reads it
	// when it starts.
	CA string `yaml:"ca"`
}

// ProxyEnv is the value of [HTTPServer.Proxy] that selects the proxy in the gateway's environment.
const ProxyEnv = "env"

// GRPCServer configures a gRPC server. Its methods with the option (sluice.mcp.v1.tool) are tools.
type GRPCServer struct {
	// Target is `HOST:PORT`, or `wasmagent` for the mesh's own service of agents. With `wasmagent`, no other key may be
	// set. Required.
	Target string `yaml:"target"`
	// CA is a PEM file of certificates to trust instead of the system's.
	CA string `yaml:"ca"`
	// Plaintext connects without TLS. It can't be combined with `ca`.
	Plaintext bool `yaml:"plaintext"`
	// Headers are sent as metadata with every call. Names are in lower case and don't begin with `grpc-`.
	Headers map[string]Secret `yaml:"headers"`
}

// IsAgentService reports whether target, the target of a gRPC server, is the mesh's own service of agents.
func IsAgentService(target string) bool { return target == "wasmagent" }

// defaultProcesses is the default of [StdioServer.Processes].
const defaultProcesses = 256

// StdioServer configures a program that implements MCP on its standard input and output.
type StdioServer struct {
	// Command is the program and its arguments, as a list, without a shell. References are refused. Required.
	Command []string `yaml:"command"`
	// Env is the environment, in addition to PATH and HOME. No other variables are inherited.
	Env map[string]Secret `yaml:"env"`
	// Per is `principal`, for a process for each principal, or `shared`, for one process for all.
	Per string `yaml:"per"`
	// Dir is the working directory: a path, or `private` for a separate directory for each process, which is also its
	// HOME.
	Dir string `yaml:"dir"`
	// Remove lists files to remove before a process starts, such as a lock file of a killed process. The paths are
	// relative to a private directory.
	Remove []string `yaml:"remove"`
	// Recycle is the number of tool calls after which a process is replaced: at most 1,000,000. With 0, processes are not
	// replaced.
	Recycle int `yaml:"recycle"`
	// Processes is the maximum number of processes of all principals together: 1 to 10,000. One principal, with all agents
	// that it created, may have a quarter of them. All principals of one person may have half of them.
	Processes int `yaml:"processes"`
	// Start is the maximum time until a process responds to `initialize`: 1 s to 30 m. With `0s`, the limit is 60 s, and
	// up to 10 m while the process writes to standard error at least every 30 s.
	Start time.Duration `yaml:"start"`
	// Install is `once` or `each_start`. With `once`, the gateway installs the package of a server that npx or `npm exec`
	// starts. With `each_start`, npx or npm installs it at each start.
	Install string `yaml:"install"`
	// Sandbox configures the sandbox that hides the mesh's files from the program.
	Sandbox StdioSandbox `yaml:"sandbox"`
	// Limits are the limits of a process together with all processes that it starts.
	Limits StdioLimits `yaml:"limits"`
}

// StdioLimits contains the limits of a server's process together with all processes that it starts.
type StdioLimits struct {
	// Tasks is the maximum number of processes and threads at a time: 32 to 100,000.
	Tasks int `yaml:"tasks"`
	// Memory is the maximum memory of all its processes, in MiB or GiB: at least `16MiB`.
	Memory Size `yaml:"memory"`
	// Disk is the maximum size of the private directory, in MiB or GiB: at least `16MiB`. It includes the blocks of files,
	// at least 4 KiB for each file and directory, and open files without a name. A `dir` has no limit.
	Disk Size `yaml:"disk"`
}

// StdioSandbox configures the sandbox of a program.
type StdioSandbox struct {
	// Mode is `auto`, `required` or `off`. `auto` enforces as much as the system supports: by namespaces, otherwise by
	// Landlock, otherwise nothing. With `required`, the gateway does not start unless everything is enforced.
	Mode string `yaml:"mode"`
	// Read lists hidden files and directories that the program may read: policy documents, sockets, and directories of
	// other servers below `DATA/gateway/servers`.
	Read []string `yaml:"read"`
	// Write lists files and directories that the program may read and write. An entry can be hidden by default, or
	// read-only by default, such as the directory of the program itself for a server that writes next to its program.
	// Everything below a directory becomes writable too, except for hidden files.
	Write []string `yaml:"write"`
	// Home lists files and directories of the gateway user's HOME, such as `.kube`, that the program can read at the same
	// place in its own HOME, which is private. The rest of the user's HOME is hidden, except for programs.
	Home []string `yaml:"home"`
	// Network gives the program access to the network. With `false`, the program has only a separate loopback. Landlock
	// can restrict only TCP, and the status reports that.
	Network *bool `yaml:"network"`
}

// Record says what is stored of calls, besides the journal.
type Record struct {
	// Arguments is `redacted` to store an encrypted copy of the arguments, in which secrets are replaced. By default, none
	// is stored. A rule can ask for it, too.
	Arguments string `yaml:"arguments"`
}
