// Package config reads the YAML file that all programs of the mesh share. It is strict: an unknown key is an error, and
// so is a key that this version does not support. The error contains the key's position and a suggestion.
package config

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/observe"
)

// File is the whole configuration. Each service uses its part. Relative paths are relative to the file. See
// [File.Path].
//
// The tables in docs/configuration.md are generated from the comments of the fields of this type and of the types that
// it contains. These comments write keys in backticks. A comment states the default of its key if the code of this
// package does not set one.
type File struct {
	// Listen is the address of MCP. An address other than loopback needs `listen_tls` or `behind_proxy`.
	Listen string `yaml:"listen"`
	// ListenTLS is the certificate of `listen`. If it is empty, MCP is served without TLS.
	ListenTLS ListenTLS `yaml:"listen_tls"`
	// BehindProxy lists addresses or networks, such as `10.0.0.0/8`, of proxies that terminate TLS in front of `listen`.
	BehindProxy []string `yaml:"behind_proxy"`
	// GRPC is the gRPC address of all services in one process.
	GRPC string `yaml:"grpc"`
	// Data is the data directory. Only one `sluice up` can use it at a time.
	Data string `yaml:"data"`
	// Hosts lists host names that are accepted in addition to loopback names: lower case, without ports.
	Hosts []string `yaml:"hosts"`
	// Origins lists origins, such as `https://app.example.com`, whose pages may use the mesh. Patterns are not supported.
	// Origins on loopback and requests without Origin are always accepted.
	Origins []string `yaml:"origins"`
	// PublicURL is the URL of the mesh for clients, such as `https://mcp.example.com`. With `/mcp` or `/mcp/NAME`, it is
	// the audience of JWTs. Its host is accepted.
	PublicURL string `yaml:"public_url"`
	// Auth says how callers are identified.
	Auth Auth `yaml:"auth"`
	// Groups maps the name of a group (1 to 128 bytes) to subjects. A subject belongs to these groups in addition to the
	// groups of its token, at most 256 in total.
	Groups map[string][]string `yaml:"groups"`
	// TLS configures mutual TLS between services that run in separate processes.
	TLS TLS `yaml:"tls"`
	// Roles contains the addresses of services in separate processes, by role, such as `policy`. If an address is set,
	// `sluice up` refuses the file.
	Roles map[string]Role `yaml:"roles"`
	// Secrets says where references of the configuration find secrets.
	Secrets Secrets `yaml:"secrets"`
	// Stores configures the databases of the services.
	Stores Stores `yaml:"stores"`
	// Approvals configures calls that need a person's approval.
	Approvals Approvals `yaml:"approvals"`
	// Decisions configures the cache of policy decisions.
	Decisions Decisions `yaml:"decisions"`
	// Journal configures the gateway's journal.
	Journal Journal `yaml:"journal"`
	// Session configures sessions of the MCP revisions that have them.
	Session Session `yaml:"session"`
	// Servers are the MCP servers, by name: 1 to 32 lower-case letters, digits or `-`.
	Servers map[string]Server `yaml:"servers"`
	// Hooks lists the clients whose own tools are checked. `sluice hook install` adds them.
	Hooks []Hook `yaml:"hooks"`
	// Agents configures the mesh's own agents.
	Agents Agents `yaml:"agents"`
	// Policies lists files and directories with policy documents. With `[store]`, the documents are in `stores.policy`,
	// and `sluice policy apply` changes them.
	Policies []string `yaml:"policies"`
	// Mode is `enforce`, or `observe` for every server, as in `servers.NAME.mode`.
	Mode string `yaml:"mode"`
	// Until is the end of `mode: observe`, as in `servers.NAME.until`.
	Until observe.Until `yaml:"until"`
	// Telemetry configures tracing.
	Telemetry Telemetry `yaml:"telemetry"`
	// Log configures the logs of all programs.
	Log Log `yaml:"log"`

	// path is the path of the file. It is empty if no file was read.
	path string
	// sources resolves references to commands and Vault. It is nil if no file was read.
	sources *secretSources
	// added contains the tokens that [File.AddToken] has added.
	added []Token
	// separateRoles is true if the file sets the address of a service that runs in a separate process.
	separateRoles bool
}

// Auth says how callers are identified: by tokens of the mesh, or by JWTs of issuers.
type Auth struct {
	// Tokens are bearer tokens. The list is read again when the file changes.
	Tokens []Token `yaml:"tokens"`
	// Issuers are OpenID providers and authorization servers whose JWTs identify agents, at most 16. The list is read
	// again when the file changes.
	Issuers []Issuer `yaml:"issuers"`
	// ScopeStepUp lists OAuth clients, at most 64, that request a missing scope (`needs_scope`) after HTTP 403 with
	// `error="insufficient_scope"`. All other clients get a result with the names of the scopes. A change needs a restart.
	ScopeStepUp []string `yaml:"scope_step_up"`
}

