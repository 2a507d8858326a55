package config

import (
	"time"

	"github.com/sluice-mesh/sluice/services/internal/observe"
)

// Server is an MCP server behind the gateway. Exactly one of HTTP, Stdio and GRPC must be set.
type Server struct {
	// HTTP connects over Streamable HTTP or HTTP+SSE. Set exactly one of `http`, `stdio` and `grpc`.
	HTTP *HTTPServer `yaml:"http"`
	// Stdio starts a program.
	Stdio *StdioServer `yaml:"stdio"`
	// GRPC connects to a gRPC server whose methods are tools.
	GRPC *GRPCServer `yaml:"grpc"`
	// Unwrap is `claude-flow` for a server that hides its tools' errors in results that report success.
	Unwrap string `yaml:"unwrap"`
	// Timeout is the maximum duration of a call: 1 ms to 24 h. The mesh's own agents have `15m`, or `60s` if `sluice up`
	// runs without `servers`.
	Timeout time.Duration `yaml:"timeout"`
	// MaxTimeout is the maximum duration of a call whose server reports progress: `timeout` to 24 h. Each report restarts
	// `timeout`. The default is ten times `timeout`, but at most 1 h, and at least `timeout`.
	MaxTimeout time.Duration `yaml:"max_timeout"`
	// Credentials says how the mesh signs in at a server over HTTP that requires OAuth. If it is absent, the gateway
	// sends only `http.headers`.
	Credentials *Credentials `yaml:"credentials"`
	// Record specifies what is stored about calls in addition to the journal.
	Record Record `yaml:"record"`
	// Pin is how definitions of tools are pinned: `first_use`, `review` or `off`. Empty means `first_use`, or `off` for
	// the mesh's own agents.
	Pin string `yaml:"pin"`
	// Trusted accepts annotations that declare a tool harmless.
	Trusted bool `yaml:"trusted"`
	// Mode is `enforce` or `observe`. With `observe`, calls that policy would refuse or hold are allowed until `until`,
	// and recorded with that decision.
	Mode string `yaml:"mode"`
	// Until is when `mode: observe` ends: a time, or a date, which means its beginning in UTC. It is at most 30 days after
	// the start of the program.
	Until observe.Until `yaml:"until"`

	// host is the client whose own tools this server represents. It is empty for an MCP server. Only `hooks` adds
	// servers with a host.
	host string
}

// Host returns the client whose own tools this server represents, or "" for an MCP server.
func (s Server) Host() string { return s.host }

// PinMode returns how the definitions of the server's tools are pinned. By default, the tools of the mesh's own agents
// and of clients are not pinned, because their definitions are part of the mesh.
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
	// URL is the address of the MCP endpoint, without references. Required.
	URL string `yaml:"url"`
	// Headers are sent with every request.
	Headers map[string]Secret `yaml:"headers"`
	// Proxy is the http or https URL of a proxy for an https server, or `env` for HTTPS_PROXY and NO_PROXY in the
	// gateway's environment. If it is empty, no proxy is used. For a server with `credentials`, the identity service
	// also uses the proxy, for the server's metadata and authorization server.
	Proxy Secret `yaml:"proxy"`
	// CA is a PEM file of certificates to trust instead of the system's, also for an https proxy. It is read when the
	// gateway starts.
	CA string `yaml:"ca"`
}

// ProxyEnv is the value of [HTTPServer.Proxy] that selects the proxy in the gateway's environment.
const ProxyEnv = "env"

// GRPCServer configures a gRPC server. Its methods with the option (sluice.mcp.v1.tool) are tools.
type GRPCServer struct {
	// Target is `HOST:PORT`, or `wasmagent` for the mesh's own agent service, without other keys. Required.
	Target string `yaml:"target"`
	// CA is a PEM file of certificates to trust instead of the system's.
	CA string `yaml:"ca"`
	// Plaintext connects without TLS, and without `ca`.
	Plaintext bool `yaml:"plaintext"`
	// Headers are sent as metadata with every call. Names are in lower case and don't begin with `grpc-`.
	Headers map[string]Secret `yaml:"headers"`
}

