package gateway

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

func keychainFile() *config.File {
	f := config.Default()
	f.Servers = map[string]config.Server{
		"http": {Timeout: time.Second, HTTP: &config.HTTPServer{
			URL: "https://example.com/mcp", Headers: map[string]config.Secret{"Authorization": "Bearer ${keychain:http/TOKEN}", "X-A": "${env:A}"}, Proxy: "http://me:${keychain:http/PROXY}@proxy:1",
		}},
		"stdio": {Timeout: time.Second, Stdio: &config.StdioServer{
			Command: []string{"x"}, Per: "principal", Dir: "private", Env: map[string]config.Secret{"npm_config_x": "1", "HTTPS_PROXY": "${keychain:stdio/PROXY}"},
		}},
		"plain": {Timeout: time.Second, HTTP: &config.HTTPServer{URL: "https://example.com/mcp"}},
	}
	return &f
}

func TestFromFile_LeavesTheKeychainForLater(t *testing.T) {
	t.Parallel()
	env := func(name string) (string, bool) { return "value-" + name, true }
	cfg, err := FromFile(keychainFile(), env)
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Servers["plain"]; got.KeychainEntries != nil || got.Complete != nil {
		t.Errorf("a server without the keychain has the entries %v", got.KeychainEntries)
	}
	far := cfg.Servers["http"]
	if want := []string{"http/PROXY", "http/TOKEN"}; !slices.Equal(far.KeychainEntries, want) {
		t.Errorf("the entries are %v, want %v", far.KeychainEntries, want)
	}
	complete, err := far.Complete(func(entry string) (string, error) { return "secret-of-" + strings.ReplaceAll(entry, "/", "-"), nil })
	if err != nil || complete.Headers["Authorization"] != "Bearer secret-of-http-TOKEN" || complete.Headers["X-A"] != "value-A" || complete.Proxy != "http://me:secret-of-http-PROXY@proxy:1" {
		t.Errorf("complete: %v, %q, %v", complete.Headers, complete.Proxy, err)
	}
	for _, secret := range []string{"secret-of-http-TOKEN", "secret-of-http-PROXY", "value-A"} {
		if !slices.Contains(complete.Secrets, secret) {
			t.Errorf("%s is not redacted: %v", secret, complete.Secrets)
		}
	}
	locked := errors.New("it is locked")
	if _, err := far.Complete(func(string) (string, error) { return "", locked }); err == nil || !strings.Contains(err.Error(), "Authorization: it is locked") || !strings.Contains(err.Error(), "proxy: it is locked") {
		t.Errorf("if the keychain is locked: %v", err)
	}
}

// npm must get the same variables before and after the keychain was read. Otherwise the gateway would treat the same
// package as a different installation.
func TestNPMEnvironment_OmitsValuesOfTheKeychain(t *testing.T) {
	t.Parallel()
	cfg, err := FromFile(keychainFile(), func(string) (string, bool) { return "a", true })
	if err != nil {
		t.Fatal(err)
	}
	server := cfg.Servers["stdio"]
	complete, err := server.Complete(func(string) (string, error) { return "http://proxy:1", nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Server{server, complete} {
		vars, omitted := s.npmEnvironment(nil)
		if len(vars) != 1 || vars["npm_config_x"] != "1" || !slices.Equal(omitted, []string{"HTTPS_PROXY"}) {
			t.Errorf("npm gets %v, and not %v", vars, omitted)
		}
	}
}
