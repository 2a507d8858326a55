// Package userservice installs a person's mesh as a service of that person: a systemd user unit on Linux, a LaunchAgent
// on macOS, and a task that starts at log-on on Windows. A system service could not access the person's keychain.
package userservice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// ErrForeign means that the file that defines the service was written or changed by another program or a person.
var ErrForeign = errors.New("was not written by this command, or was changed since")

// ErrNoManager means that this session has no service manager.
var ErrNoManager = errors.New("no manager of services")

// A Service is the service that runs a person's mesh.
type Service struct {
	// OS is the operating system, with a name as in [runtime.GOOS].
	OS string
	// Program, Config and Data are the absolute paths of the program, the configuration and the data directory.
	Program, Config, Data string
	// Home is the person's home directory, and User is the user name. UID is the numeric user ID, which does not exist on
	// Windows.
	Home, User, UID string
	// Getenv returns the value of an environment variable, as [os.Getenv] does.
	Getenv func(string) string
	// Run runs a system program and returns its output, like the function [Run].
	Run func(ctx context.Context, name string, args ...string) (string, error)
}

// A State is the state of the file that defines the service, such as a systemd unit. The comments call this file the
// definition.
type State int

// These are the states of the definition.
const (
	// Absent means that there is no definition.
	Absent State = iota
	// Current means that the definition is the one that Install would write.
	Current
	// Outdated means that Install has written the definition with other values, such as another PATH.
	Outdated
	// Foreign means that the definition was written or changed by another program or a person.
	Foreign
)

// Run runs a system program and returns its output. If the program fails, the error contains its output.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	raw, err := exec.CommandContext(ctx, name, args...).CombinedOutput() //nolint:gosec // the callers name a program of the system
	out := strings.TrimSpace(string(raw))
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return out, nil
}

// manager starts and stops services on one operating system.
type manager interface {
	// path returns the path of the file that defines the service.
	path() string
	// body returns the text that defines the service, in UTF-8 and without the last line, which contains a digest.
	body(env []variable) (string, error)
	// check returns an error if this session has no service manager.
	check(ctx context.Context) error
	// start makes the manager read the service's definition, and starts the service now and at each log-on. If changed
	// is true, the service may be running with an earlier definition.
	start(ctx context.Context, changed bool) error
	// stop stops the service, and prevents the manager from starting it again at log-on.
	stop(ctx context.Context) error
	// forget is called after the file that defines the service was removed.
	forget(ctx context.Context) error
	// active reports whether the service is running.
	active(ctx context.Context) bool
	// logCommand describes where to find the output of the service.
	logCommand() string
}

func (s *Service) manager() (manager, error) {
	switch s.OS {
	case "linux":
		return systemd{s}, nil
	case "darwin":
		return launchd{s}, nil
	case "windows":
		return scheduler{s}, nil
	default:
		return nil, fmt.Errorf("%w is known on %s: start `sluice up` at log-on by its own means", ErrNoManager, s.OS)
	}
}

// Path returns the path of the file that defines the service.
func (s *Service) Path() (string, error) {
	m, err := s.manager()
	if err != nil {
		return "", err
	}
	return m.path(), nil
}

