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
	// Timeout is the maximum duration of a call: 1 ms to 24 h. The default for the mesh's own agents is `15m`, except
	// when `sluice up` runs without `servers`: then it is `60s`.
	Timeout time.Duration `yaml:"timeout"`
	// MaxTimeout is the maximum duration of a call whose server reports progress: `timeout` to 24 h. Each progress message
	// restarts `timeout`. The default is ten times `timeout`, but at most 1 h, and at least `timeout`.
	MaxTimeout time.Duration `yaml:"max_timeout"`
	// Credentials says how the mesh signs in at a server over HTTP that requires OAuth. If it is absent, the gateway
	// sends only `http.headers`.
	Credentials *Credentials `yaml:"credentials"`
	// Record specifies what is stored about calls in addition to the journal.
	Record Record `yaml:"record"`
	// Pin specifies how the definitions of the server's tools are pinned: `first_use`, `review` or `off`. Empty means
	// `first_use`, or `off` for the mesh's own agents.
	Pin string `yaml:"pin"`
	// Trusted accepts annotations in which the server declares that a tool is harmless.
	Trusted bool `yaml:"trusted"`
	// Mode is `enforce` or `observe`. With `observe`, calls that the policy would refuse or hold for approval are
	// allowed until `until`. Their records contain the decision that the policy would have made.
	Mode string `yaml:"mode"`
	// Until is the end of `mode: observe`: a time, or a date, which means the beginning of that day in UTC. It is at
	// most 30 days after the start of the program.
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
	// URL is the address of the MCP endpoint. References are refused. Required.
	URL string `yaml:"url"`
	// Headers are sent with every request.
	Headers map[string]Secret `yaml:"headers"`
	// Proxy is the http or https URL of a proxy for an https server, or `env` for HTTPS_PROXY and NO_PROXY in the
	// gateway's environment. If it is empty, no proxy is used. For a server with `credentials`, the identity service
	// also uses the proxy, for the server's metadata and authorization server.
	Proxy Secret `yaml:"proxy"`
	// CA is a PEM file of certificates to trust instead of the system's certificates, including for an https proxy. The
	// gateway reads the file when it starts.
	CA string `yaml:"ca"`
}

// ProxyEnv is the value of [HTTPServer.Proxy] that selects the proxy in the gateway's environment.
const ProxyEnv = "env"

// GRPCServer configures a gRPC server. Its methods with the option (sluice.mcp.v1.tool) are tools.
type GRPCServer struct {
	// Target is `HOST:PORT`, or `wasmagent` for the mesh's own agent service. With `wasmagent`, no other key may be
	// set. Required.
	Target string `yaml:"target"`
	// CA is a PEM file of certificates to trust instead of the system's certificates.
	CA string `yaml:"ca"`
	// Plaintext connects without TLS. It can't be combined with `ca`.
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
	// Command is the program and its arguments, as a list, without a shell. References are refused. Required.
	Command []string `yaml:"command"`
	// Env is the environment, in addition to PATH and HOME. No other variables are inherited.
	Env map[string]Secret `yaml:"env"`
	// Per is `principal` to start a separate process for each principal, or `shared` to use one process for all
	// principals.
	Per string `yaml:"per"`
	// Dir is the working directory of a process: a path, or `private`. With `private`, each process has a separate
	// directory, which is also its HOME.
	Dir string `yaml:"dir"`
	// Remove lists files to remove before a process starts, such as the lock file of a process that was killed. The
	// paths are relative to a private directory.
	Remove []string `yaml:"remove"`
	// Recycle is the number of tool calls after which a process is replaced: at most 1,000,000. With 0, processes are not
	// replaced.
	Recycle int `yaml:"recycle"`
	// Processes is the maximum number of processes of all principals together: 1 to 10,000. A principal and all agents
	// that it created may use a quarter of this number. All principals of one person may use half of it.
	Processes int `yaml:"processes"`
	// Start is the maximum time until a process responds to `initialize`: 1 s to 30 m. With `0s`, the limit is 60 s; it
	// increases up to 10 m while the process writes to standard error at least every 30 s.
	Start time.Duration `yaml:"start"`
	// Install is `once` or `each_start`, for a server that npx or `npm exec` starts. With `once`, the gateway installs
	// the server's package itself. With `each_start`, npx or npm installs the package at each start.
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
	// Memory is the maximum memory of all the processes together, in MiB or GiB: at least `16MiB`.
	Memory Size `yaml:"memory"`
	// Disk is the maximum size of the private directory, in MiB or GiB: at least `16MiB`. The size is the sum of the
	// disk blocks of all files, with at least 4 KiB for each file and directory. It includes open files without a name.
	// A `dir` other than `private` has no limit.
	Disk Size `yaml:"disk"`
}

// StdioSandbox configures the sandbox of a program.
type StdioSandbox struct {
	// Mode is `auto`, `required` or `off`. With `auto`, the gateway enforces as much as the system supports: it uses
	// namespaces, or otherwise Landlock, or otherwise no sandbox. With `required`, the gateway does not start unless
	// everything is enforced.
	Mode string `yaml:"mode"`
	// Read lists hidden files and directories that the program may read: policy documents, sockets, and directories of
	// other servers below `DATA/gateway/servers`.
	Read []string `yaml:"read"`
	// Write lists files and directories that the program may read and write although they are hidden or read-only by
	// default. An example is the directory that contains the program itself, for a server that writes next to its
	// program. Everything below a directory becomes writable too, except for hidden files.
	Write []string `yaml:"write"`
	// Home lists files and directories in the HOME of the gateway's user, such as `.kube`. The program can read them at
	// the same place in its own HOME, which is private. The rest of the user's HOME is hidden, except for programs.
	Home []string `yaml:"home"`
	// Network gives the program access to the network. With `false`, the program can use only a loopback interface of
	// its own. Landlock can restrict only TCP; the status reports this limitation.
	Network *bool `yaml:"network"`
}

// Record specifies what is stored about calls in addition to the journal.
type Record struct {
	// Arguments is `redacted` to store an encrypted copy of the arguments, in which secrets are replaced. By default,
	// no copy is stored. A rule can also request a copy.
	Arguments string `yaml:"arguments"`
}
