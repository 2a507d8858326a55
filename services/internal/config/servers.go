package config

import "time"

// Server is an MCP server behind the gateway. Exactly one of HTTP, Stdio and GRPC is
// set.
type Server struct {
	// HTTP reaches a server over Streamable HTTP.
	HTTP *HTTPServer `yaml:"http"`
	// Stdio starts a program.
	Stdio *StdioServer `yaml:"stdio"`
	// GRPC reaches a gRPC server whose methods are tools.
	GRPC *GRPCServer `yaml:"grpc"`
	// Unwrap names how the server hides errors of its tools in results that say
	// success, so that they come out as what they are: "claude-flow", or empty where
	// it hides none.
	Unwrap string `yaml:"unwrap"`
	// Timeout bounds a call: 60 s where absent.
	Timeout time.Duration `yaml:"timeout"`
	// MaxTimeout bounds a call whose server tells of progress: ten times Timeout where absent, and at most 1 h.
	MaxTimeout time.Duration `yaml:"max_timeout"`
	// Pin is how the definitions of its tools are pinned: `first_use`, `review` or `off`.
	// Absent: first_use, and off for the mesh's own agents. See [Server.PinMode].
	Pin string `yaml:"pin"`
	// Trusted says that the annotations of its tools are believed where they make a tool
	// look harmless.
	Trusted bool `yaml:"trusted"`
}

// PinMode is how the definitions of the server's tools are pinned. Those of the mesh's own
// agents come with the mesh itself.
func (s Server) PinMode() string {
	switch {
	case s.Pin != "":
		return s.Pin
	case s.GRPC != nil && IsRole(s.GRPC.Target):
		return "off"
	default:
		return "first_use"
	}
}

// HTTPServer reaches a server over Streamable HTTP.
type HTTPServer struct {
	// URL of its MCP endpoint.
	URL string `yaml:"url"`
	// Headers are sent with every request; values may hold references.
	Headers map[string]Secret `yaml:"headers"`
	// Proxy is the http or https URL of a proxy that an https server is reached by, which may hold references; or
	// "env", which takes HTTPS_PROXY and NO_PROXY of the gateway's environment; empty for none.
	Proxy Secret `yaml:"proxy"`
	// CA is a PEM file with the certificates that are trusted in place of the system's.
	CA string `yaml:"ca"`
}

// ProxyEnv is the proxy of the gateway's environment, as [HTTPServer.Proxy].
const ProxyEnv = "env"

// GRPCServer reaches a gRPC server. Those of its methods are tools whose contract carries
// the option (sluice.mcp.v1.tool).
type GRPCServer struct {
	// Target is "wasmagent", the mesh's own service of agents, or `host:port`.
	Target string `yaml:"target"`
	// CA is a PEM file with the certificates that are trusted in place of the system's.
	CA string `yaml:"ca"`
	// Plaintext says that the server speaks no TLS.
	Plaintext bool `yaml:"plaintext"`
	// Headers are sent with every call as metadata; values may hold references.
	Headers map[string]Secret `yaml:"headers"`
}

// IsRole reports whether the target of a gRPC server is a service of the mesh itself.
func IsRole(target string) bool { return target == "wasmagent" }

// defaultProcesses is how many processes of one server over stdio there may be where nothing else is said.
const defaultProcesses = 256

// StdioServer starts a program and speaks to it over its standard input and
// output.
type StdioServer struct {
	// Command is the program and its arguments; it is not given to a shell.
	Command []string `yaml:"command"`
	// Env is its environment beside PATH and HOME; values may hold references.
	Env map[string]Secret `yaml:"env"`
	// Per is "principal": one process a principal; or "shared": one for all.
	Per string `yaml:"per"`
	// Dir is "private": a working folder of its own for each process; else a path.
	Dir string `yaml:"dir"`
	// Remove are files, relative to a private folder, that are removed before a
	// process is started in it, such as a lock that one left behind.
	Remove []string `yaml:"remove"`
	// Recycle is after how many calls of tools a process is replaced, once none is in
	// flight; 0 keeps it.
	Recycle int `yaml:"recycle"`
	// Processes is how many processes all principals may have together, 1 to 10,000. One principal and
	// all agents made by it may have a quarter of them.
	Processes int `yaml:"processes"`
	// Start is how long a process may take from its start to its answer to initialize: 1 s to 30 m. Absent: 60 s and
	// longer, up to 10 m, while it writes to standard error.
	Start time.Duration `yaml:"start"`
	// Install is "once": a package that npx starts is installed by the gateway, for all processes of the server; or
	// "each_start": the command does so, in each process.
	Install string `yaml:"install"`
	// Sandbox says what the program is kept away from.
	Sandbox StdioSandbox `yaml:"sandbox"`
	// Limits are what one process may take, with all that it starts.
	Limits StdioLimits `yaml:"limits"`
}

// StdioLimits are what one process of a server may take, with all that it starts. Absent ones have their defaults.
type StdioLimits struct {
	// Tasks is how many processes and threads there may be at a time: 512 where absent.
	Tasks int `yaml:"tasks"`
	// Memory is how much memory they may take: 2GiB where absent.
	Memory Size `yaml:"memory"`
	// Disk is how much the private folder may hold: 2GiB where absent.
	Disk Size `yaml:"disk"`
}

// StdioSandbox says what a program is kept away from: all that is the mesh's own, save
// the program's folder.
type StdioSandbox struct {
	// Mode is "auto": as much as this system can hold; "required": the program is not
	// started unless everything holds; or "off".
	Mode string `yaml:"mode"`
	// Read and Write are files and folders that it reaches although they are hidden:
	// policies, folders of other servers, sockets.
	Read  []string `yaml:"read"`
	Write []string `yaml:"write"`
	// Network says whether it has one: true where absent.
	Network *bool `yaml:"network"`
}
