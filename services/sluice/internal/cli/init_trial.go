package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/sluice"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// maxConcurrentTrials is the maximum number of servers that are tried at the same time. Each server is started twice:
// directly and in the trial mesh.
const maxConcurrentTrials = 3

// A trial compares a server's behavior with and without the mesh.
type trial struct {
	server string
	direct listedServer
	// tools contains the server's tools with their classifications.
	tools []policy.ClassifiedTool
	// reason is the reason why the server's entries are not changed. For example, the server behaves differently through
	// the mesh, or it does not work even without the mesh. It is empty if the server behaves the same.
	reason string
}

// tryServers lists each server's tools both directly and through a temporary mesh in this process. Afterwards it stops
// this mesh, but keeps the mesh's data in s.trialDir. It calls done after each server, unless ctx is done.
func (s *setup) tryServers(ctx context.Context, servers []clientsetup.Server, done func(trial)) ([]trial, error) {
	mesh, err := s.startTrialMesh(ctx, servers)
	if err != nil {
		return nil, err
	}
	defer mesh.end()
	out := make([]trial, len(servers))
	steps := &progress{print: s.printf}
	defer context.AfterFunc(ctx, func() {
		steps.do(func() {
			s.printf("Stopping the servers. One that is still installing its package gets %v to finish. Press Ctrl-C again to stop at once.", installTimeout)
		})
	})()
	var group errgroup.Group
	group.SetLimit(maxConcurrentTrials)
	for i, server := range servers {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			out[i] = mesh.try(ctx, server, steps)
			if ctx.Err() == nil {
				steps.do(func() { done(out[i]) })
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in out
	return out, ctx.Err()
}

func (m *trialMesh) try(ctx context.Context, s clientsetup.Server, steps *progress) trial {
	out := trial{server: s.Name}
	ended := steps.during("  %s: starting without the mesh …", s.Name)
	direct, err := listDirectly(ctx, s.Definition)
	ended()
	if err != nil {
		out.reason = "does not work without the mesh either: " + trialFault(err)
		return out
	}
	if out.tools, err = policy.ClassifyList(direct.tools, false); err != nil {
		out.reason = "has a list of tools that the mesh refuses: " + err.Error()
		return out
	}
	out.direct = direct
	ended = steps.during("  %s: starting behind the mesh, where it has a HOME of its own and may install its package again …", s.Name)
	behind, err := m.list(ctx, s.Name)
	ended()
	if err != nil {
		out.reason = "works, but not behind the mesh: " + trialFault(err)
		return out
	}
	if difference := compareTools(direct.tools, behind.tools); difference != "" {
		out.reason = "behaves differently behind the mesh: " + difference
	}
	return out
}

// listDirectly lists the tools of a server as its client would.
func listDirectly(ctx context.Context, d clientsetup.Definition) (listedServer, error) {
	if d.URL != "" {
		headers := make(http.Header)
		for _, h := range d.Headers {
			headers.Set(h.Name, h.Value)
		}
		return listURL(ctx, d.URL, headers)
	}
	cmd := exec.Command(d.Command[0], d.Command[1:]...) //nolint:gosec,noctx // the user's own command; its connection ends it
	cmd.Dir, cmd.Env = d.Dir, app.Environ()
	for _, v := range d.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	return listServerOfCommand(ctx, cmd)
}

// listURL lists the tools of a server that uses Streamable HTTP.
func listURL(ctx context.Context, url string, headers http.Header) (listedServer, error) {
	add := &headerTransport{headers: headers}
	listed, err := listServer(ctx, limitedTransport(url, add))
	if err != nil && add.refused() {
		return listed, errors.New("it wants a sign-in (HTTP 401): the client signs in by OAuth, which the mesh can't do for it yet")
	}
	return listed, err
}

// headerTransport adds headers to requests. It refuses redirects, because otherwise the headers would be sent to
// another server. It also records whether the server has responded with status 401.
type headerTransport struct {
	headers http.Header

	mu           sync.Mutex
	unauthorized bool
}

func (h *headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, h.headers)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		h.mu.Lock()
		h.unauthorized = true
		h.mu.Unlock()
	}
	if err == nil && resp.StatusCode >= 300 && resp.StatusCode < 400 {
		_ = resp.Body.Close() // the response is not used
		return nil, redirectError(resp)
	}
	return resp, err
}

