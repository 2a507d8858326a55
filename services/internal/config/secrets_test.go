package config_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// load parses a configuration with the given value of the key `secrets`.
func withSecrets(t *testing.T, secrets string) *config.File {
	t.Helper()
	f, err := config.Load(write(t, "secrets: "+secrets+"\n"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A command runs once for a configuration, also if several secrets refer to it, and in the folder of the file.
func TestSecret_ResolvesCommands(t *testing.T) {
	t.Parallel()
	f := withSecrets(t, `{commands: {token: {command: [sh, -c, "echo run >>runs; echo '${x}'"]}, broken: {command: [sh, -c, "echo run >>runs; echo locked >&2; exit 1"]}}}`)
	for range 2 {
		if got, err := config.Secret("Bearer ${cmd:token}").Resolve(f, noEnv); err != nil || got != "Bearer ${x}" { // references in the output are not replaced
			t.Errorf("%q, %v", got, err)
		}
		if got, err := config.Secret("${cmd:broken}").Resolve(f, noEnv); got != "" || err == nil || !strings.Contains(err.Error(), "secrets.commands.broken has failed: exit status 1: locked") {
			t.Errorf("%q, %v", got, err)
		}
	}
	if runs, err := os.ReadFile(f.Path("runs")); err != nil || string(runs) != "run\nrun\n" {
		t.Errorf("the commands have run: %q, %v", runs, err)
	}
	if got := len(config.Secret("${cmd:token}${plain:X}").References()); got != 1 {
		t.Errorf("%d references are secret", got)
	}
}

// The file changes. A command runs again only if `secrets` has changed.
func TestSecret_CommandsRunAgainOnlyAfterAChangeOfSecrets(t *testing.T) {
	t.Parallel()
	const secrets = `{commands: {token: {command: [sh, -c, "echo run >>runs; echo x"]}}}`
	f := withSecrets(t, secrets)
	reload := f.Reloader(nil, noEnv)
	for _, c := range []struct {
		text string
		runs string
	}{
		{"secrets: " + secrets + "\n", "run\n"},
		{"secrets: " + secrets + "\ngroups: {ops: [ana]}\n", "run\n"},
		{"secrets: {commands: {token: {command: [sh, -c, \"echo other >>runs; echo x\"]}}}\n", "run\nother\n"},
	} {
		if err := os.WriteFile(f.Name(), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, file := range []func() (*config.File, error){func() (*config.File, error) { return f, nil }, reload} {
			now, err := file()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := config.Secret("${cmd:token}").Resolve(now, noEnv); err != nil || got != "x" {
				t.Errorf("%q, %v", got, err)
			}
		}
		if runs, err := os.ReadFile(f.Path("runs")); err != nil || string(runs) != c.runs {
			t.Errorf("after %q, the commands have run: %q, %v", c.text, runs, err)
		}
	}
}

// A program that only reads the configuration runs no commands and calls no server.
func TestSecret_ResolveLocalRunsNothing(t *testing.T) {
	t.Parallel()
	f := withSecrets(t, `{commands: {token: {command: [sh, -c, "echo run >>runs; echo x"]}}, vault: {address: "https://127.0.0.1:1", token: x}}`)
	for _, secret := range []config.Secret{"${cmd:token}", "${vault:kv/a#b}"} {
		if got, err := secret.ResolveLocal(f, noEnv); got != "" || err == nil || !strings.Contains(err.Error(), "only when the mesh starts") {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := os.Stat(f.Path("runs")); err == nil {
		t.Error("the command has run")
	}
	if got, err := config.Secret("a${env:A}").ResolveLocal(f, env(map[string]string{"A": "b"})); err != nil || got != "ab" {
		t.Errorf("%q, %v", got, err)
	}
}

// The mesh signs in at Vault once, with credentials from other references, and reads each secret once.
func TestSecret_ResolvesVault(t *testing.T) {
	t.Parallel()
	var logins, reads atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/auth/approle/login":
			logins.Add(1)
			fmt.Fprint(w, `{"auth":{"client_token":"hvs.x"}}`)
		case "/v1/kv/data/team/github":
			if reads.Add(1); r.Header.Get("X-Vault-Token") == "hvs.x" {
				fmt.Fprint(w, `{"data":{"data":{"token":"ghp_x","user":"bot"},"metadata":{}}}`)
			}
		}
	}))
	defer server.Close()
	f := withSecrets(t, fmt.Sprintf(`{commands: {id: {command: [echo, secret-id]}}, vault: {address: %q, approle: {role_id: role, secret_id: "${cmd:id}"}}}`, server.URL))
	for range 2 {
		if got, err := config.Secret("${vault:kv/team/github#user}:${vault:kv/team/github#token}").Resolve(f, noEnv); err != nil || got != "bot:ghp_x" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if logins.Load() != 1 || reads.Load() != 1 {
		t.Errorf("there were %d logins and %d reads", logins.Load(), reads.Load())
	}
	circular := withSecrets(t, fmt.Sprintf(`{vault: {address: %q, token: "${vault:kv/team/github#token}"}}`, server.URL))
	if got, err := config.Secret("${vault:kv/team/github#token}").Resolve(circular, noEnv); got != "" || err == nil || !strings.Contains(err.Error(), "secrets.vault.token: it can't come from Vault itself") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSecrets_ProblemsNameTheKey(t *testing.T) {
	t.Parallel()
	for secrets, want := range map[string]string{
		`{commands: {"a b": {command: [x]}}}`:                                                       `"a b" is not a name`,
		`{commands: {a: {}}}`:                                                                       "secrets.commands.a.command: is empty",
		`{commands: {a: {command: [""]}}}`:                                                          "secrets.commands.a.command: is empty",
		`{commands: {a: {command: [x, "${env:A}"]}}}`:                                               "${env:A} is not resolved here",
		`{commands: {a: {command: [x], timeout: 500ms}}}`:                                           "is not between 1s and 1m0s",
		`{commands: {a: {command: [x], timeout: 2m}}}`:                                              "is not between 1s and 1m0s",
		`{vault: {token: x}}`:                                                                       "secrets.vault.address: is missing",
		`{vault: {address: "http://vault.example.com", token: x}}`:                                  "is not an https URL",
		`{vault: {address: "https://a:b@vault.example.com", token: x}}`:                             "is not an https URL",
		`{vault: {address: "https://vault.example.com"}}`:                                           "exactly one of token, approle and kubernetes",
		`{vault: {address: "https://vault.example.com", token: x, approle: {role_id: y}}}`:          "exactly one of token, approle and kubernetes",
		`{vault: {address: "https://vault.example.com", approle: {}}}`:                              "secrets.vault.approle.role_id: is missing",
		`{vault: {address: "https://vault.example.com", approle: {role_id: x, mount: "a/../b"}}}`:   "is not the path of an auth method",
		`{vault: {address: "https://vault.example.com", kubernetes: {}}}`:                           "secrets.vault.kubernetes.role: is missing",
		`{vault: {address: "https://vault.example.com", kubernetes: {role: x, token_file: "y z"}}}`: "",
	} {
		_, err := config.Load(write(t, "secrets: "+secrets+"\n"), noEnv)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", secrets, err, want)
		}
	}
}

// A pod's token is a secret file. A missing file is an error that names the key.
func TestSecrets_KubernetesTokenFile(t *testing.T) {
	t.Parallel()
	f := withSecrets(t, `{vault: {address: "https://vault.example.com", kubernetes: {role: x, token_file: pod-token}}}`)
	want := filepath.Join(filepath.Dir(f.Path("x")), "pod-token")
	found := false
	for _, path := range f.SecretPaths() {
		found = found || path == want
	}
	if !found {
		t.Errorf("%v do not contain %s", f.SecretPaths(), want)
	}
	if _, err := config.Secret("${vault:kv/a#b}").Resolve(f, noEnv); err == nil || !strings.Contains(err.Error(), "secrets.vault.kubernetes.token_file: ") {
		t.Errorf("%v", err)
	}
}

// The programs of commands, and scripts among their arguments, are protected from changes.
func TestSecretPrograms_ContainScripts(t *testing.T) {
	t.Parallel()
	f := withSecrets(t, `{commands: {a: {command: [sh, get.sh, --field, token]}, b: {command: [./own, x]}, c: {command: [no-such-program]}}}`)
	for _, name := range []string{"get.sh", "own"} {
		if err := os.WriteFile(f.Path(name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got := f.SecretPrograms()
	if len(got) != 3 || !slices.Contains(got, f.Path("get.sh")) || !slices.Contains(got, f.Path("own")) || !slices.ContainsFunc(got, func(p string) bool { return filepath.Base(p) == "sh" }) {
		t.Errorf("%v", got)
	}
}
