package gateway

import (
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/grpctools"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/hosted"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// A connector returns the transport to a server whose secrets have been resolved.
type connector func(Server) (upstream.Transport, error)

// connector returns the connector for a server. programFiles maps the name of each server to the files of the server's
// program.
func (s *Service) connector(name string, server Server, programFiles map[string][]string) (connector, error) {
	if server.URL != "" {
		return func(server Server) (upstream.Transport, error) { return s.newHTTP(name, server) }, nil
	}
	if server.Target != "" {
		return func(server Server) (upstream.Transport, error) { return s.newMethods(name, server) }, nil
	}
	if server.Host != "" {
		return func(server Server) (upstream.Transport, error) { return hosted.New(server.Host) }, nil
	}
	held, report, err := s.cfg.sandbox(name, s.deps.Launcher, s.deps.Env, programFiles)
	if err != nil {
		return nil, err
	}
	if s.limiter == nil {
		s.limiter = proclimit.New()
	}
	s.sandboxReports[name] = report
	deps := stdio.Deps{Log: s.deps.Log, Room: s.answerMemory, Sandbox: held, Limiter: s.limiter, Agents: s.restorableAgents, Installs: &s.installs}
	deps.Installer = func() (*sandbox.Sandbox, *sandbox.Sandbox, error) {
		return s.cfg.installers(name, s.deps.Launcher, s.deps.Env)
	}
	return func(server Server) (upstream.Transport, error) {
		cfg := server.stdio(name, s.cfg.workRoot(), s.deps.Env)
		cfg.Install, _ = server.installation(name, s.cfg.programsRoot(), s.deps.Env)
		return stdio.New(cfg, deps)
	}, nil
}

// newHTTP returns the transport to a server over HTTP.
func (s *Service) newHTTP(name string, server Server) (upstream.Transport, error) {
	cfg := streamable.Config{
		Name: name, URL: server.URL, Headers: server.Headers, Secrets: server.Secrets,
		Proxy: server.Proxy, ProxyHint: server.ProxyHint, CA: server.CA,
	}
	signedIn := func(as accesstoken.Account) (upstream.Transport, error) {
		own := cfg
		own.Tokens = accesstoken.New(s.deps.Connections, name, server.URL, as)
		return streamable.New(own, s.deps.Log)
	}
	switch {
	case server.ForEachPerson:
		discovery, err := signedIn(accesstoken.Account{ForDiscovery: true})
		if err != nil {
			return nil, err
		}
		return upstream.EachPerson(discovery, func(person principal.Key) (upstream.Transport, error) {
			return signedIn(accesstoken.Account{Person: person})
		}), nil
	case server.SignsIn:
		return signedIn(accesstoken.Account{})
	default:
		return streamable.New(cfg, s.deps.Log)
	}
}

// transport returns the transport to the server. If the server has secrets in the keychain, the transport reads the
// secrets when the first session is opened.
func (s *Server) transport(connect connector, keychain func(context.Context) config.Keychain) (upstream.Transport, error) {
	unwrapping := func(server Server) (upstream.Transport, error) {
		over, err := connect(server)
		if err == nil && server.Unwrap == "claude-flow" {
			over = upstream.Unwrap(over, server.Secrets)
		}
		return over, err
	}
	if len(s.KeychainEntries) == 0 {
		return unwrapping(*s)
	}
	return upstream.Late(s.kind(), func(ctx context.Context) (upstream.Transport, error) {
		server, err := s.Complete(keychain(ctx))
		if err != nil {
			return nil, keychainError("its secrets can't be read from the keychain", err)
		}
		over, err := unwrapping(server)
		if err != nil {
			return nil, keychainError("it can't be used with its secrets", err)
		}
		return over, nil
	}), nil
}

func (s *Service) newMethods(name string, server Server) (upstream.Transport, error) {
	cfg := grpctools.Config{Name: name, Headers: server.Headers, Secrets: server.Secrets}
	if server.isRole() {
		cfg.Contracts = wasmagentv1.File_sluice_wasmagent_v1_agent_service_proto.Package()
		return grpctools.New(cfg, grpctools.Deps{Conn: s.deps.Agents, Log: s.deps.Log})
	}
	conn, err := grpctools.Dial(server.Target, server.CA, server.Plaintext)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", name, err)
	}
	over, err := grpctools.New(cfg, grpctools.Deps{Conn: conn, Close: conn.Close, Log: s.deps.Log})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return over, nil
}
