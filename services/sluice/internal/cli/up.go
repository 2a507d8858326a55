package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/sluice"
	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

// startTimeout limits how long the program waits for all mesh services to be ready.
const startTimeout = 40 * time.Second

const demoName = "demo"

func (t *tool) up() *cobra.Command {
	var listen, grpc, level string
	var idle idleFlags
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the whole mesh in one process",
		Long: `Run all services of the mesh in one process. Without a configuration, up runs a demo server
under a starter policy, and creates tokens for an agent and an operator in the data folder.

Without --config, up uses sluice.yaml in the working folder, provided that no other user can
write to the file or the folder. It shows what the file would start and use, and asks you to
confirm. It asks again only when the file has changed. Without a terminal, set --config.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := config.ParseLogLevel(level); level != "" && err != nil {
				return usageError{fmt.Errorf("--log-level: %w", err)}
			}
			f, found, err := t.loadLocal()
			if err != nil {
				return err
			}
			if level != "" {
				f.Log.Level = level
			}
			if f.HasSeparateRoles() {
				return errors.New("the configuration sets `roles`, which is for roles in separate processes: start each role by its own program, or remove `roles` to run them in one process")
			}
			if found != nil {
				if err := t.confirmLocal(c.Context(), found); err != nil {
					return err
				}
				t.config = f.Name() // the commands that up prints name this file
			}
			at := addresses{mcp: f.Listen, grpc: f.GRPC}
			if listen != "" {
				f.Listen = listen
			}
			if grpc != "" {
				f.GRPC = grpc
			}
			return t.runUp(c.Context(), f, found, at, idle)
		},
	}
	c.Flags().StringVar(&listen, "listen", "", "the address of MCP (default 127.0.0.1:8080)")
	c.Flags().StringVar(&grpc, "grpc", "", "the address of gRPC (default 127.0.0.1:9090)")
	c.Flags().BoolVar(&idle.onDemand, "on-demand", false, "end after --idle without clients, if all approvals have ended")
	c.Flags().DurationVar(&idle.after, "idle", defaultIdle, "with --on-demand, the time without clients")
	c.Flags().StringVar(&level, "log-level", "", "the lowest level that is logged: debug, info, warn or error (default info)")
	return c
}

// idleFlags contains the flags that determine whether and when the mesh exits because it is idle.
type idleFlags struct {
	onDemand bool
	after    time.Duration
}

// openData locks the data directory. If a client starts this mesh, openData waits for the previous mesh, which may
// still be stopping.
func (i idleFlags) openData(ctx context.Context, data string) (*datadir.Dir, error) {
	const patience = 6 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		dir, err := datadir.Open(data, "")
		if !i.onDemand || !errors.Is(err, datadir.ErrInUse) {
			return dir, err
		}
		select {
		case <-time.After(findInterval):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (t *tool) runUp(ctx context.Context, f *config.File, local *localFile, found addresses, idle idleFlags) (err error) {
	app.Tune()
	log := app.NewLog(t.errOut, "sluice", true, f.LogLevel())
	dataDir, err := idle.openData(ctx, f.Path(f.Data)) // lock the directory before any file is created in it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dataDir.Close()) }()
	generated, err := ensureTokens(f)
	if err != nil {
		return err
	}
	stopped := ctx
	group, ctx := errgroup.WithContext(ctx)
	embedded, starter, err := addDefaults(ctx, group, f, log)
	if err != nil {
		return err
	}
	connections := new(sluice.Connections)
	mesh, err := sluice.New(ctx, sluice.Options{File: f, Embedded: embedded, Env: app.Env, Reload: f.Reloader(local.reader(), app.Env), Log: log, Version: app.Version(), Launcher: t.launcher, Connections: connections})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mesh.Close()) }()
	f.Listen, f.GRPC = mesh.MCP().String(), mesh.GRPC().String()
	ctx, endWhenIdle := context.WithCancel(ctx)
	defer endWhenIdle()
	group.Go(func() error { return mesh.Run(ctx) })
	group.Go(func() error { t.announceApprovals(ctx, f, found, mesh, log); return nil })
	group.Go(func() error {
		announced, err := announceWhenReady(ctx, mesh, f, idle)
		if err != nil || announced == nil {
			return err
		}
		group.Go(func() error {
			if idle.onDemand && waitIdle(ctx, mesh.Busy, connections, idle.after, log) {
				endWhenIdle()
			}
			<-ctx.Done()
			return announced.Close()
		})
		return t.printStarted(f, startedMesh{lookupAddrs: found, generated: generated, usesStarterPolicy: starter, sandboxes: mesh.Sandboxes(), observed: describeObserved(mesh.ObservedPolicy())})
	})
	ended := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() { t.reportStopping(stopped, ended, mesh.InFlight) })
	err = group.Wait()
	close(ended)
	saying.Wait()
	return err
}

// addDefaults adds a demo server if the configuration has no servers, and a starter policy if it has no policies. It
// returns the names of the servers in this process, and reports whether the starter policy is used.
func addDefaults(ctx context.Context, group *errgroup.Group, f *config.File, log *slog.Logger) (embedded []string, starter bool, err error) {
	own := len(f.Servers) == 0
	if own {
		if err := addDemo(ctx, group, f, log); err != nil {
			return nil, false, err
		}
		embedded = []string{demoName}
	}
	if len(f.Policies) == 0 {
		starter, err = ensureStarterPolicy(f, own)
	}
	return embedded, starter, err
}

// announceWhenReady waits until the mesh is ready and then announces it, so that commands and clients find it. If ctx
// is done first, it returns nil, because this is not a failure.
func announceWhenReady(ctx context.Context, mesh *sluice.Mesh, f *config.File, idle idleFlags) (*running.Announcement, error) {
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := mesh.WaitReady(ready); err != nil {
		if ctx.Err() != nil {
			return nil, nil //nolint:nilnil // the mesh was stopped before it was ready
		}
		return nil, err
	}
	return running.Announce(ctx, f.Path(f.Data), idle.announced(f))
}

const stopReportInterval = 5 * time.Second

// reportStopping waits until ctx is done. Then it prints on standard error the requests for which the mesh waits before
// it stops. It prints them again whenever they change, until ended is closed.
func (t *tool) reportStopping(ctx context.Context, ended <-chan struct{}, inFlight func() map[string]int) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	tick := time.NewTicker(stopReportInterval)
	defer tick.Stop()
	for last := ""; ; {
		if text := stoppingText(inFlight()); text != last {
			last = text
			_ = oneLine(t.errOut, "%s", text)
		}
		select {
		case <-ended:
			return
		case <-tick.C:
		}
	}
}

func stoppingText(inFlight map[string]int) string {
	const again = "; press Ctrl-C again to stop at once"
	if len(inFlight) == 0 {
		return "Stopping: no request waits for a server; closing programs and the journal" + again
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(inFlight)) {
		parts = append(parts, fmt.Sprintf("%s (%d)", name, inFlight[name]))
	}
	return "Stopping: waiting at most 30 s for requests that servers have not answered: " + strings.Join(parts, ", ") + again
}

// ensureTokens adds an agent's token and an operator's token to the configuration if they are missing. It stores the
// generated tokens in the data directory, and returns their roles.
func ensureTokens(f *config.File) ([]string, error) {
	var generated []string
	for _, role := range []string{agentToken, operatorToken} {
		if hasToken(f, role) {
			continue
		}
		text, err := ensureToken(tokenFile(f, role))
		if err != nil {
			return nil, err
		}
		generated = append(generated, role)
		token := generatedToken(role)
		token.Token = config.Secret(text)
		f.AddToken(token)
	}
	return generated, nil
}

// generatedToken returns the token that `up` generates for the given role, without the secret.
func generatedToken(role string) config.Token {
	token := config.Token{Name: "local-" + role, Tenant: "default", Subject: "local-" + role, Role: role}
	if role == agentToken {
		token.Agent = "local"
	}
	return token
}

// withGeneratedTokens returns a configuration that also contains the tokens that `up` would generate.
func withGeneratedTokens(f *config.File) *config.File {
	if f.HasSeparateRoles() {
		return f
	}
	whole := *f
	whole.Auth.Tokens = slices.Clone(f.Auth.Tokens)
	for _, role := range []string{agentToken, operatorToken} {
		if !hasToken(f, role) {
			whole.Auth.Tokens = append(whole.Auth.Tokens, generatedToken(role))
		}
	}
	return &whole
}

func ensureToken(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the token: %w", err)
	}
	text := authn.NewSecret()
	return text, pki.WriteFile(file, []byte(text), 0o600)
}

// agentsName is the server for the mesh's own agents. `up` adds it if no server is configured.
const agentsName = "agents"

// addDemo serves the demo server on loopback. It adds the demo server and the server for the mesh's own agents to the
// configuration.
func addDemo(ctx context.Context, group *errgroup.Group, f *config.File, log *slog.Logger) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the demo server: %w", err)
	}
	server, err := newDemo(log)
	if err != nil {
		return err
	}
	f.Servers = map[string]config.Server{
		demoName:   {HTTP: &config.HTTPServer{URL: "http://" + lis.Addr().String() + "/mcp"}, Timeout: time.Minute},
		agentsName: {GRPC: &config.GRPCServer{Target: "wasmagent"}, Timeout: config.AgentTimeout},
	}
	group.Go(func() error { return serveHTTP(ctx, lis, server.Handler()) })
	return nil
}

// ensureStarterPolicy adds the folder with the starter policies to the configuration. It creates missing policy files,
// which operators can edit, and does not change existing files. It also writes the JSON Schema to which the first line
// in each policy file refers. It reports whether the demo server's policy is unchanged.
func ensureStarterPolicy(f *config.File, demo bool) (bool, error) {
	if !demo {
		return false, errNoPolicies
	}
	dir, err := filepath.Abs(filepath.Join(f.Path(f.Data), "policies"))
	if err != nil {
		return false, fmt.Errorf("find the starter policies: %w", err)
	}
	f.Policies = append(f.Policies, dir)
	asMade := false
	for name, starter := range map[string]string{"starter.yaml": starterPolicy, "agents.yaml": agentsPolicy} {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			text, err = []byte(starter), pki.WriteFile(file, []byte(starter), 0o600)
		}
		if err != nil {
			return false, err
		}
		if name == "starter.yaml" {
			asMade = string(text) == starter
		}
	}
	return asMade, writeSchema(filepath.Join(f.Path(f.Data), "policy.schema.json"))
}

// writeSchema writes the JSON Schema of policy documents to a file, unless the file already contains it.
func writeSchema(file string) error {
	if text, err := os.ReadFile(file); err == nil && bytes.Equal(text, policy.Schema()) {
		return nil
	}
	return pki.WriteFile(file, policy.Schema(), 0o600)
}