func redirectError(resp *http.Response) error {
	to, err := resp.Location()
	if err != nil {
		return fmt.Errorf("it answers with %s", resp.Status)
	}
	return fmt.Errorf("it redirects to %s, where init does not send the headers of the entry: write the new address into the entry", withoutQuery(to.String()))
}

func (h *headerTransport) refused() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unauthorized
}

// compareTools describes the first difference between two tool lists, or returns "" if they contain the same tools with
// the same definitions.
func compareTools(direct, behind jsontext.Value) string {
	want, err := definitionsByName(direct)
	if err != nil {
		return err.Error()
	}
	got, err := definitionsByName(behind)
	if err != nil {
		return err.Error()
	}
	for _, name := range sortedNames(want, got) {
		switch {
		case got[name] == nil:
			return fmt.Sprintf("the tool %q is missing", name)
		case want[name] == nil:
			return fmt.Sprintf("the tool %q is there only behind the mesh", name)
		case !bytes.Equal(want[name], got[name]):
			return fmt.Sprintf("the tool %q has another definition", name)
		}
	}
	return ""
}

func sortedNames(all ...map[string]jsontext.Value) []string {
	var out []string
	for _, m := range all {
		for name := range m {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// definitionsByName returns the tools' definitions as canonical JSON, by name. It returns an error if two tools have
// the same name, because it is not known which of them a client would use.
func definitionsByName(list jsontext.Value) (map[string]jsontext.Value, error) {
	var tools []jsontext.Value
	if err := json.Unmarshal(list, &tools); err != nil {
		return nil, fmt.Errorf("read the list of tools: %w", err)
	}
	out := make(map[string]jsontext.Value, len(tools))
	for _, tool := range tools {
		var named struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(tool, &named); err != nil {
			return nil, fmt.Errorf("read a definition: %w", err)
		}
		if err := tool.Canonicalize(); err != nil {
			return nil, fmt.Errorf("read the definition of %q: %w", named.Name, err)
		}
		if _, twice := out[named.Name]; twice {
			return nil, fmt.Errorf("the tool %q is listed twice", named.Name)
		}
		out[named.Name] = tool
	}
	return out, nil
}

// A trialMesh is a mesh in this process that has temporary data and allows every call.
type trialMesh struct {
	dir, token string
	mesh       *sluice.Mesh
	stop       func()
}

func (s *setup) startTrialMesh(ctx context.Context, servers []clientsetup.Server) (_ *trialMesh, err error) {
	dir, err := os.MkdirTemp("", "sluice-init-")
	if err != nil {
		return nil, fmt.Errorf("create a folder for the trial: %w", err)
	}
	m := &trialMesh{dir: dir, token: authn.NewSecret(), stop: func() {}}
	s.trialDir = dir
	defer func() {
		if err != nil {
			m.end()
		}
	}()
	f, env, err := m.config(servers)
	if err != nil {
		return nil, fmt.Errorf("configure the trial: %w", err)
	}
	log := slog.New(slog.DiscardHandler)
	if m.mesh, err = sluice.New(ctx, sluice.Options{File: f, Env: env, Log: log, Version: app.Version(), Launcher: s.launcher}); err != nil {
		return nil, fmt.Errorf("start the trial: %w", err)
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.mesh.Run(running) // if this fails, listing the tools also fails
	}()
	m.stop = func() { cancel(); <-ended }
	ready, done := context.WithTimeout(ctx, startTimeout)
	defer done()
	if err := m.mesh.WaitReady(ready); err != nil {
		return nil, fmt.Errorf("start the trial: %w", err)
	}
	return m, nil
}

// config returns the configuration of the trial mesh. The servers' secrets are in the returned environment and not in a
// file.
func (m *trialMesh) config(servers []clientsetup.Server) (*config.File, config.Env, error) {
	env := map[string]string{"SLUICE_TRIAL_TOKEN": m.token, "SLUICE_TRIAL_OPERATOR": authn.NewSecret()}
	references := make(map[clientsetup.SecretKey]string)
	for _, s := range servers {
		for _, v := range slices.Concat(s.Env, s.Headers) {
			name := fmt.Sprintf("SLUICE_TRIAL_%d", len(env))
			env[name], references[clientsetup.SecretKey{Server: s.Name, Setting: v.Name}] = v.Value, "${env:"+name+"}"
		}
	}
	file := clientsetup.MeshFile{Data: trialDataIn(m.dir), User: "init", Servers: servers, References: references}
	raw, err := file.Edit(nil)
	if err != nil {
		return nil, nil, err
	}
	raw = []byte(strings.NewReplacer(
		"${file:"+file.Operator+"}", "${env:SLUICE_TRIAL_OPERATOR}",
	).Replace(string(raw)))
	if err := m.writePolicies(servers); err != nil {
		return nil, nil, err
	}
	lookup := func(name string) (string, bool) {
		if value, ok := env[name]; ok {
			return value, true
		}
		return app.Env(name)
	}
	f, err := config.Parse(filepath.Join(m.dir, "sluice.yaml"), raw, lookup)
	if err != nil {
		return nil, nil, err
	}
	f.AddToken(config.Token{Name: "init-agent", Token: "${env:SLUICE_TRIAL_TOKEN}", Tenant: "default", Subject: "init", Role: agentToken, Agent: "init"}) //nolint:gosec // a reference, not a token
	return f, lookup, nil
}

// writePolicies writes policies that allow every method, so that the lists are complete.
func (m *trialMesh) writePolicies(servers []clientsetup.Server) error {
	dir := filepath.Join(m.dir, "policies")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("write the policies of the trial: %w", err)
	}
	for _, s := range servers {
		text := fmt.Sprintf("version: 1\nname: %[1]s\nserver: %[1]s\ndefault: allow\n", s.Name)
		if err := os.WriteFile(filepath.Join(dir, s.Name+".yaml"), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the policies of the trial: %w", err)
		}
	}
	return nil
}

func (m *trialMesh) list(ctx context.Context, server string) (listedServer, error) {
	return listURL(ctx, "http://"+m.mesh.MCP().String()+mcpPath(server), http.Header{"Authorization": {"Bearer " + m.token}})
}

// end stops the mesh. removeTrial removes its data later.
func (m *trialMesh) end() {
	m.stop()
	if m.mesh != nil {
		_ = m.mesh.Close() // an error does not matter, because the data is removed
	}
}

// trialDataIn returns the data directory of the trial mesh in the given directory.
func trialDataIn(dir string) string { return filepath.Join(dir, "data") }

// adoptPackages moves the packages that the trial mesh has installed to the data directory of the person's own mesh. A
// package that can't be moved is installed again when its server starts.
func (s *setup) adoptPackages() {
	if s.trialDir == "" {
		return
	}
	var names []string
	for _, server := range s.plan.New() {
		names = append(names, server.Name)
	}
	if err := gateway.AdoptPackages(s.paths.Data, trialDataIn(s.trialDir), names); err != nil {
		s.printf("Some packages are installed again, because they can't be moved: %v", err)
	}
}

// removeTrial removes the data of the trial mesh, if there was one.
func (s *setup) removeTrial() {
	if s.trialDir == "" {
		return
	}
	if err := datadir.RemoveAll(s.trialDir); err != nil {
		fmt.Fprintf(s.errOut, "sluice: remove the data of the trial: %v\n", err)
	}
}
