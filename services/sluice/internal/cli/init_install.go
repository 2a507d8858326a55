package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// install makes clients reach their servers through the mesh. It asks the person before it starts servers, and again
// before it writes files.
func (s *setup) install(ctx context.Context) error {
	if err := checkProgram(s.programPath()); err != nil {
		return err
	}
	if err := s.makePlan(); err != nil {
		return err
	}
	if err := s.state.RemoveLeftovers(ctx); err != nil {
		return err
	}
	if err := s.checkMesh(); err != nil {
		return err
	}
	s.printPlan()
	if err := s.planObserve(); err != nil {
		return err
	}
	if len(s.plan.Wraps) == 0 && !s.observesMore() {
		s.printf("Nothing to do.")
		s.printObserved()
		return s.refreshEnvironment()
	}
	defer s.removeTrial()
	if err := s.tryNew(ctx); err != nil {
		return err
	}
	if err := s.openSecrets(ctx); err != nil {
		return err
	}
	printed := len(s.plan.Left)
	s.changes = s.plan.Changes(s.entryCommand)
	s.printLeft(s.plan.Left[printed:])
	if len(s.changes) == 0 && !s.observesMore() {
		s.printf("Nothing to do: these servers can't be put behind the mesh, for the reasons above.")
		if s.plan.Wrapped == 0 {
			return errSilent
		}
		return nil
	}
	files, err := s.meshFiles()
	if err != nil {
		return err
	}
	s.printChanges(files)
	if err := s.confirm(ctx, s.flags.yes, "Write these changes?"); err != nil {
		return errors.New("nothing was changed")
	}
	if err := s.write(ctx, files); err != nil {
		return err
	}
	s.printObserved()
	return nil
}

// checkProgram returns an error if the program is in a directory that will be removed later. The clients' entries
// contain the program's path, so the path must stay valid.
func checkProgram(path string) error {
	for _, dir := range []string{"_npx", "go-build"} {
		if slices.ContainsFunc(strings.Split(filepath.ToSlash(path), "/"), func(name string) bool { return strings.HasPrefix(name, dir) }) {
			return fmt.Errorf("this program is in a cache (%s), which is removed at times, but the clients will start it there: install the program, and run init again", path)
		}
	}
	return nil
}

// makePlan finds the clients' entries and the servers that are already in the mesh.
func (s *setup) makePlan() (err error) {
	if s.state, err = clientsetup.LoadState(s.paths.Data); err != nil {
		return err
	}
	var existing []clientsetup.Server
	if _, err := os.Stat(s.paths.Config); err == nil {
		f, err := config.Load(s.paths.Config, app.Env)
		if err != nil {
			return fmt.Errorf("your mesh's configuration does not load: %w", err)
		}
		existing = clientsetup.Existing(f, app.Env)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read your mesh's configuration: %w", err)
	}
	v := clientsetup.Environment{Home: s.system.Home, Getenv: s.system.Getenv}
	s.plan = clientsetup.NewPlan(v, s.scan(s.flags.project), existing)
	s.leaveInvalid()
	return nil
}

// tryNew tries the servers that are not in the mesh yet, if the person agrees. If a server behaves differently through
// the mesh, tryNew removes its entries from the plan.
func (s *setup) tryNew(ctx context.Context) error {
	left := len(s.plan.Left)
	s.askForVariables(ctx)
	s.printLeft(s.plan.Left[left:])
	servers := s.plan.New()
	if len(servers) == 0 {
		return nil
	}
	if err := s.confirm(ctx, s.flags.yes, startQuestion(servers, "directly and behind a mesh, as the clients do")); err != nil {
		return errors.New("nothing was started or changed")
	}
	s.printf("Trying %d server(s). The first start of a server may install its package, once as the client does and once behind the mesh.", len(servers))
	var err error
	s.trials, err = s.tryServers(ctx, servers, s.printTrial)
	if ctx.Err() != nil {
		s.printf("Stopped: nothing was changed.")
		return errSilent
	}
	if err != nil {
		return err
	}
	for _, t := range s.trials {
		if t.reason != "" {
			s.plan.Leave(t.server, t.reason)
		}
	}
	return nil
}

// entryCommand returns the command in an entry for a server behind the mesh. In a file that is shared in a repository,
// the command contains no path of this machine.
func (s *setup) entryCommand(f clientconfig.File, server string) (command string, args []string) {
	r := clientconfig.Relay{Server: server, As: f.Client.ID}
	if f.Scope != clientconfig.Project {
		r.Config = s.paths.Config
	}
	return s.entryProgram(f), r.Args()
}

func (s *setup) entryProgram(f clientconfig.File) string {
	if f.Scope == clientconfig.Project {
		return sharedName
	}
	return s.programPath()
}

// A meshFile is a file of the mesh that `init` writes.
type meshFile struct {
	path   string
	before []byte
	after  []byte
}

