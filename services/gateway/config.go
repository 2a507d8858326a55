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
	"github.com/sluice-mesh/sluice/services/internal/canonical"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Config configures the gateway.
type Config struct {
	// Listen is the address of the MCP edge.
	Listen string
	// CertFile and KeyFile are with what the MCP edge speaks TLS; empty for none.
	CertFile, KeyFile string
	// Proxies are networks of trusted proxies in front of the MCP edge.
	Proxies []netip.Prefix
	// Hosts and Origins are accepted beside those on loopback.
	Hosts, Origins []string
	// TrustParent continues a client's trace instead of linking to it.
	TrustParent bool
	// Data is the folder in which the gateway keeps its journal and its servers'
	// working folders, and apart from them its keys.
	Data string
	// SyncAlways makes every record of the journal survive a loss of power.
	SyncAlways bool
	// JournalBytes is how much room the journal's records of calls may take, in bytes,
	// and JournalShare how much of it those of one principal may: above 0, and 1 at the
	// most.
	JournalBytes int64
	JournalShare float64
	// KeepDecisions says that policy's decisions are used again where it lets them be.
	KeepDecisions bool
	// SessionIdle is how long a session lives without a request.
	SessionIdle time.Duration
	// MaxSessions is how many sessions one principal may have.
	MaxSessions int
	// Servers are the MCP servers behind the gateway, by name.
	Servers map[string]Server
	// Hold is how long a call that waits for a person is held open; 0 gives the
	// ticket at once.
	Hold time.Duration
	// Clients are held for another time.
	Clients []approvals.Client
	// MaxPending is how many calls of one principal may wait for people; positive.
	MaxPending int
	// Execute is how long an approved call may wait to be made; positive.
	Execute time.Duration
	// Secrets are files and folders of the mesh's own that no server is to reach, and
	// Documents those that one may reach where its entry says so: absolute paths.
	Secrets, Documents []string
	// Version is what records and GetStatus name as the program.
	Version string
}

// Server is one MCP server. Exactly one of URL, Command and Target is set.
type Server struct {
	// Target is a gRPC server: a role, or host:port. CA is a PEM file with the certificates
	// that are trusted in place of the system's, and Plaintext says that it speaks no TLS.
	// Headers are its metadata.
	Target    string
	CA        string
	Plaintext bool
	// URL is an MCP endpoint, and Headers what every request to it carries. Proxy is that by which it is reached, with
	// its credentials, empty for none; ProxyHint is what is said where one may be meant.
	URL       string
	Headers   map[string]string
	Proxy     string
	ProxyHint string
	// Command is a program to start, Env its environment beside PATH and HOME,
	// Shared whether one process serves every principal, and Dir its working
	// folder, empty for one of its own.
	Command []string
	Env     map[string]string
	Shared  bool
	Dir     string
	// Remove are files in a folder of its own that go before a process is started.
	Remove []string
	// Recycle is how many calls a process serves before it is replaced; 0 is no end.
	Recycle int
	// Limits are what one process may take; the zero value means the defaults.
	Limits stdio.Limits
	// Processes is how many processes all principals may have together; 0 means 256.
	Processes int
	// SecretEnv are the names of variables in Env that hold a secret.
	SecretEnv []string
	// InstallEachStart leaves the installation of a package to the command, at each start of a process.
	InstallEachStart bool
	// Start is how long a process may take for its start; 0 means 60 s, and longer while it writes to standard error.
	Start time.Duration
	// Sandbox says what the program is kept away from; the zero value starts none
	// unless everything holds.
	Sandbox Sandbox
	// Secrets are what references in Headers or Env stand for. No answer of the
	// server is to hold one.
	Secrets []string
	// Unwrap is "claude-flow" for a server that hides errors of its tools as Claude
	// Flow does, else empty.
	Unwrap string
	// Timeout bounds one request.
	Timeout time.Duration
	// MaxTimeout bounds one that tells of progress; below Timeout progress changes nothing.
	MaxTimeout time.Duration
	// Embedded is the name of a server that the gateway's own process serves: its
	// address, another one at every start, says nothing of what stands behind it.
	// Empty for any other.
	Embedded string
}

// identity is what stands behind the server's name, as approvals are bound to it
// (sluice/approval/v1/binding.proto). Calls of a server whose identity is longer
// than 8,192 bytes can't be approved.
func (s *Server) identity() string {
	if s.Embedded != "" {
		return "embedded " + s.Embedded
	}
	switch {
	case s.URL != "":
		return httpIdentity(s.URL)
	case s.isRole():
		return "role " + s.Target
	case s.Target != "":
		return "grpc " + strings.ToLower(s.Target)
	}
	return "stdio " + canonical.Texts(s.Command)
}

// isRole reports whether the server is a service of the mesh itself.
func (s *Server) isRole() bool { return config.IsRole(s.Target) }

