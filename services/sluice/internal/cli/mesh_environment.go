package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// meshVariables contains the environment variables that a mesh gets when a client starts it. The mesh also gets
// variables that begin with XDG_ or LC_. The values come from the stored environment or from the client (see
// meshEnvironment). The mesh gets no other variables, because they could contain this client's secrets.
var meshVariables = []string{
	"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "DBUS_SESSION_BUS_ADDRESS",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "USERPROFILE", "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES",
	"TEMP", "TMP", "PATHEXT", "COMSPEC",
}

// sessionVariables contains the variables that differ between the person's sessions. The mesh always inherits them from
// the client that starts it.
var sessionVariables = []string{"DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE"}

func isOfSession(name string) bool {
	return slices.Contains(sessionVariables, name) || strings.HasPrefix(name, "LC_")
}

func meshEnv(environ []string) []string {
	var out []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if slices.Contains(meshVariables, name) || strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "LC_") {
			out = append(out, pair)
		}
	}
	return out
}

func environmentPath(data string) string { return filepath.Join(data, "environment.json") }

// storeMeshEnvironment stores the variables with which clients will start the mesh, and the variables with which a hook
// finds the clients' files. Otherwise the first client to start the mesh could choose the programs, proxies and
// certificates for all clients' servers. Also, a project's settings could choose the files that the hook reads.
func storeMeshEnvironment(data string) error {
	env := slices.DeleteFunc(meshEnv(app.Environ()), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return isOfSession(name) || slices.Contains(clientconfig.Variables(), name)
	})
	for _, name := range clientconfig.Variables() {
		if value := getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	slices.Sort(env)
	raw, err := json.Marshal(env)
	if err != nil {
		return err
	}
	if err := pki.WriteFile(environmentPath(data), raw, 0o600); err != nil { // a proxy may have a password
		return fmt.Errorf("store the environment of your mesh: %w", err)
	}
	return nil
}

func removeMeshEnvironment(data string) error {
	err := os.Remove(environmentPath(data))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, clientsetup.RemoveTemporary(environmentPath(data))); err != nil {
		return fmt.Errorf("remove the environment of the mesh: %w", err)
	}
	return nil
}

// meshEnvironment returns the environment for a mesh. It consists of the stored variables, and of the session variables
// in environ. If no variables are stored, all variables come from environ.
func meshEnvironment(data string, environ []string) ([]string, error) {
	env := meshEnv(environ)
	stored, err := storedEnvironment(data)
	if errors.Is(err, fs.ErrNotExist) {
		return env, nil
	}
	if err != nil {
		return nil, err
	}
	env = slices.DeleteFunc(env, func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return !isOfSession(name)
	})
	return append(meshEnv(stored), env...), nil
}

func storedEnvironment(data string) (stored []string, err error) {
	raw, err := os.ReadFile(environmentPath(data))
	if err == nil {
		err = json.Unmarshal(raw, &stored)
	}
	if err != nil {
		return nil, fmt.Errorf("read the environment of your mesh: %w", err)
	}
	return stored, nil
}

// hookSystem returns the home directory and the variables with which a hook finds the clients' files. It uses the
// values that were stored for the hook's mesh, or the values of this process if none were stored.
func (t *tool) hookSystem() (clientconfig.System, error) {
	sys := clientconfig.System{OS: runtime.GOOS, Getenv: getenv}
	var stored []string
	if own, err := t.hookMesh(); err == nil {
		if stored, err = storedEnvironment(own.data); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return sys, err
		}
	}
	if stored != nil {
		sys.Getenv = func(name string) string {
			for _, pair := range stored {
				if value, ok := strings.CutPrefix(pair, name+"="); ok {
					return value
				}
			}
			return ""
		}
		sys.Home = sys.Getenv(map[bool]string{false: "HOME", true: "USERPROFILE"}[runtime.GOOS == "windows"])
	}
	if sys.Home == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return sys, fmt.Errorf("find the files of clients: %w", err)
		}
		sys.Home = home
	}
	return sys, nil
}

// refreshEnvironment stores the environment of this process for the next start of the mesh. It does nothing if the
// person has no mesh.
func (s *setup) refreshEnvironment() error {
	own, err := s.ownMesh()
	if err != nil {
		return nil //nolint:nilerr // there is no mesh yet
	}
	return storeMeshEnvironment(own.data)
}
