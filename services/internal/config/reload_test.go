package config_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

func tokenNames(f *config.File) []string {
	var out []string
	for _, t := range f.Auth.Tokens {
		out = append(out, t.Name)
	}
	return out
}

const (
	oneToken  = "auth: {tokens: [{name: a, token: \"${env:A}\", role: viewer}]}\n"
	twoTokens = "auth: {tokens: [{name: a, token: \"${env:A}\", role: viewer}, {name: b, token: \"${env:B}\", role: operator}]}\n"
)

// The file changes while the process is running. Tokens that the process has added are kept, unless the file contains a
// token with the same role.
func TestReloader_ReadsTheFileAgain(t *testing.T) {
	t.Parallel()
	path := write(t, oneToken)
	f, err := config.Load(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	f.AddToken(config.Token{Name: "local-agent", Tenant: "default", Subject: "local-agent", Role: "agent"})
	f.AddToken(config.Token{Name: "local-operator", Tenant: "default", Subject: "local-operator", Role: "operator"})
	reload := f.Reloader(nil, noEnv)
	check := func(text string, want ...string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := reload()
		if err != nil || !slices.Equal(tokenNames(got), want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
		if again, err := reload(); again != got || err != nil {
			t.Errorf("the same content was parsed again: %v", err)
		}
	}
	check(oneToken, "a", "local-agent", "local-operator")
	check(twoTokens, "a", "b", "local-agent")
	if err := os.WriteFile(path, []byte("auth: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := reload(); err == nil {
		t.Error("a file that can't be read is accepted")
	}
	check(oneToken, "a", "local-agent", "local-operator")
}

func TestReloader_UsesTheGivenContent(t *testing.T) {
	t.Parallel()
	f, err := config.Load(write(t, oneToken), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("not agreed")
	content, readErr := twoTokens, error(nil)
	reload := f.Reloader(func() ([]byte, error) { return []byte(content), readErr }, noEnv)
	if got, err := reload(); err != nil || len(got.Auth.Tokens) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	readErr = refused
	if _, err := reload(); !errors.Is(err, refused) {
		t.Errorf("a refused content: %v", err)
	}
	none := config.Default()
	if none.Reloader(nil, noEnv) != nil {
		t.Error("without a file there is something to read again")
	}
}
