package config

import "time"

// Server is an MCP server behind the gateway. Exactly one of HTTP, Stdio and GRPC is set.
type Server struct {
	// HTTP connects to a server over Streamable HTTP, or over HTTP+SSE. Set exactly one of `http`, `stdio` and `grpc`.
	HTTP *HTTPServer `yaml:"http"`
	// Stdio starts a program.
	Stdio *StdioServer `yaml:"stdio"`
	// GRPC connects to a gRPC server whose methods are tools.
	GRPC *GRPCServer `yaml:"grpc"`
	// Unwrap is `claude-flow` for a server that hides its tools' errors in results that report success. Empty for other
	// servers.
	Unwrap string `yaml:"unwrap"`
	// Timeout bounds a call: 1 ms to 24 h. The default for the mesh's own agents is `15m`, but `60s` when `sluice up`
	// runs without `servers`.
	Timeout time.Duration `yaml:"timeout"`
	// MaxTimeout bounds a call whose server reports progress, which starts `timeout` again: `timeout` to 24 h. The
	// default is ten times `timeout`, but at most 1 h, and at least `timeout`.
	MaxTimeout time.Duration `yaml:"max_timeout"`
	// Pin is how definitions of tools are pinned: `first_use`, `review` or `off`. Empty means `first_use`, or `off`
	// for the mesh's own agents.
	Pin string `yaml:"pin"`
	// Trusted accepts annotations with which the server declares a tool to be harmless.
	Trusted bool `yaml:"trusted"`
}

// PinMode returns how the definitions of the server's tools are pinned. By default the tools of the mesh's own agents
// are not pinned, because the mesh ships their definitions.
func (s Server) PinMode() string {
	switch {
	case s.Pin != "":
		return s.Pin
	case s.GRPC != nil && IsAgentService(s.GRPC.Target):
		return "off"
	default:
		return "first_use"
	}
}

// HTTPServer is a server over Streamable HTTP, or over HTTP+SSE.
type HTTPServer struct {
	// URL is the address of the MCP endpoint. References are refused. Required.
	URL string `yaml:"url"`
	// Headers are sent with every request.
	Headers map[string]Secret `yaml:"headers"`
	// Proxy is the http or https URL of a proxy for an https server, or `env` for HTTPS_PROXY and NO_PROXY of the
	// gateway's environment. Empty uses none.
	Proxy Secret `yaml:"proxy"`
	// CA is a PEM file of certificates to trust in place of the system's, also for an https proxy. The gateway reads it
	// when it starts.
	CA string `yaml:"ca"`
}

// ProxyEnv is the value of [HTTPServer.Proxy] that means the proxy of the gateway's environment.
const ProxyEnv = "env"

// GRPCServer is a gRPC server. Its methods whose contract has the option (sluice.mcp.v1.tool) are tools.
type GRPCServer struct {
	// Target is `HOST:PORT`, or `wasmagent` for the mesh's own service of agents, which takes no other key. Required.
	Target string `yaml:"target"`
	// CA is a PEM file of certificates to trust in place of the system's.
	CA string `yaml:"ca"`
	// Plaintext connects without TLS. Not with `ca`.
	Plaintext bool `yaml:"plaintext"`
	// Headers are sent with every call as metadata. Names are in lower case and don't begin with `grpc-`.
	Headers map[string]Secret `yaml:"headers"`
}

// IsAgentService reports whether target, the target of a gRPC server, names a service of the mesh itself.
func IsAgentService(target string) bool { return target == "wasmagent" }

// defaultProcesses is the default of [StdioServer.Processes].
const defaultProcesses = 256

// StdioServer is a program that speaks MCP on its standard input and output.
type StdioServer struct {
	// Command is the program and its arguments, as a list, without a shell. References are refused. Required.
	Command []string `yaml:"command"`
	// Env is the environment, in addition to PATH and HOME. Nothing else is inherited.
	Env map[string]Secret `yaml:"env"`
	// Per is `principal`, for a process for each principal, or `shared`, for one process for all.
	Per string `yaml:"per"`
	// Dir is the working folder: a path, or `private` for a separate folder for each process, which is also its HOME.
	Dir string `yaml:"dir"`
	// Remove lists files, relative to a private folder, to remove before a process starts, such as a lock that a killed
	// process left.
	Remove []string `yaml:"remove"`
	// Recycle is the number of tool calls after which a process is replaced: at most 1,000,000. 0 never replaces it.
	Recycle int `yaml:"recycle"`
	// Processes is how many processes all principals may have together: 1 to 10,000. One principal, with all agents
	// that it made, may have a quarter of them, and all principals of one person half.
	Processes int `yaml:"processes"`
	// Start is how long a process may take to answer `initialize`: 1 s to 30 m. `0s` means 60 s and longer, up to 10 m,
	// while the process writes to standard error at least every 30 s.
	Start time.Duration `yaml:"start"`
	// Install is `once` or `each_start`: who installs the package of a server that npx or `npm exec` starts.
	Install string `yaml:"install"`
	// Sandbox hides from the program what belongs to the mesh.
	Sandbox StdioSandbox `yaml:"sandbox"`
	// Limits bound a process together with all that it starts.
	Limits StdioLimits `yaml:"limits"`
}

// StdioLimits bound a process of a server together with all that it starts.
type StdioLimits struct {
	// Tasks is the number of processes and threads at a time: 32 to 100,000.
	Tasks int `yaml:"tasks"`
	// Memory is the memory of all its processes, in MiB or GiB: at least `16MiB`.
	Memory Size `yaml:"memory"`
	// Disk is the size of the private folder, in MiB or GiB: at least `16MiB`. It counts the blocks of files, at least
	// 4 KiB for each file and folder, and open files without a name. A `dir` has no limit.
	Disk Size `yaml:"disk"`
}

// StdioSandbox configures what a program can't reach.
type StdioSandbox struct {
	// Mode is `auto`, which enforces as much as the system can: by namespaces, otherwise by Landlock, otherwise
	// nothing; `required`, with which the gateway does not start unless everything is enforced; or `off`.
	Mode string `yaml:"mode"`
	// Read lists hidden files and folders that the program may read: policy documents, sockets, and folders of other
	// servers below `DATA/gateway/servers`.
	Read []string `yaml:"read"`
	// Write lists the same for reading and writing. It also opens read-only files and folders, with all that they hold
	// except what is hidden, for a server that writes where its program is. The program is then writable.
	Write []string `yaml:"write"`
	// Network gives the program the network. `false` leaves only a separate loopback. Landlock can restrict only TCP,
	// and the status says so.
	Network *bool `yaml:"network"`
}
