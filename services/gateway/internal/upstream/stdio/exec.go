package stdio

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// prepare returns the command for a host's process, and creates the process's directory.
func (s *transport) prepare(h *host, used *usedProgram) (c sandbox.Command, err error) {
	c.Args = s.cfg.Command
	if c.Dir, err = s.cfg.folder(h.key); err != nil {
		return c, err
	}
	if s.cfg.Dir == "" && isAgent(h.key) {
		if err := touchMark(c.Dir, h.folderUser(), time.Now()); err != nil {
			return c, fmt.Errorf("mark its private folder: %w", err)
		}
	}
	c.Own = c.Dir
	if err := removeFiles(c.Dir, s.cfg.Remove); err != nil {
		return c, err
	}
	if s.cfg.Dir == "" {
		if err := linkHome(c.Dir, s.cfg.Home, s.cfg.HomeEntries); err != nil {
			return c, fmt.Errorf("link files of HOME (sandbox.home): %w", err)
		}
	}
	env, name := s.cfg.environment(c.Dir), s.cfg.Command[0]
	if used != nil {
		// The directory with the package's programs is first in PATH, as with npx. The package therefore finds the programs
		// of its dependencies.
		env["PATH"] = used.Bin() + string(filepath.ListSeparator) + env["PATH"]
		name, c.Read = used.Program, used.Dir
		c.Args = append([]string{name}, s.cfg.Install.Command.Args...)
	}
	if c.Path, err = findProgram(name, env["PATH"]); err != nil {
		return c, err
	}
	c.Env = make([]string, 0, len(env)) // with a nil Env, the process would inherit the gateway's environment
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, name+"="+env[name])
	}
	return c, nil
}

// Missing returns an error if the program or the working directory does not exist on this machine. In this case, no
// process can be started.
func (c *Config) Missing() error {
	if c.Dir != "" {
		if _, err := c.folder(principal.Key{}); err != nil {
			return err
		}
	}
	if c.Install != nil {
		return executable(c.Install.NPM)
	}
	_, err := findProgram(c.Command[0], c.environment(c.Dir)["PATH"])
	return err
}

// Program returns the path of the program and the environment of its processes. HOME is unset if each process has its
// own directory.
func (c *Config) Program() (path string, env map[string]string, err error) {
	env = c.environment(c.Dir)
	path, err = findProgram(c.Command[0], env["PATH"])
	return path, env, err
}

// existingFolders removes absolute directories that do not exist from a PATH. Otherwise, a process could create such a
// directory with programs that take precedence over the intended programs.
func existingFolders(path string) string {
	return strings.Join(slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool {
		info, err := os.Stat(dir)
		return filepath.IsAbs(dir) && (err != nil || !info.IsDir())
	}), string(filepath.ListSeparator))
}

// folder returns the working directory for a principal's process. It creates the directory if the directory is private.
func (c *Config) folder(key principal.Key) (string, error) {
	if c.Dir != "" {
		info, err := os.Stat(c.Dir)
		if err != nil {
			return "", fmt.Errorf("enter its folder: %w", err)
		}
		if !info.IsDir() {
			return "", fmt.Errorf("enter its folder: %s is not a folder", c.Dir)
		}
		return c.Dir, nil
	}
	name := "shared"
	if !c.Shared {
		name = folderName(key)
	}
	dir := filepath.Join(c.WorkRoot, c.Name, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make its private folder: %w", err)
	}
	return dir, nil
}

// inFolder reports whether name is a clean relative path to an entry inside a directory.
func inFolder(name string) bool {
	return filepath.IsLocal(name) && filepath.Clean(name) == name && name != "."
}

// removeFiles removes the given files if they exist. If a name refers to a link or a directory, removeFiles returns an
// error, because a process controls the directory.
func removeFiles(dir string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("enter its private folder: %w", err)
	}
	defer func() { _ = root.Close() }() // root was not used to write files
	for _, name := range names {
		info, err := root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && !info.Mode().IsRegular():
			err = errors.New("it is not a regular file")
		case err == nil:
			err = root.Remove(name)
		}
		if err != nil {
			return fmt.Errorf("remove %q from its private folder: %w", name, err)
		}
	}
	return nil
}

// folderName returns the name of a principal's private directory. The name is a hash of the tenant's length, the tenant
// and the subject. Without the length, two principals could have the same name, such as the tenant "ab" with the
// subject "c", and the tenant "a" with the subject "bc".
func folderName(key principal.Key) string {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(key.Tenant)) + ":" + key.Tenant + key.Subject))
	return hex.EncodeToString(sum[:16])
}

// environment returns the environment for a process in the given directory.
func (c *Config) environment(dir string) map[string]string {
	env := map[string]string{"PATH": c.Path, "HOME": c.Home}
	if c.Dir == "" {
		env["HOME"] = dir
	}
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" })
	maps.Copy(env, c.Env)
	return env
}

// findProgram returns the path of a program. If name is absolute, the path is name itself. Otherwise, it is the first
// executable file with this name in a directory of path, which has the format of PATH. Relative directories are
// skipped.
func findProgram(name, path string) (string, error) {
	if filepath.IsAbs(name) {
		return name, executable(name)
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if filepath.IsAbs(dir) && executable(file) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("find the program %q: it is in no folder of PATH=%s: %w", name, strconv.Quote(path), fs.ErrNotExist)
}

func executable(file string) error {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return fmt.Errorf("find the program: %w", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("find the program: %s can't be executed: %w", file, fs.ErrPermission)
	default:
		return nil
	}
}
