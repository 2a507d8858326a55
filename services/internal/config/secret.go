package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/keychain"
)

// referencePattern matches references such as `${env:NAME}` anywhere in a value. It also matches a string that only begins like a reference, so that the string is refused. If such a string
// were used verbatim, a typo would result in a secret that is easy to guess.
var referencePattern = regexp.MustCompile(`\$\{(?:([^}:]*):([^}]*)\}|)`)

// Secret is a value that may contain references and must not be shown. Only the service that needs the secret resolves
// the references.
type Secret string

// hiddenText replaces a secret in output.
const hiddenText = "[hidden]"

// String returns "[hidden]", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hiddenText
}

// GoString returns the same string as String.
func (s Secret) GoString() string { return s.String() }

// LogValue implements [slog.LogValuer]. It hides the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret in JSON and other encodings.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Env looks up environment variables. Only package app reads the environment of the process.
type Env func(name string) (string, bool)

// Keychain returns the value of a keychain entry.
type Keychain func(entry string) (string, error)

// Resolve is like [Secret.ResolveWith] for values that may not refer to the keychain.
func (s Secret) Resolve(f *File, env Env) (string, error) { return s.ResolveWith(f, env, nil) }

// ResolveWith returns the secret with its references replaced:
//
//   - `${env:NAME}`: the value of the environment variable
//   - `${file:PATH}`: the content of the file without trailing newlines
//   - `${cmd:NAME}`: the output of the command in [Secrets.Commands], which runs once for each configuration
//   - `${vault:MOUNT/PATH#FIELD}`: the field of the secret in [Secrets.Vault], which is read once for each configuration
//   - `${keychain:SERVER/NAME}`: the result of keychain; an error if keychain is nil
//   - `${plain:NAME}`: the value of an environment variable that is not secret
//
// ResolveWith may take a minute for each command, and half a minute for each secret in Vault. The error names every
// reference that can't be replaced.
func (s Secret) ResolveWith(f *File, env Env, keychain Keychain) (string, error) {
	return s.replace(func(kind, name string) (string, error) { return resolveReference(f, env, keychain, kind, name) })
}

// ResolveLocal is like [Secret.Resolve] but runs no command and calls no server. References that need one are errors.
func (s Secret) ResolveLocal(f *File, env Env) (string, error) {
	return s.replace(func(kind, name string) (string, error) {
		if kind == "cmd" || kind == "vault" {
			return "", fmt.Errorf("${%s:%s} is resolved only when the mesh starts", kind, name)
		}
		return resolveReference(f, env, nil, kind, name)
	})
}

// replace returns the secret with each reference replaced by the result of resolve.
func (s Secret) replace(resolve func(kind, name string) (string, error)) (string, error) {
	var broken []error
	out := referencePattern.ReplaceAllStringFunc(string(s), func(ref string) string {
		parts := referencePattern.FindStringSubmatch(ref)
		value, err := resolve(parts[1], parts[2])
		if err != nil {
			broken = append(broken, err)
		}
		return value
	})
	if len(broken) > 0 {
		return "", errors.Join(broken...)
	}
	return out, nil
}

// References returns the references to secrets in the value, each as a Secret. The rest of the value is not secret, and
// neither are the values of `${plain:NAME}`.
func (s Secret) References() []Secret {
	var refs []Secret
	for _, ref := range referencePattern.FindAllStringSubmatch(string(s), -1) {
		if ref[1] != "plain" {
			refs = append(refs, Secret(ref[0]))
		}
	}
	return refs
}

// KeychainEntries returns the entries of the keychain to which the value refers.
func (s Secret) KeychainEntries() []string {
	var entries []string
	for _, ref := range referencePattern.FindAllStringSubmatch(string(s), -1) {
		if ref[1] == "keychain" {
			entries = append(entries, ref[2])
		}
	}
	return entries
}

func resolveReference(f *File, env Env, fromKeychain Keychain, kind, name string) (string, error) {
	switch kind {
	case "env", "plain":
		value, ok := env(name)
		if !ok || value == "" {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, nil
	case "file":
		raw, err := os.ReadFile(f.Path(name))
		if err != nil {
			return "", fmt.Errorf("read the secret: %w", err)
		}
		value := strings.TrimRight(string(raw), "\r\n")
		if value == "" {
			return "", fmt.Errorf("the file %s is empty", f.Path(name))
		}
		return value, nil
	case "cmd":
		return f.commandSecret(name)
	case "vault":
		return f.vaultSecret(name)
	case "keychain":
		if err := keychain.CheckName(name); err != nil {
			return "", err
		}
		if fromKeychain == nil {
			return "", fmt.Errorf("${keychain:%s} can be used only in env, headers and proxy of servers: write ${file:PATH} here", name)
		}
		return fromKeychain(name)
	default:
		return "", errors.New("it begins like a reference but is not one: write ${env:NAME}, ${file:PATH}, ${cmd:NAME}, ${vault:MOUNT/PATH#FIELD}, ${keychain:SERVER/NAME} or, for a value that is not a secret, ${plain:NAME}")
	}
}