// httpIdentity is a URL as approvals are bound to it: what makes no difference is
// written in one way.
func httpIdentity(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "http " + text // Validate and the client refuse it
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

// DefaultConfig returns the configuration used where a file says nothing.
func DefaultConfig() Config {
	file := config.Default()
	cfg, _ := FromFile(&file, nil) // the defaults hold no secrets
	return cfg
}

// FromFile returns the gateway's part of the configuration, its secrets resolved.
func FromFile(f *config.File, env config.Env) (Config, error) {
	cfg := Config{
		Listen:      f.Listen,
		CertFile:    f.Path(f.ListenTLS.Cert),
		KeyFile:     f.Path(f.ListenTLS.Key),
		Hosts:       f.Hosts,
		Origins:     f.Origins,
		TrustParent: f.Telemetry.TrustParent,
		Data:        f.Path(f.Data),
		SyncAlways:  f.Journal.Sync == "always",

		JournalBytes: int64(f.Journal.CallsMiB) << 20,
		JournalShare: f.Journal.Share,

		KeepDecisions: f.Decisions.Keep,

		SessionIdle: f.Session.Idle,
		MaxSessions: f.Session.MaxPerPrincipal,
		Hold:        f.Approvals.Hold,
		MaxPending:  f.Approvals.MaxPending,
		Execute:     f.Approvals.Execute,
		Servers:     make(map[string]Server, len(f.Servers)),
		Secrets:     f.OwnSecrets(),
		Documents:   f.OwnDocuments(),
	}
	for _, c := range f.Approvals.Clients {
		cfg.Clients = append(cfg.Clients, approvals.Client{Name: c.Name, Hold: *c.Hold})
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
		s, bad := serverFrom(f, f.Servers[name], env)
		for _, err := range bad {
			errs = append(errs, fmt.Errorf("servers.%s: %w", name, err))
		}
		cfg.Servers[name] = s
	}
	return cfg, errors.Join(errs...)
}

// serverFrom returns what a server's entry says, and each reference in it that can't be resolved.
func serverFrom(f *config.File, s config.Server, env config.Env) (out Server, bad []error) {
	out = Server{Unwrap: s.Unwrap, Timeout: s.Timeout, MaxTimeout: s.MaxTimeout}
	switch {
	case s.HTTP != nil:
		out.URL = s.HTTP.URL
		out.Headers, out.Secrets, bad = resolve(f, s.HTTP.Headers, env)
		out.Secrets = append(out.Secrets, config.URLSecrets(s.HTTP.URL)...)
		if s.HTTP.CA != "" {
			out.CA = f.Path(s.HTTP.CA)
		}
		bad = append(bad, out.resolveProxy(f, s.HTTP, env)...)
	case s.GRPC != nil:
		out.Target, out.Plaintext = s.GRPC.Target, s.GRPC.Plaintext
		if s.GRPC.CA != "" {
			out.CA = f.Path(s.GRPC.CA)
		}
		out.Headers, out.Secrets, bad = resolve(f, s.GRPC.Headers, env)
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
		out.Env, out.Secrets, bad = resolve(f, s.Stdio.Env, env)
		out.InstallEachStart = s.Stdio.Install == "each_start"
		for _, name := range slices.Sorted(maps.Keys(s.Stdio.Env)) {
			if len(s.Stdio.Env[name].References()) > 0 {
				out.SecretEnv = append(out.SecretEnv, name)
			}
		}
	}
	return out, bad
}

// resolve returns what goes to a server, what of it is secret, and what can't be resolved, by key.
func resolve(f *config.File, values map[string]config.Secret, env config.Env) (out map[string]string, secrets []string, bad []error) {
	out = make(map[string]string, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		text, err := value.Resolve(f, env)
		if err != nil {
			for line := range strings.Lines(err.Error()) { // each of its references
				bad = append(bad, fmt.Errorf("%s: %s", key, strings.TrimSuffix(line, "\n")))
			}
			continue
		}
		out[key] = text
		for _, ref := range value.References() {
			secret, err := ref.Resolve(f, env)
			if err != nil {
				bad = append(bad, fmt.Errorf("%s: %w", key, err))
				continue
			}
			secrets = append(secrets, secret)
		}
	}
	return out, secrets, bad
}

// Validate returns everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	if c.Listen == "" { // which would be every address of this machine
		errs = append(errs, errors.New("gateway: listen is empty"))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("gateway: of the certificate and its key one is missing"))
	}
	if c.Data == "" {
		errs = append(errs, errors.New("gateway: data is empty"))
	}
	if c.MaxPending < 1 || c.Execute <= 0 {
		errs = append(errs, errors.New("gateway: no call may wait for people, or be made once they have approved it"))
	}
	for name, s := range c.Servers {
		if kinds := []bool{s.URL != "", len(s.Command) > 0, s.Target != ""}; len(slices.DeleteFunc(kinds, func(set bool) bool { return !set })) != 1 {
			errs = append(errs, fmt.Errorf("gateway: server %s needs exactly one of a URL, a command and a target", name))
		}
		if s.Unwrap != "" && s.Unwrap != "claude-flow" {
			errs = append(errs, fmt.Errorf("gateway: no server's errors are hidden as %q says of server %s", s.Unwrap, name))
		}
		if s.Timeout <= 0 {
			errs = append(errs, fmt.Errorf("gateway: the time-out of server %s is not positive", name))
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
