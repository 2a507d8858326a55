package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// programsFolder is the directory below the gateway's data directory that contains the servers' installed packages.
const programsFolder = "programs"

// programsRoot returns the path of the directory with the installed packages. It contains one directory for each
// server.
func (c *Config) programsRoot() string {
	return absolute(filepath.Join(c.Data, "gateway", programsFolder))
}

// installation describes how the gateway installs the package of a server that is started with npx. If the gateway does
// not install the package, in is nil, and why explains why the command installs the package at each start. why may be
// empty.
func (s *Server) installation(name, root string, env config.Env) (in *stdio.Install, why string) {
	if s.InstallEachStart {
		return nil, ""
	}
	command, why := npx.Parse(s.Command)
	if command == nil {
		return nil, why
	}
	cfg := stdio.Config{Command: s.Command, Env: s.Env, Path: lookUp(env, "PATH"), Home: lookUp(env, "HOME"), Dir: s.Dir}
	path, vars, err := cfg.Program()
	if err != nil || s.isInstalled(command, path) {
		return nil, "" // MissingPrograms reports a missing program
	}
	in = &stdio.Install{Command: *command, Folder: npx.Folder(filepath.Join(root, name)), NPM: npmPath(path, vars["PATH"]), ScriptsApart: s.Sandbox.NoNetwork}
	in.Env, _ = s.npmEnvironment(env)
	in.Digest = digestOf(in, vars["PATH"])
	return in, ""
}