// IsAgentService reports whether target, the target of a gRPC server, is the mesh's own agent service.
func IsAgentService(target string) bool { return target == "wasmagent" }

// defaultProcesses is the default of [StdioServer.Processes].
const defaultProcesses = 256

// StdioServer configures a program that implements MCP on its standard input and output.
type StdioServer struct {
	// Command is the program and its arguments, without a shell or references. Required.
	Command []string `yaml:"command"`
	// Env is the environment, in addition to PATH and HOME. Nothing else is inherited.
	Env map[string]Secret `yaml:"env"`
	// Per is `principal` for a process for each principal, or `shared` for one process for all.
	Per string `yaml:"per"`
	// Dir is the working directory: a path, or `private` for a directory of each process, which is also its HOME.
	Dir string `yaml:"dir"`
	// Remove lists files in a private directory to remove before a process starts, such as a lock file.
	Remove []string `yaml:"remove"`
	// Recycle is the number of tool calls after which a process is replaced: at most 1,000,000, or `0` for never.
	Recycle int `yaml:"recycle"`
	// Processes is the maximum number of processes: 1 to 10,000. A principal and the agents that it created may use a
	// quarter of them. All principals of one person may use half.
	Processes int `yaml:"processes"`
	// Start is how long a process may take to respond to `initialize`: 1 s to 30 m. The value `0s` means 60 s, extended to
	// at most 10 m as long as the process writes to standard error at least every 30 s.
	Start time.Duration `yaml:"start"`
	// Install is `once` or `each_start`, for a server that npx or `npm exec` starts. With `once`, the gateway installs the
	// package. With `each_start`, npx or npm does so at each start.
	Install string `yaml:"install"`
	// Sandbox configures the sandbox that hides the mesh's files from the program.
	Sandbox StdioSandbox `yaml:"sandbox"`
	// Limits are the limits of a process together with all processes that it starts.
	Limits StdioLimits `yaml:"limits"`
}

// StdioLimits contains the limits of a server's process together with all processes that it starts.
type StdioLimits struct {
	// Tasks is the maximum number of processes and threads: 32 to 100,000.
	Tasks int `yaml:"tasks"`
	// Memory is the maximum memory of all processes together: at least `16MiB`.
	Memory Size `yaml:"memory"`
	// Disk is the maximum size of a private directory, in disk blocks and at least 4 KiB for each file and directory: at
	// least `16MiB`. Open files without a name count. Other directories have no limit.
	Disk Size `yaml:"disk"`
}

// StdioSandbox configures the sandbox of a program.
type StdioSandbox struct {
	// Mode is `auto`, `required` or `off`. With `auto`, the gateway uses namespaces. If they are not available, it uses
	// Landlock, or else no sandbox. With `required`, it does not start unless everything is enforced.
	Mode string `yaml:"mode"`
	// Read lists hidden files and directories that the program may read: policy documents, sockets, and directories of
	// other servers below `DATA/gateway/servers`.
	Read []string `yaml:"read"`
	// Write lists hidden or read-only files and directories that the program may read and write, such as its own
	// directory. Hidden files in these directories stay hidden.
	Write []string `yaml:"write"`
	// Home lists files and directories in the HOME of the gateway's user, such as `.kube`, that the program can read in
	// its own, private HOME. The rest is hidden, except for programs.
	Home []string `yaml:"home"`
	// Network gives the program access to the network. With `false`, it has only a loopback interface of its own. Landlock
	// can restrict only TCP, which the status reports.
	Network *bool `yaml:"network"`
}

// Record specifies what is stored about calls in addition to the journal.
type Record struct {
	// Arguments is `redacted` to store an encrypted copy of the arguments, with secrets replaced. A rule can also request
	// it.
	Arguments string `yaml:"arguments"`
}