// Token is a bearer token. Exactly one of the fields Token and SHA256 is set.
type Token struct {
	// Name is unique: 1 to 128 letters, digits, `_`, `.`, `@` or `-`. Required.
	Name string `yaml:"name"`
	// Token is the secret, at least 32 characters, and not an example of the documentation. Set this or `sha256`.
	Token Secret `yaml:"token"`
	// SHA256 is the hash of the secret: 64 hexadecimal digits.
	SHA256 Secret `yaml:"sha256"`
	// Tenant is the tenant of the subject: 1 to 64 lower-case letters, digits or `-`.
	Tenant string `yaml:"tenant"`
	// Subject is the holder of the token, at most 256 bytes.
	Subject string `yaml:"subject"`
	// Owner is the subject of the person for whom an agent works, at most 256 bytes.
	Owner string `yaml:"owner"`
	// Agent is the name of the agent, at most 128 bytes.
	Agent string `yaml:"agent"`
	// Groups are the subject's groups: at most 256, each of 1 to 128 bytes.
	Groups []string `yaml:"groups"`
	// Role is `agent`, `operator`, `approver` or `viewer`. Required.
	Role string `yaml:"role"`
	// Servers are the servers that an agent may use, at `/mcp/NAME`: at most 16. Empty means all servers, and the URL of
	// all servers.
	Servers []string `yaml:"servers"`
}

// ListenTLS is a certificate that clients trust, and the certificate's private key. Set both files or neither of them.
type ListenTLS struct {
	// Cert is a PEM file with a certificate that clients trust, and its chain. Set `key` as well.
	Cert string `yaml:"cert"`
	// Key is the PEM file of the private key. Both files are read again when they change.
	Key string `yaml:"key"`
}

// TLS configures mutual TLS between services that run in separate processes.
type TLS struct {
	// Dir is a directory with `ca.pem`, and the service's `ROLE.pem` and `ROLE-key.pem`. `sluice setup` creates such a
	// directory for each role, and `sluice certs` creates one for all roles.
	Dir string `yaml:"dir"`
}

// Role contains the addresses of a service that runs in a separate process.
type Role struct {
	// Listen is the address on which the service serves gRPC.
	Listen string `yaml:"listen"`
	// Addr is the service's address for other services.
	Addr string `yaml:"addr"`
}

// Decisions configures the cache of policy decisions.
type Decisions struct {
	// Keep caches a decision for similar calls until a value on which it depends changes. With `false`, every call is
	// evaluated.
	Keep bool `yaml:"keep"`
}

// Journal configures the gateway's journal.
type Journal struct {
	// Sync is `never` or `always`. Records survive a crash of the process, and with `always` also a power failure. The
	// intent of an approved call is always synced.
	Sync string `yaml:"sync"`
	// CallsMiB is the maximum size of the records of calls, in MiB: 64 to 1,048,576.
	CallsMiB int `yaml:"calls_mib"`
	// Share is the part of `calls_mib` that one principal may use, and the part of `arguments.mib` that one person may
	// use: above 0, at most 1.
	Share float64 `yaml:"share"`
	// Arguments configures the copies of arguments that are stored for servers and rules with `record`.
	Arguments RecordedArguments `yaml:"arguments"`
}

// RecordedArguments configures the stored copies of the arguments of calls.
type RecordedArguments struct {
	// Retention is the maximum age of recorded arguments: 1 h to 90 days. They may be removed earlier, by up to 1/24 of
	// this time.
	Retention time.Duration `yaml:"retention"`
	// MiB is the maximum size of recorded arguments, in MiB: 16 to 1,048,576. When the limit is exceeded, the oldest
	// recorded arguments of the person who uses the most space are removed.
	MiB int `yaml:"mib"`
}

// Session configures sessions for the MCP revisions that have them.
type Session struct {
	// Idle is the time without a request after which a session ends: 1 s to 30 days.
	Idle time.Duration `yaml:"idle"`
	// MaxPerPrincipal is the maximum number of open sessions of a principal: 1 to 100,000.
	MaxPerPrincipal int `yaml:"max_per_principal"`
	// Cap limits what all sessions of one principal may use together, as a multiple of a policy limit per session: 1 to
	// 10,000.
	Cap int `yaml:"cap"`
}

// Telemetry configures tracing.
type Telemetry struct {
	// OTLP is the address of the collector, such as `http://localhost:4317`. If it is empty, traces are not exported.
	OTLP string `yaml:"otlp"`
	// Sample is the fraction of traces that are sampled: 0 to 1.
	Sample float64 `yaml:"sample"`
	// TrustParent continues the client's trace. Otherwise, a new trace links to it.
	TrustParent bool `yaml:"trust_parent"`
}

// Log configures the logs of all programs.
type Log struct {
	// Level is the lowest level that is logged: `debug`, `info`, `warn` or `error`. `--log-level` overrides it.
	Level string `yaml:"level"`
}

