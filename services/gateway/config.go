package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Config configures the gateway.
type Config struct {
	// Listen is the address on which MCP is served.
	Listen string
	// CertFile and KeyFile are the certificate and key for TLS. Both are empty if MCP is served without TLS.
	CertFile, KeyFile string
	// Proxies are the networks of trusted proxies in front of the gateway.
	Proxies []netip.Prefix
	// Hosts and Origins are the values that are accepted in the HTTP headers Host and Origin, in addition to loopback
	// names.
	Hosts, Origins []string
	// Resource is the URI of the mesh as a protected resource (RFC 9728). It is empty if the mesh has no public URL.
	Resource string
	// StepUpClients are OAuth clients that receive the HTTP status 403 if a call is refused because the token lacks a
	// scope.
	StepUpClients []string
	// TrustParent makes the gateway continue the trace of a client. Otherwise the gateway starts a new trace that links
	// to the client's trace.
	TrustParent bool
	// Data is the directory that contains the gateway's journal, the servers' working directories and, in a separate
	// directory, the gateway's keys.
	Data string
	// SyncAlways makes every journal record survive a power failure.
	SyncAlways bool
	// JournalBytes is the maximum size of the journal's records of calls, in bytes. JournalShare is the fraction of
	// JournalBytes that one principal may use. It must be above 0 and at most 1.
	JournalBytes int64
	JournalShare float64
	// ArgumentsBytes is the maximum total size of the stored copies of call arguments, in bytes. ArgumentsAge is how
	// long a copy is stored. JournalShare also limits the fraction of ArgumentsBytes that the copies of one person's
	// calls may use.
	ArgumentsBytes int64
	ArgumentsAge   time.Duration
	// KeepDecisions enables the cache of the policy service's decisions.
	KeepDecisions bool
	// SessionIdle is how long a session may be idle before it is closed.
	SessionIdle time.Duration
	// MaxSessions is the maximum number of sessions of one principal.
	MaxSessions int
	// Servers are the MCP servers behind the gateway, by name.
	Servers map[string]Server
	// Hold is how long the gateway holds a call that waits for approvers. If it is 0, the caller immediately receives a
	// refusal with the id of the approval, which is called a ticket.
	Hold time.Duration
	// Clients contains hold times for clients with certain names. They replace Hold for these clients.
	Clients []approvals.ClientHold
	// MaxPending is the maximum number of one principal's calls that wait for approvers at the same time. It must be
	// positive.
	MaxPending int
	// Execute limits how long after its approval a call may be made. It must be positive.
	Execute time.Duration
	// Secrets are the mesh's own files and directories, which servers may never read. Documents are files and
	// directories of the mesh that a server may read only if its configuration allows it. All paths are absolute.
	Secrets, Documents []string
	// SecretPrograms are the programs that print secrets, and their scripts. Servers may not change them.
	SecretPrograms []string
	// Version is the version of this program. It is written to journal records and returned by GetStatus.
	Version string
}

// Server is the configuration of one MCP server. Exactly one of URL, Command, Target and Host is set.
type Server struct {
	// Host is the name of a client. It is set if the tools of this server are the client's own tools.
	Host string
	// Target is the address of a gRPC server. It is either host:port or the name of a mesh service. CA is the path of a
	// PEM file with the certificates to trust instead of the system's certificates. If Plaintext is true, the connection
	// does not use TLS. Headers are sent as gRPC metadata.
	Target    string
	CA        string
	Plaintext bool
	// URL is an MCP endpoint. Headers are sent with every request to it. Proxy is the URL of the proxy, which can contain
	// credentials. It is empty if no proxy is used. ProxyHint is appended to connection errors that might be caused by a
	// missing proxy.
	URL       string
	Headers   map[string]string
	Proxy     string
	ProxyHint string
	// Command is the program to start, followed by its arguments. Env is its environment, in addition to PATH and HOME.
	// If Shared is true, one process serves all principals. Dir is the working directory. If Dir is empty, each process
	// has a private directory.
	Command []string
	Env     map[string]string
	Shared  bool
	Dir     string
	// Remove lists the files in a process's private directory that are deleted before the process starts.
	Remove []string
	// Recycle is the number of calls after which the gateway replaces a process with a new one. If it is 0, processes are
	// not replaced.
	Recycle int
	// Limits are the resource limits of one process. The zero value selects the defaults.
	Limits stdio.Limits
	// Processes is the maximum number of processes for all principals together. If it is 0, the maximum is 256.
	Processes int
	// SecretEnv lists the names of the variables in Env that contain a secret.
	SecretEnv []string
	// KeychainEnv lists the names of the variables in Env that contain a secret from the keychain.
	KeychainEnv []string
	// InstallEachStart is true if the command installs its package whenever a process starts. If it is false, the gateway
	// installs the package once.
	InstallEachStart bool
	// Start limits how long a process may take to start. If it is 0, the limit is 60 s. A process that keeps writing to
	// standard error may take longer.
	Start time.Duration
	// Sandbox configures the program's sandbox. With the zero value, the program starts only if the kernel can enforce
	// every part of the sandbox.
	Sandbox Sandbox
	// Secrets are the secret values to which Headers or Env refer. They are redacted in the server's responses.
	Secrets []string
	// KeychainEntries are the keychain entries to which Headers, Env or Proxy refer. If there are any, the secrets in
	// these fields are missing. Complete then returns a copy of the server with the secrets.
	KeychainEntries []string
	Complete        func(config.Keychain) (Server, error)
	// Unwrap is "claude-flow" for a server that reports tool errors in the format of Claude Flow. It is empty for all
	// other servers.
	Unwrap string
	// Timeout limits the duration of one request.
	Timeout time.Duration
	// MaxTimeout limits the total duration of a request while the server reports progress. If MaxTimeout is below Timeout,
	// progress does not extend the timeout.
	MaxTimeout time.Duration
	// RecordArguments is true if the gateway stores copies of the arguments of calls.
	RecordArguments bool
	// SignsIn is true if the mesh signs in at the server by OAuth. ForEachPerson is true if each person uses their own
	// account there.
	SignsIn, ForEachPerson bool
	// Embedded is the name of a server that runs in this process. It is empty for all other servers. An embedded server is
	// identified by this name, because its address changes at every start.
	Embedded string
}

