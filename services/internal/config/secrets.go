package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/secretcommand"
	"github.com/sluice-mesh/sluice/services/internal/vault"
)

// Secrets says where the references `${cmd:NAME}` and `${vault:MOUNT/PATH#FIELD}` find secrets.
type Secrets struct {
	// Commands are the programs for `${cmd:NAME}`, by name: 1 to 64 letters, digits, `_`, `.` or `-`.
	Commands map[string]SecretCommand `yaml:"commands"`
	// Vault is the server for `${vault:MOUNT/PATH#FIELD}`: HashiCorp Vault or OpenBao.
	Vault Vault `yaml:"vault"`
}

// SecretCommand is a program that prints a secret.
type SecretCommand struct {
	// Command is the program and its arguments. No shell interprets them. The program has the environment of the mesh. It
	// prints the secret, at most 64 KiB of text; newlines at the end are removed. Required.
	Command []string `yaml:"command"`
	// Timeout is how long the program may take: 1 s to 1 min.
	Timeout time.Duration `yaml:"timeout"`
}

// Vault describes a server and how to sign in there: with Token, AppRole or Kubernetes.
type Vault struct {
	// Address is the URL of the server: https, or http on loopback.
	Address string `yaml:"address"`
	// Namespace is the namespace of Vault Enterprise.
	Namespace string `yaml:"namespace"`
	// CA is a PEM file with the certificates to trust instead of those of the system.
	CA string `yaml:"ca"`
	// Token is a token of Vault. Set this, `approle` or `kubernetes`.
	Token Secret `yaml:"token"`
	// AppRole signs in with the auth method AppRole.
	AppRole *AppRole `yaml:"approle"`
	// Kubernetes signs in with the service account of the pod.
	Kubernetes *KubernetesAuth `yaml:"kubernetes"`
}

// AppRole contains the parameters of Vault's auth method AppRole.
type AppRole struct {
	// RoleID is the RoleID. Required.
	RoleID Secret `yaml:"role_id"`
	// SecretID is the SecretID. It may be absent if the role needs none.
	SecretID Secret `yaml:"secret_id"`
	// Mount is the path of the auth method.
	Mount string `yaml:"mount"`
}

// KubernetesAuth contains the parameters of Vault's auth method Kubernetes.
type KubernetesAuth struct {
	// Role is the role in Vault. Required.
	Role string `yaml:"role"`
	// TokenFile is the file with the token of the service account.
	TokenFile string `yaml:"token_file"`
	// Mount is the path of the auth method.
	Mount string `yaml:"mount"`
}

// secretCommandName matches the name of a command that prints a secret. mountName matches the path of an auth method.
var (
	secretCommandName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	mountName         = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
)

// check reports problems with the sources of secrets.
func (s Secrets) check(p *problems) {
	for _, name := range slices.Sorted(maps.Keys(s.Commands)) {
		at, c := "secrets.commands."+name, s.Commands[name]
		if !secretCommandName.MatchString(name) {
			p.addf(at, "%q is not a name of 1 to 64 letters, digits, _, . or -", name)
		}
		if len(c.Command) == 0 || c.Command[0] == "" {
			p.addf(at+".command", "is empty: write the program and its arguments as a list, such as [pass, show, github]")
		}
		for i, arg := range c.Command {
			p.refuseReference(fmt.Sprintf("%s.command[%d]", at, i), arg, ", and other users see arguments: the program can read the environment of the mesh instead")
		}
		p.checkBetween(at+".timeout", c.Timeout, time.Second, time.Minute)
	}
	s.Vault.check(p, "secrets.vault")
}

func (v Vault) check(p *problems, at string) {
	logins := 0
	for _, isSet := range []bool{v.Token != "", v.AppRole != nil, v.Kubernetes != nil} {
		if isSet {
			logins++
		}
	}
	u, err := url.Parse(v.Address)
	switch {
	case v.Address == "" && logins == 0 && v.CA == "" && v.Namespace == "":
		return
	case v.Address == "":
		p.addf(at+".address", "is missing: write the URL of the server")
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		p.addf(at+".address", "is not an https URL such as https://vault.example.com:8200; http is allowed only on loopback, because secrets could be read on the network")
	}
	if logins != 1 {
		p.addf(at, "set exactly one of token, approle and kubernetes")
	}
	if v.AppRole != nil {
		if v.AppRole.RoleID == "" {
			p.addf(at+".approle.role_id", "is missing")
		}
		p.checkMount(at+".approle.mount", v.AppRole.Mount)
	}
	if v.Kubernetes != nil {
		if v.Kubernetes.Role == "" {
			p.addf(at+".kubernetes.role", "is missing")
		}
		p.checkMount(at+".kubernetes.mount", v.Kubernetes.Mount)
	}
}