// Stores configures the databases of the services.
type Stores struct {
	// Policy is the database of the tool catalog, stops and applied policies: `sqlite` in the data directory, or the URL
	// of a PostgreSQL database.
	Policy Secret `yaml:"policy"`
	// PolicyMaxAge is how long the last data are used while PostgreSQL is unavailable: 5 s to 1 h. After that, every call
	// is refused.
	PolicyMaxAge time.Duration `yaml:"policy_max_age"`
	// Identity is the database of created tokens, as for `policy`.
	Identity Secret `yaml:"identity"`
	// IdentityMaxAge is how long tokens are confirmed while PostgreSQL is unavailable: 5 s to 1 h. After that, no token is
	// accepted. Until then, a replica without the database does not learn of revocations.
	IdentityMaxAge time.Duration `yaml:"identity_max_age"`
	// IdentityKey encrypts the tokens with which the mesh calls servers (`servers.NAME.credentials`): 64 hexadecimal
	// digits, the same for all replicas. With `sqlite`, it may be absent: then the identity service creates a key file in
	// the data directory.
	IdentityKey Secret `yaml:"identity_key"`
	// Approval is the database of approvals, as for `policy`.
	Approval Secret `yaml:"approval"`
	// Agents is the database of agents and their journals, as for `policy`.
	Agents Secret `yaml:"agents"`
	// AgentStates is the storage of the agents' states: an existing directory that all processes share, `file:///PATH`, or
	// a bucket, `s3://NAME?region=REGION`, with `endpoint=URL` and `use_path_style=true` outside AWS. Empty means a
	// directory in the data directory.
	AgentStates Secret `yaml:"agent_states"`
}

var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// ParseLogLevel returns the level with the given name.
func ParseLogLevel(name string) (slog.Level, error) {
	level, ok := logLevels[name]
	if !ok {
		return 0, fmt.Errorf("%q is not one of debug, info, warn, error", name)
	}
	return level, nil
}

// LogLevel returns the lowest level that is logged.
func (f *File) LogLevel() slog.Level { return logLevels[f.Log.Level] }

// Default returns the configuration that applies without a file. [Load] and [Parse] also set the defaults of entries in
// maps and lists.
func Default() File {
	return File{
		Listen: "127.0.0.1:8080",
		GRPC:   "127.0.0.1:9090",
		Data:   ".sluice",
		Stores: Stores{
			Policy: "sqlite", PolicyMaxAge: 5 * time.Minute, Identity: "sqlite", IdentityMaxAge: 30 * time.Second, Approval: "sqlite", Agents: "sqlite",
		},
		Agents:    Agents{Workers: 1},
		Approvals: Approvals{Hold: 45 * time.Second, Decide: 15 * time.Minute, Execute: 5 * time.Minute, MaxPending: 5, MaxAsked: MaxAsked{Max: 30, Window: time.Hour}},
		Decisions: Decisions{Keep: true},
		Journal:   Journal{Sync: "never", CallsMiB: 1024, Share: 0.5, Arguments: RecordedArguments{Retention: 7 * 24 * time.Hour, MiB: 256}},
		Session:   Session{Idle: 30 * time.Minute, MaxPerPrincipal: 100, Cap: 10},
		Telemetry: Telemetry{Sample: 0.01},
		Log:       Log{Level: "info"},
	}
}

func defaultRoles() map[string]Role {
	return map[string]Role{
		"policy":    {Listen: ":9001", Addr: "policy:9001"},
		"ratelimit": {Listen: ":9002", Addr: "ratelimit:9002"},
		"approval":  {Listen: ":9003", Addr: "approval:9003"},
		"wasmagent": {Listen: ":9004", Addr: "wasmagent:9004"},
		"gateway":   {Listen: ":9005", Addr: "gateway:9005"},
		"identity":  {Listen: ":9006", Addr: "identity:9006"},
	}
}

// HasSeparateRoles reports whether the file sets the address of a service, so that services run in separate processes.
func (f *File) HasSeparateRoles() bool { return f.separateRoles }

// MCPScheme returns the scheme of MCP URLs, http or https.
func (f *File) MCPScheme() string {
	if f.ListenTLS.Cert != "" {
		return "https"
	}
	return "http"
}

// Path resolves p relative to the directory of the file. It returns p if p is absolute or empty, or if no file was
// read.
func (f *File) Path(p string) string {
	if p == "" || filepath.IsAbs(p) || f.path == "" {
		return p
	}
	return filepath.Join(filepath.Dir(f.path), p)
}

// Name returns the path of the file that was read. It is empty if no file was read.
func (f *File) Name() string { return f.path }

// SetData sets the data directory to dir. dir is relative to the working directory of the process.
func (f *File) SetData(dir string) {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	f.Data = dir
}