// identity returns a string that identifies the server by its URL, command or address, not by its configured name.
// Approvals are bound to this string (sluice/approval/v1/binding.proto). Calls to a server whose identity is longer
// than 8,192 bytes cannot be approved.
func (s *Server) identity() string {
	if s.Embedded != "" {
		return "embedded " + s.Embedded
	}
	switch {
	case s.Host != "":
		return "host " + s.Host
	case s.URL != "":
		return httpIdentity(s.URL)
	case s.isRole():
		return "role " + s.Target
	case s.Target != "":
		return "grpc " + strings.ToLower(s.Target)
	}
	return "stdio " + canonicaljson.Strings(s.Command)
}

func (s *Server) isRole() bool { return config.IsAgentService(s.Target) }

// httpIdentity returns the identity of the server with this URL. Equivalent URLs have the same identity.
func httpIdentity(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "http " + text // Validate and the client refuse the URL
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	if port := u.Port(); port == "80" && u.Scheme == "http" || port == "443" && u.Scheme == "https" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	if u.Path == "" {
		u.Path = "/"
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	return "http " + u.String()
}

// DefaultConfig returns the configuration for an empty configuration file.
func DefaultConfig() Config {
	file := config.Default()
	cfg, _ := FromFile(&file, nil) // the defaults contain no secrets
	return cfg
}

// FromFile returns the gateway's part of the configuration. It resolves the references to secrets, except references to
// the keychain. References to the keychain are resolved when the first session with the server is opened.
func FromFile(f *config.File, env config.Env) (Config, error) {
	cfg := Config{
		Listen:   f.Listen,
		CertFile: f.Path(f.ListenTLS.Cert),
		KeyFile:  f.Path(f.ListenTLS.Key),
		Hosts:    f.AcceptedHosts(),
		Resource: f.Resource(),

		StepUpClients: f.Auth.ScopeStepUp,

		Origins:     f.Origins,
		TrustParent: f.Telemetry.TrustParent,
		Data:        f.Path(f.Data),
		SyncAlways:  f.Journal.Sync == "always",

		JournalBytes: int64(f.Journal.CallsMiB) << 20,
		JournalShare: f.Journal.Share,

		ArgumentsBytes: int64(f.Journal.Arguments.MiB) << 20,
		ArgumentsAge:   f.Journal.Arguments.Retention,

		KeepDecisions: f.Decisions.Keep,

		SessionIdle:    f.Session.Idle,
		MaxSessions:    f.Session.MaxPerPrincipal,
		Hold:           f.Approvals.Hold,
		MaxPending:     f.Approvals.MaxPending,
		Execute:        f.Approvals.Execute,
		Servers:        make(map[string]Server, len(f.Servers)),
		Secrets:        f.SecretPaths(),
		Documents:      f.PolicyPaths(),
		SecretPrograms: f.SecretPrograms(),
	}
	for _, c := range f.Approvals.Clients {
		cfg.Clients = append(cfg.Clients, approvals.ClientHold{Name: c.Name, Hold: *c.Hold})
	}
	var errs []error
	for _, text := range f.BehindProxy {
		network, err := config.ParseNetwork(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("behind_proxy: %w", err))
		}
		cfg.Proxies = append(cfg.Proxies, network)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		s, bad := lateServerFrom(f, f.Servers[name], env)
		for _, err := range bad {
			errs = append(errs, fmt.Errorf("servers.%s: %w", name, err))
		}
		cfg.Servers[name] = s
	}
	return cfg, errors.Join(errs...)
}