// isInstalled reports whether npx runs a program that is already installed, either globally or in the project that
// contains the server's working directory.
func (s *Server) isInstalled(c *npx.Command, program string) bool {
	name := c.Name()
	if c.IsBare() && !strings.Contains(name, "/") && isFile(filepath.Join(filepath.Dir(program), name)) {
		return true
	}
	if s.Dir == "" || name == "" {
		return false
	}
	for dir := absolute(s.Dir); ; dir = filepath.Dir(dir) {
		for _, path := range []string{filepath.Join(name, "package.json"), filepath.Join(".bin", name)} {
			if isFile(filepath.Join(dir, "node_modules", path)) {
				return true
			}
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// npmPath returns the path of the npm program that belongs to the given npx program. This is the npm in the same
// directory or, if that directory has no npm, the first npm in PATH.
func npmPath(program, path string) string {
	sibling := filepath.Join(filepath.Dir(program), "npm")
	if isFile(sibling) {
		return sibling
	}
	for _, dir := range filepath.SplitList(path) {
		if file := filepath.Join(dir, "npm"); filepath.IsAbs(dir) && isFile(file) {
			return file
		}
	}
	return sibling // if npm is missing, starting the server fails with an error
}

// proxies contains the lower-case names of the variables that configure npm's proxies and certificates.
var proxies = []string{"http_proxy", "https_proxy", "all_proxy", "proxy", "no_proxy", "noproxy", "node_extra_ca_certs", "ssl_cert_file", "ssl_cert_dir"}

// npmEnvironment returns the variables in a server's environment that configure npm and are not secret. It also returns
// the names of the secret variables, which it omits because install scripts can read all variables. A proxy URL without
// credentials is not secret, even if a reference to a secret provides the URL.
func (s *Server) npmEnvironment(env config.Env) (vars map[string]string, secret []string) {
	vars = make(map[string]string)
	if file := filepath.Join(lookUp(env, "HOME"), ".npmrc"); filepath.IsAbs(file) && isFile(file) {
		vars["npm_config_userconfig"] = file
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		lower := strings.ToLower(name)
		isProxy := slices.Contains(proxies, lower)
		if !isProxy && !strings.HasPrefix(lower, "npm_config_") {
			continue
		}
		// A value from the keychain is always treated as secret, because the value may not have been read yet.
		if slices.Contains(s.KeychainEnv, name) || slices.Contains(s.SecretEnv, name) && (!isProxy || strings.ContainsAny(s.Env[name], "@?")) {
			secret = append(secret, name)
			continue
		}
		if lower == "npm_config_userconfig" {
			delete(vars, lower)
		}
		vars[name] = s.Env[name]
	}
	return vars, secret
}

// digestOf returns a digest of everything on which an installation depends. This is the package and its program, npm
// and Node, npm's configuration, the operating system and the architecture. For a local tarball, the digest covers the
// tarball's size and modification time.
func digestOf(in *stdio.Install, path string) string {
	texts := []string{runtime.GOOS, runtime.GOARCH, in.Command.Package, in.Command.Program, in.NPM, fmt.Sprint(in.ScriptsApart)}
	for _, name := range slices.Sorted(maps.Keys(in.Env)) {
		texts = append(texts, name+"="+in.Env[name])
	}
	state := func(info os.FileInfo) string {
		return fmt.Sprint(info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
	}
	for _, dir := range filepath.SplitList(path) {
		node := filepath.Join(dir, "node")
		if info, err := os.Stat(node); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() { // the package is built for this version of Node
			texts = append(texts, node, state(info))
			break
		}
	}
	if file := in.Command.File(); file != "" {
		if info, err := os.Stat(file); err == nil {
			texts = append(texts, file, state(info))
		}
	}
	sum := sha256.Sum256([]byte(canonicaljson.Strings(texts)))
	return hex.EncodeToString(sum[:16])
}

// installers returns a sandbox with network access for installing a package. If the server has no network access,
// installers also returns a sandbox without network access for the package's install scripts. Otherwise the second
// sandbox is nil, and the install scripts run in the first sandbox. Both sandboxes can write only to the installation's
// directory.
func (c *Config) installers(name string, launcher sandbox.Launcher, env config.Env) (installer, scripts *sandbox.Sandbox, err error) {
	rules := c.rules(name, env, nil)
	rules.Private = append(rules.Private, c.programsRoot())
	rules.ReadOnly, rules.Work = []string{"/"}, []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
	rules.Read, rules.Write, rules.NoNetwork = nil, nil, false
	if installer, err = sandbox.New(launcher, rules); err == nil && c.Servers[name].Sandbox.NoNetwork {
		rules.NoNetwork = true
		scripts, err = sandbox.New(launcher, rules)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("servers.%s.stdio.sandbox, for the installation of its package: %w", name, err)
	}
	return installer, scripts, nil
}

// InstallationNotes returns a sentence for each server whose package is installed in a way that might surprise an
// operator.
func (c *Config) InstallationNotes(env config.Env) (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Servers)) {
		server := c.Servers[name]
		in, why := server.installation(name, c.programsRoot(), env)
		installer := stdio.SelfInstaller(server.Command)
		switch {
		case why != "":
			notes = append(notes, fmt.Sprintf("servers.%s installs its package at each start, in %s: %s", name, server.packagePlace(), why))
		case installer != "" && installer != "npx" && installer != "npm":
			notes = append(notes, fmt.Sprintf("servers.%s is started with %s as it is: %s itself installs the package, in %s and with the server's variables; the gateway neither installs the package nor fixes its version",
				name, installer, installer, server.packagePlace()))
		}
		if _, secret := server.npmEnvironment(env); in != nil && len(secret) > 0 {
			notes = append(notes, fmt.Sprintf("servers.%s: the installation of %s does not get %s, because each refers to a secret: write it into ~/.npmrc of the gateway's user",
				name, in.Command.DisplayPackage(), strings.Join(secret, ", ")))
		}
	}
	return notes
}

// packagePlace returns a description of the directory in which a command installs its package.
func (s *Server) packagePlace() string {
	_, hasHome := s.Env["HOME"]
	switch {
	case hasHome:
		return "its HOME"
	case s.Dir != "":
		return "HOME of the gateway's user"
	case s.Shared:
		return "the server's folder"
	default:
		return "a folder of each caller's process"
	}
}

// sweepPrograms removes the installed packages that are not used by any configured server.
func (s *Service) sweepPrograms(ctx context.Context) {
	used := make(map[string]string)
	for name, server := range s.cfg.Servers {
		if in, _ := server.installation(name, s.cfg.programsRoot(), s.deps.Env); in != nil {
			used[name] = in.Digest
		}
	}
	if err := npx.Sweep(s.cfg.programsRoot(), used, time.Now()); err != nil {
		s.deps.Log.WarnContext(ctx, "packages that no server uses can't be removed", "folder", s.cfg.programsRoot(), "error", err)
	}
}

// AdoptPackages moves the packages that were installed for the given servers from one data directory to another. During
// the move, no gateway with one of these directories may run these servers or install their packages. The new gateway
// can use a package only if the server has the same command and environment there. If AdoptPackages returns an error,
// it may already have moved some packages.
func AdoptPackages(to, from string, servers []string) error {
	var errs []error
	for _, name := range servers {
		source := npx.Folder(filepath.Join((&Config{Data: from}).programsRoot(), name))
		errs = append(errs, npx.Folder(filepath.Join((&Config{Data: to}).programsRoot(), name)).Adopt(source))
	}
	return errors.Join(errs...)
}