func (p *problems) checkMount(path, mount string) {
	if !mountName.MatchString(mount) {
		p.addf(path, "%q is not the path of an auth method: write 1 to 64 letters, digits, _ or -", mount)
	}
}

// setDefaults sets the defaults of commands and auth methods.
func (s *Secrets) setDefaults() {
	for name, c := range s.Commands {
		if c.Timeout == 0 {
			c.Timeout = 10 * time.Second
		}
		s.Commands[name] = c
	}
	if a := s.Vault.AppRole; a != nil && a.Mount == "" {
		a.Mount = "approle"
	}
	if k := s.Vault.Kubernetes; k != nil {
		if k.Mount == "" {
			k.Mount = "kubernetes"
		}
		if k.TokenFile == "" {
			k.TokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
		}
	}
}

// secretSources are the commands and the client of Vault for one configuration. All services in a process share them, so
// that each command runs once, and the mesh signs in at Vault once. Results are kept, also errors.
type secretSources struct {
	commands map[string]func() (string, error)
	vault    func() (*vault.Client, error)
}

// newSecretSources returns the sources of a configuration. It runs no command and opens no connection.
func newSecretSources(f *File, env Env) *secretSources {
	out := &secretSources{commands: make(map[string]func() (string, error)), vault: sync.OnceValues(func() (*vault.Client, error) { return f.newVaultClient(env) })}
	for name, c := range f.Secrets.Commands {
		command := secretcommand.Command{Args: c.Command, Dir: f.Path("."), Timeout: c.Timeout}
		out.commands[name] = sync.OnceValues(func() (string, error) {
			secret, err := secretcommand.Run(context.Background(), command)
			if err != nil {
				return "", fmt.Errorf("${cmd:%s}: the command of secrets.commands.%s has failed: %w", name, name, err)
			}
			return secret, nil
		})
	}
	return out
}

// commandSecret returns the secret that a command prints.
func (f *File) commandSecret(name string) (string, error) {
	if f.sources == nil || f.sources.commands[name] == nil {
		return "", fmt.Errorf("${cmd:%s}: there is no such command: add it to secrets.commands", name)
	}
	return f.sources.commands[name]()
}

// vaultSecret returns the value of a field of a secret in Vault.
func (f *File) vaultSecret(text string) (string, error) {
	ref, err := vault.ParseReference(text)
	if err != nil {
		return "", fmt.Errorf("${vault:%s}: %w", text, err)
	}
	if f.sources == nil || f.Secrets.Vault.Address == "" {
		return "", fmt.Errorf("${vault:%s}: the configuration names no server: set secrets.vault", text)
	}
	client, err := f.sources.vault()
	if err != nil {
		return "", fmt.Errorf("${vault:%s}: %w", text, err)
	}
	defer client.Close()
	value, err := client.Read(context.Background(), ref)
	if err != nil {
		return "", fmt.Errorf("${vault:%s}: %w", text, err)
	}
	return value, nil
}

// newVaultClient returns a client with the credentials of the configuration.
func (f *File) newVaultClient(env Env) (*vault.Client, error) {
	from, bad := f.Secrets.Vault, []error(nil)
	resolve := func(key string, s Secret) string {
		if strings.Contains(string(s), "${vault:") { // resolving it would wait for this function
			bad = append(bad, fmt.Errorf("secrets.vault.%s: it can't come from Vault itself: use ${env:NAME}, ${file:PATH} or ${cmd:NAME}", key))
			return ""
		}
		value, err := s.Resolve(f, env)
		if err != nil {
			bad = append(bad, fmt.Errorf("secrets.vault.%s: %w", key, err))
		}
		return value
	}
	out := vault.Config{Address: from.Address, Namespace: from.Namespace, Token: resolve("token", from.Token)}
	read := func(key, name string) []byte {
		raw, err := os.ReadFile(f.Path(name))
		if err != nil {
			bad = append(bad, fmt.Errorf("secrets.vault.%s: %w", key, err))
		}
		return raw
	}
	if from.CA != "" {
		out.CA = read("ca", from.CA)
	}
	if a := from.AppRole; a != nil {
		out.Login = vault.Login{Mount: a.Mount, Body: map[string]string{"role_id": resolve("approle.role_id", a.RoleID)}}
		if a.SecretID != "" {
			out.Login.Body["secret_id"] = resolve("approle.secret_id", a.SecretID)
		}
	}
	if k := from.Kubernetes; k != nil {
		token := strings.TrimSpace(string(read("kubernetes.token_file", k.TokenFile)))
		out.Login = vault.Login{Mount: k.Mount, Body: map[string]string{"role": k.Role, "jwt": token}}
	}
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	return vault.New(out)
}