func serverFrom(f *config.File, s config.Server, refs resolver) (out Server, bad []error) {
	out = Server{Host: s.Host(), Unwrap: s.Unwrap, Timeout: s.Timeout, MaxTimeout: s.MaxTimeout, RecordArguments: s.Record.Arguments != "", SignsIn: s.Credentials != nil, ForEachPerson: s.Credentials.ForEachPerson()}
	switch {
	case s.HTTP != nil:
		out.URL = s.HTTP.URL
		out.Headers, out.Secrets, bad = refs.resolve(f, s.HTTP.Headers)
		out.Secrets = append(out.Secrets, config.URLSecrets(s.HTTP.URL)...)
		if s.HTTP.CA != "" {
			out.CA = f.Path(s.HTTP.CA)
		}
		bad = append(bad, out.resolveProxy(f, s.HTTP, refs)...)
	case s.GRPC != nil:
		out.Target, out.Plaintext = s.GRPC.Target, s.GRPC.Plaintext
		if s.GRPC.CA != "" {
			out.CA = f.Path(s.GRPC.CA)
		}
		out.Headers, out.Secrets, bad = refs.resolve(f, s.GRPC.Headers)
	case s.Stdio != nil:
		out.Command = s.Stdio.Command
		out.Remove, out.Recycle, out.Processes = s.Stdio.Remove, s.Stdio.Recycle, s.Stdio.Processes
		out.Shared = s.Stdio.Per == "shared"
		out.Start = s.Stdio.Start
		out.Limits = stdio.Limits{Tasks: s.Stdio.Limits.Tasks, Memory: int64(s.Stdio.Limits.Memory), Disk: int64(s.Stdio.Limits.Disk)}
		out.Sandbox = sandboxFrom(f, &s.Stdio.Sandbox)
		if s.Stdio.Dir != "private" {
			out.Dir = f.Path(s.Stdio.Dir)
		}
		out.Env, out.Secrets, bad = refs.resolve(f, s.Stdio.Env)
		out.InstallEachStart = s.Stdio.Install == "each_start"
		for _, name := range slices.Sorted(maps.Keys(s.Stdio.Env)) {
			if len(s.Stdio.Env[name].References()) > 0 {
				out.SecretEnv = append(out.SecretEnv, name)
			}
			if len(s.Stdio.Env[name].KeychainEntries()) > 0 {
				out.KeychainEnv = append(out.KeychainEnv, name)
			}
		}
	}
	return out, bad
}

// resolver resolves the references to secrets in the values of a configuration.
type resolver struct {
	env      config.Env
	keychain config.Keychain
}

// resolve returns the values that are sent to a server, the secrets in these values, and an error for each value that
// cannot be resolved.
func (r resolver) resolve(f *config.File, values map[string]config.Secret) (out map[string]string, secrets []string, bad []error) {
	out = make(map[string]string, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		text, err := value.ResolveWith(f, r.env, r.keychain)
		if err != nil {
			for line := range strings.Lines(err.Error()) { // one line for each reference
				bad = append(bad, fmt.Errorf("%s: %s", key, strings.TrimSuffix(line, "\n")))
			}
			continue
		}
		out[key] = text
		for _, ref := range value.References() {
			secret, err := ref.ResolveWith(f, r.env, r.keychain)
			if err != nil {
				bad = append(bad, fmt.Errorf("%s: %w", key, err))
				continue
			}
			secrets = append(secrets, secret)
		}
	}
	return out, secrets, bad
}

// Validate returns an error that describes all problems in the configuration, or nil.
func (c *Config) Validate() error {
	var errs []error
	if c.Listen == "" { // with an empty address, the gateway would listen on every address of this machine
		errs = append(errs, errors.New("gateway: listen is empty"))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("gateway: the certificate or its key is missing"))
	}
	if c.Data == "" {
		errs = append(errs, errors.New("gateway: data is empty"))
	}
	if c.MaxPending < 1 || c.Execute <= 0 {
		errs = append(errs, errors.New("gateway: max_pending must be at least 1, and execute must be positive"))
	}
	for name, s := range c.Servers {
		if kinds := []bool{s.URL != "", len(s.Command) > 0, s.Target != "", s.Host != ""}; len(slices.DeleteFunc(kinds, func(set bool) bool { return !set })) != 1 {
			errs = append(errs, fmt.Errorf("gateway: server %s needs exactly one of a URL, a command, a target and a client", name))
		}
		if s.Unwrap != "" && s.Unwrap != "claude-flow" {
			errs = append(errs, fmt.Errorf("gateway: unwrap %q of server %s is unknown", s.Unwrap, name))
		}
		if s.Timeout <= 0 {
			errs = append(errs, fmt.Errorf("gateway: the timeout of server %s must be positive", name))
		}
		if err := c.checkSandbox(name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *Config) sync() journal.Sync {
	if c.SyncAlways {
		return journal.SyncAlways
	}
	return journal.SyncNever
}
