package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

func loadText(t *testing.T, text string) (*config.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(path, func(string) (string, bool) { return "", false })
}

func TestLoad_HooksAddServersOfClients(t *testing.T) {
	t.Parallel()
	f, err := loadText(t, "hooks: [{client: claude-code}, {client: gemini}]\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]string{"host-claude-code": "claude-code", "host-gemini": "gemini"} {
		server := f.Servers[name]
		if server.Host() != client || server.PinMode() != "off" || !server.Trusted || server.Timeout <= 0 {
			t.Errorf("%s: %+v", name, server)
		}
	}
	if len(f.Servers) != 2 {
		t.Errorf("%d servers", len(f.Servers))
	}
}

func TestLoad_RefusesWrongHooksAndReservedNames(t *testing.T) {
	t.Parallel()
	const server = "\nservers:\n  host-claude-code: {http: {url: http://127.0.0.1:1/mcp}}\n"
	for text, says := range map[string]string{
		"hooks: [{client: codex}, {client: codex}]\n": "listed twice",
		"hooks: [{client: cursor}]\n":                 `"cursor" is not one of claude-code, codex, gemini`,
		server:                                        "names that begin with host- are reserved",
		"hooks: [{client: claude-code}]\n" + server:   "names that begin with host- are reserved",
	} {
		if _, err := loadText(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
