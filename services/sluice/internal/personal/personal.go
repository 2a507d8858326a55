// Package personal returns the paths of the configuration and the state of a mesh that belongs to one person.
package personal

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/sluice-mesh/sluice/services/internal/app"
)

// Paths contains the locations of a person's mesh.
type Paths struct {
	// Config is the path of the configuration file. Its directory also contains the policies.
	Config string
	// Data is the data directory, which contains state and tokens.
	Data string
}

// Find returns the locations for the user of this process. The files need not exist. On Linux, the locations follow the
// XDG Base Directory Specification: $XDG_CONFIG_HOME/sluice/sluice.yaml and $XDG_DATA_HOME/sluice.
func Find() (Paths, error) {
	config, err := os.UserConfigDir()
	if err != nil {
		return Paths{}, fmt.Errorf("find your configuration folder: %w", err)
	}
	data, err := dataDir()
	if err != nil {
		return Paths{}, err
	}
	return Paths{Config: filepath.Join(config, "sluice", "sluice.yaml"), Data: data}, nil
}

func dataDir() (string, error) {
	variable, fallback := "XDG_DATA_HOME", filepath.Join(".local", "share")
	switch runtime.GOOS {
	case "windows":
		variable, fallback = "LOCALAPPDATA", filepath.Join("AppData", "Local")
	case "darwin":
		variable, fallback = "", filepath.Join("Library", "Application Support")
	}
	base, _ := app.Env(variable)
	if !filepath.IsAbs(base) { // the XDG specification says to ignore a relative path
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find your data folder: %w", err)
		}
		base = filepath.Join(home, fallback)
	}
	if runtime.GOOS == "darwin" { // the configuration is in the same folder
		return filepath.Join(base, "sluice", "data"), nil
	}
	return filepath.Join(base, "sluice"), nil
}

// Policies returns the directory that contains the policies of the mesh.
func (p Paths) Policies() string { return filepath.Join(filepath.Dir(p.Config), "policies") }

// Token returns the path of the file that contains the token of a client, such as claude-code.
func (p Paths) Token(client string) string { return filepath.Join(p.Data, "tokens", "agents", client) }

// OperatorToken returns the path of the file that contains the operator's token.
func (p Paths) OperatorToken() string { return filepath.Join(p.Data, "tokens", "operator") }

var clientName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// CheckClient returns an error unless a string is a valid client name. Such a name has 1 to 32 lower-case letters,
// digits or hyphens, so it is also a safe file name.
func CheckClient(name string) error {
	if !clientName.MatchString(name) {
		return fmt.Errorf("%q is not the name of a client: use 1 to 32 lower-case letters, digits or hyphens, such as claude-code", name)
	}
	return nil
}