// Installed reports whether a definition of the service exists, in any state. It returns false if this operating system
// is not supported.
func (s *Service) Installed() bool {
	path, err := s.Path()
	if err != nil {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// Definition returns the definition of the service that Install writes, but in UTF-8 on every system.
func (s *Service) Definition() (string, error) {
	m, err := s.manager()
	if err != nil {
		return "", err
	}
	for _, path := range []string{s.Program, s.Config, s.Data} {
		if strings.ContainsFunc(path, isControl) {
			return "", fmt.Errorf("the path %q has a control character, which a definition of a service can't have", path)
		}
	}
	env, err := s.environment()
	if err != nil {
		return "", err
	}
	body, err := m.body(env)
	if err != nil {
		return "", err
	}
	return body + s.mark(body), nil
}

// State returns the state of the definition in the file system.
func (s *Service) State() (State, error) {
	want, err := s.Definition()
	if err != nil {
		return Absent, err
	}
	return s.compare(want)
}

// written is like State, but does not need a valid environment. It never returns Current.
func (s *Service) written() (State, error) { return s.compare("") }

func (s *Service) compare(want string) (State, error) {
	path, err := s.Path()
	if err != nil {
		return Absent, err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Absent, nil
	}
	if err != nil {
		return Absent, fmt.Errorf("read the definition of the service: %w", err)
	}
	switch got := s.decode(raw); {
	case got == want:
		return Current, nil
	case s.isOurs(got):
		return Outdated, nil
	default:
		return Foreign, nil
	}
}

// Install writes the file that defines the service, and starts the service now and at each log-on. If the file has not
// changed, Install only starts the service.
func (s *Service) Install(ctx context.Context) error {
	m, err := s.manager()
	if err != nil {
		return err
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	state, err := s.State()
	if err != nil {
		return err
	}
	if state == Foreign {
		return fmt.Errorf("%s %w: remove it yourself if you don't need it", m.path(), ErrForeign)
	}
	if state != Current {
		text, err := s.Definition()
		if err != nil {
			return err
		}
		if err := s.write(m.path(), s.encode(text)); err != nil {
			return err
		}
	}
	return m.start(ctx, state != Current)
}

// write writes the definition. It creates the directory of the definition with the usual permissions.
func (s *Service) write(path string, raw []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = pki.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the definition of the service: %w", err)
	}
	return nil
}

// Remove stops the service and removes its definition. It returns an error if the state of the definition is Foreign.
// It returns false if the definition did not exist.
func (s *Service) Remove(ctx context.Context) (removed bool, err error) {
	m, err := s.manager()
	if err != nil {
		return false, err
	}
	state, err := s.written()
	switch {
	case err != nil || state == Absent:
		return false, err
	case state == Foreign:
		return false, fmt.Errorf("%s stays, because it %w", m.path(), ErrForeign)
	}
	if err := m.check(ctx); err != nil {
		return false, err
	}
	if err := m.stop(ctx); err != nil {
		return false, err
	}
	if err := os.Remove(m.path()); err != nil {
		return false, fmt.Errorf("remove the definition of the service: %w", err)
	}
	return true, m.forget(ctx)
}

// A Status describes the service.
type Status struct {
	State State
	// Active is true if the service is running according to the manager.
	Active bool
	// Manager is the reason why this session has no service manager, or nil if it has one.
	Manager error
	// Log describes where to find the output of the service.
	Log string
}

// Status returns the state of the service.
func (s *Service) Status(ctx context.Context) (Status, error) {
	m, err := s.manager()
	if err != nil {
		return Status{Manager: err}, nil //nolint:nilerr // the status contains the error
	}
	out := Status{Log: m.logCommand()}
	if out.State, err = s.State(); err != nil {
		return out, err
	}
	if out.Manager = m.check(ctx); out.Manager == nil && out.State != Absent {
		out.Active = m.active(ctx)
	}
	return out, nil
}

const markText = "written by `sluice service install`; sha256 of the lines above: "

// mark returns the last line of a definition. The line contains a digest, with which changes to the definition can be
// detected.
func (s *Service) mark(body string) string {
	sum := sha256.Sum256([]byte(body))
	if s.OS == "linux" {
		return "# " + markText + hex.EncodeToString(sum[:]) + "\n"
	}
	return "<!-- " + markText + hex.EncodeToString(sum[:]) + " -->\n"
}

// isOurs reports whether Install wrote this definition, and the definition has not been changed since.
func (s *Service) isOurs(text string) bool {
	last := strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n') + 1
	return last > 0 && text[last:] == s.mark(text[:last])
}

func (s *Service) encode(text string) []byte {
	if s.OS == "windows" {
		return encodeUTF16(text)
	}
	return []byte(text)
}

func (s *Service) decode(raw []byte) string {
	if s.OS == "windows" {
		return decodeUTF16(raw)
	}
	return string(bytes.ToValidUTF8(raw, []byte{'?'}))
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