// meshFiles returns the configuration and the policies that `init` writes. These files contain no secrets.
func (s *setup) meshFiles() ([]meshFile, error) {
	var out []meshFile
	for _, t := range s.trials {
		if t.reason != "" {
			continue
		}
		path := filepath.Join(s.paths.Policies(), t.server+".yaml")
		if _, err := os.Stat(path); err == nil {
			continue // do not overwrite a policy that already exists
		}
		text, err := policy.Suggest(t.server, t.tools, nil)
		if err != nil {
			return nil, fmt.Errorf("write a policy for %s: %w", t.server, err)
		}
		if text, err = clientsetup.WithMethods(text, t.direct.capabilities); err != nil {
			return nil, fmt.Errorf("write a policy for %s: %w", t.server, err)
		}
		for _, f := range policy.Lint([]*policyv1.Document{{Path: path, Text: string(text)}}) {
			if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
				return nil, fmt.Errorf("write a policy for %s: %s", t.server, f.GetMessage())
			}
		}
		out = append(out, meshFile{path: path, after: text})
	}
	before, err := os.ReadFile(s.paths.Config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read your mesh's configuration: %w", err)
	}
	if s.meshEdit, err = s.meshConfig().Change(before); err != nil {
		return nil, fmt.Errorf("%s: %w", s.paths.Config, err)
	}
	return append(out, meshFile{s.paths.Config, before, s.meshEdit.After}), nil
}

// meshConfig returns the additions to the mesh's configuration.
func (s *setup) meshConfig() clientsetup.MeshFile {
	m := clientsetup.MeshFile{
		Data: s.paths.Data, User: userName(), Operator: s.paths.OperatorToken(), Tokens: make(map[string]string),
		Servers: s.plan.New(), References: make(map[clientsetup.SecretKey]string),
	}
	for _, c := range s.plan.Clients() {
		m.Tokens[c.ID] = s.paths.Token(c.ID)
	}
	for _, server := range m.Servers {
		for _, v := range server.Secrets() {
			m.References[clientsetup.SecretKey{Server: server.Name, Setting: v.Name}] = s.secrets.Reference(server.Name, v.Name, v.Value)
		}
	}
	m.Until, m.Observe = s.observed.until, s.observed.enforced
	return m
}

// userName returns the name of the user for use in tokens and records.
func userName() string {
	u, err := user.Current()
	if err != nil || u.Username == "" {
		return "me"
	}
	name := u.Username
	if at := strings.LastIndexByte(name, '\\'); at >= 0 { // DOMAIN\name on Windows
		name = name[at+1:]
	}
	return name
}

// openSecrets opens the store of secrets. It uses the same kind of store as earlier runs.
func (s *setup) openSecrets(ctx context.Context) (err error) {
	if s.state.Store != "" {
		s.secrets, err = secretstore.OpenKind(s.paths.Data, s.state.Store)
	} else {
		s.secrets, err = secretstore.Open(ctx, s.paths.Data, slog.New(slog.DiscardHandler))
	}
	return err
}

// sealKey is the name of the key that encrypts the original entries in clients' files.
const sealKey = "init"

// write writes all files, with the clients' files last, and then tries each entry.
func (s *setup) write(ctx context.Context, files []meshFile) error {
	if err := s.checkUnchanged(files); err != nil {
		return err
	}
	s.state.Store, s.state.Elsewhere = s.secrets.Kind(), false
	if err := s.state.Begin(); err != nil {
		return err
	}
	key, err := s.secrets.Key(ctx, sealKey)
	if err != nil {
		return fmt.Errorf("create the key for the old entries: %w", err)
	}
	if err := s.writeSecrets(ctx); err != nil {
		return err
	}
	for _, path := range append(s.tokenFiles(), s.paths.OperatorToken()) {
		if _, err := ensureToken(path); err != nil {
			return fmt.Errorf("create a token: %w", err)
		}
	}
	if err := s.state.RecordMesh(key, s.paths.Config, s.meshEdit); err != nil {
		return err
	}
	for _, f := range files {
		if err := s.state.Create(f.path, f.after); err != nil {
			return err
		}
	}
	s.adoptPackages()
	if err := s.restartMesh(ctx); err != nil {
		return fmt.Errorf("%w\nThe clients' files were not changed. %s removes what was written", err, s.command("init --undo"))
	}
	if len(s.changes) == 0 { // only the mesh has changed
		return nil
	}
	var failed []error
	for _, c := range s.changes {
		if err := c.Write(ctx, s.state, key); err != nil {
			failed = append(failed, err)
			s.printf("%s was not changed: %v", s.shownPath(c.File.Path), err)
			continue
		}
		s.printf("Wrote %s.", s.shownPath(c.File.Path))
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d files of clients were not changed: close the clients and run the command again", len(failed), len(s.changes))
	}
	return s.prove(ctx)
}

// checkUnchanged returns an error if a mesh file has changed since `init` read it. A person may have changed the file
// while `init` waited for an answer.
func (s *setup) checkUnchanged(files []meshFile) error {
	for _, f := range files {
		now, err := os.ReadFile(f.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read a file of your mesh: %w", err)
		}
		if !bytes.Equal(now, f.before) {
			return fmt.Errorf("%s was changed meanwhile, so nothing was written: run the command again", s.shownPath(f.path))
		}
	}
	return nil
}

func (s *setup) tokenFiles() []string {
	var out []string
	for _, c := range s.plan.Clients() {
		out = append(out, s.paths.Token(c.ID))
	}
	return out
}

// writeSecrets stores the secrets of new servers. It records the reference to each secret before it stores the secret.
func (s *setup) writeSecrets(ctx context.Context) error {
	for _, server := range s.plan.New() {
		for _, v := range server.Secrets() {
			s.state.Secrets = append(s.state.Secrets, s.secrets.Reference(server.Name, v.Name, v.Value))
			if err := s.state.Save(); err != nil {
				return err
			}
			if _, err := s.secrets.Put(ctx, server.Name, v.Name, v.Value); err != nil {
				return fmt.Errorf("store %s of %s: %w", v.Name, server.Name, err)
			}
		}
	}
	return nil
}
