package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

func TestSecret_ResolvesReferences(t *testing.T) {
	t.Parallel()
	path := write(t, "data: x\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "key"), []byte("from the file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "empty"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := config.Load(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	vars := env(map[string]string{"A": "from the environment", "NESTED": "${env:A}", "EMPTY": ""})
	for secret, want := range map[config.Secret]string{
		"":                         "",
		"as it stands":             "as it stands",
		"$A {A} $env:A $":          "$A {A} $env:A $",
		"${env:A}":                 "from the environment",
		"Bearer ${env:A}/${env:A}": "Bearer from the environment/from the environment",
		"${file:key}":              "from the file",
		"${plain:A}/x":             "from the environment/x",
		"${env:NESTED}":            "${env:A}", // references in a variable's value are not replaced
	} {
		if got, err := secret.Resolve(f, vars); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", string(secret), got, err, want)
		}
	}
	if got, want := config.Secret("Bearer ${env:A}/${file:key} x").References(), []config.Secret{"${env:A}", "${file:key}"}; !slices.Equal(got, want) {
		t.Errorf("the references are %d, want %d", len(got), len(want))
	}
	if got := config.Secret("${plain:A}/${env:A}").References(); !slices.Equal(got, []config.Secret{"${env:A}"}) {
		t.Errorf("of a reference to what is no secret %d are secret, want 1", len(got))
	}
	if _, err := config.Secret("${env:B}${plain:C}${file:none}${D}").Resolve(f, vars); err == nil || !strings.Contains(err.Error(), "variable B") ||
		!strings.Contains(err.Error(), "variable C") || !strings.Contains(err.Error(), "none") || !strings.Contains(err.Error(), "begins like") {
		t.Errorf("the error about four references that can't be resolved is %v", err)
	}
	const form = "write ${env:NAME}, ${file:PATH}, ${cmd:NAME}, ${vault:MOUNT/PATH#FIELD}, ${keychain:SERVER/NAME} or, for a value that is not a secret, ${plain:NAME}"
	for secret, want := range map[config.Secret]string{
		"${env:B}":                 "the environment variable B is not set",
		"${env:EMPTY}":             "the environment variable EMPTY is not set",
		"${env:}":                  "the environment variable  is not set",
		"${file:none}":             "read the secret: open",
		"${file:empty}":            "is empty",
		"${keychain:x}":            "is not the name of a keychain entry",
		"${keychain:github/../x}":  "is not the name of a keychain entry",
		"${keychain:github/TOKEN}": "only in env, headers and proxy of servers",
		"${cmd:none}":              "add it to secrets.commands",
		"${vault:A}":               "does not name a field",
		"${vault:kv/a#b}":          "set secrets.vault",
		"${ENV:A}":                 form,
		"${A}":                     form,
		"${}":                      form,
		"${env:A":                  form,
		"a long text of more than 32 characters ${SLUICE_TOKEN}": form,
		"${env:A} ${A}": form,
	} {
		got, err := secret.Resolve(f, vars)
		if got != "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %q, %v; want %q", string(secret), got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "from the") {
			t.Errorf("the message shows a secret: %v", err)
		}
	}
}

// Case S1. A configuration contains a secret. No format shows it.
func TestSecret_IsHiddenInEveryFormat(t *testing.T) {
	t.Parallel()
	const canary = "canary-9c1d"
	path := write(t, strings.ReplaceAll(`auth: {tokens: [{name: a, token: CANARY, role: agent}]}
servers:
  h: {http: {url: "http://localhost/", headers: {Authorization: CANARY}}}
  s: {stdio: {command: [x], env: {KEY: CANARY}}}
`, "CANARY", canary))
	f, err := config.Load(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Auth.Tokens[0].Token.Resolve(f, noEnv); err != nil || got != canary {
		t.Fatalf("the secret is %q, %v", got, err)
	}
	var out bytes.Buffer
	for _, value := range []any{f, *f, f.Auth, f.Auth.Tokens[0], &f.Auth.Tokens[0], f.Auth.Tokens[0].Token, f.Servers["h"].HTTP, f.Servers["s"].Stdio.Env} {
		fmt.Fprintf(&out, "%v\n%+v\n%#v\n", value, value, value)
		for _, log := range []*slog.Logger{slog.New(slog.NewJSONHandler(&out, nil)), slog.New(slog.NewTextHandler(&out, nil))} {
			log.InfoContext(t.Context(), "loaded", "value", value)
		}
		one, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		two, _ := jsonv2.Marshal(value) // the encoder can't write durations and returns an error
		out.Write(append(one, two...))
	}
	if !strings.Contains(out.String(), "[hidden]") {
		t.Error("the output does not contain \"[hidden]\"")
	}
	fmt.Fprintf(&out, "%s %q %x %X", f.Auth.Tokens[0].Token, f.Auth.Tokens[0].Token, f.Auth.Tokens[0].Token, f.Auth.Tokens[0].Token)
	for _, form := range []string{canary, fmt.Sprintf("%x", canary)} {
		if at := strings.Index(out.String(), form); at >= 0 {
			t.Errorf("the secret is shown: …%s…", out.String()[max(0, at-80):at+len(form)])
		}
	}
}

// Case S1. A configuration with a secret is invalid. The error does not show the secret.
func TestLoad_ErrorsDoNotShowSecrets(t *testing.T) {
	t.Parallel()
	const canary = "canary-9c1d"
	for _, text := range []string{
		"auth: {tokens: [{name: a, token: {x: CANARY}, role: agent}]}",
		"auth: {tokens: [{name: a, token: [CANARY], role: agent}]}",
		"auth: {tokens: [{name: a, token: CANARY, sha256: CANARY, role: none}]}",
		"servers: {s: {http: {url: \"http://localhost/\", headers: [CANARY]}}}",
		"servers: {s: {stdio: {command: [], env: {KEY: CANARY}}}}",
		"ratelimit: {redis: CANARY}",
	} {
		got := strings.Join(load(t, strings.ReplaceAll(text, "CANARY", canary)), "\n")
		if got == "" || strings.Contains(got, canary) {
			t.Errorf("%s:\n%s", text, got)
		}
	}
}

func TestSecret_ResolvesReferencesToTheKeychain(t *testing.T) {
	t.Parallel()
	f := config.Default()
	secret := config.Secret("Bearer ${keychain:github/TOKEN}/${env:A}/${keychain:x/B.c-d}")
	values := map[string]string{"github/TOKEN": "${env:A}", "x/B.c-d": "two"} // references in a value are not replaced
	got, err := secret.ResolveWith(&f, env(map[string]string{"A": "a"}), func(entry string) (string, error) { return values[entry], nil })
	if want := "Bearer ${env:A}/a/two"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if got, want := secret.KeychainEntries(), []string{"github/TOKEN", "x/B.c-d"}; !slices.Equal(got, want) {
		t.Errorf("the entries are %v, want %v", got, want)
	}
	if got := len(secret.References()); got != 3 {
		t.Errorf("%d references are secret, want 3", got)
	}
	if got, err := secret.ResolveWith(&f, noEnv, func(string) (string, error) { return "", errors.New("it is locked") }); got != "" || err == nil || !strings.Contains(err.Error(), "it is locked") {
		t.Errorf("if the keychain is locked: got %q, %v", got, err)
	}
}
