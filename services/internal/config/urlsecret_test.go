package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// Case S1. Credentials in a URL are found, and no message shows them.
func TestURLSecrets_FindsCredentials(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"https://h/mcp": nil, "https://h/mcp?page=canary-1&q=x": nil,
		"https://h/mcp?key=canary-1":                               {"canary-1"},
		"https://h/mcp?profile=a&API_Key=canary-1&access_token=c2": {"c2", "canary-1"},
		"https://h/mcp?sig=can%2Bary&x=y":                          {"can%2Bary", "can+ary"},
		"https://h/mcp?%6bey=canary-1":                             {"canary-1"},
		"https://h/mcp?k=q7Rk2vX9pLm4Tz8WcB1n":                     {"q7Rk2vX9pLm4Tz8WcB1n"},
		"https://h/mcp?k=550e8400-e29b-41d4-a716-446655440000":     nil, // a UUID is usually a name, not a credential
		"https://h/mcp?project=my-Project-number-20000/a":          nil,
		"https://ana:canary-1@h/mcp":                               {"canary-1"},
		"https://canary-1@h/mcp":                                   {"canary-1"},
	} {
		if got := config.URLSecrets(text); !slices.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"ftp://h/mcp?key=canary-1", "ftp://ana:canary-1@h/mcp", "canary-1@h", "ftp://ana:canary-1@%zz/x", "ftp://h/#canary-1", "://x?token=canary-1"} {
		_, err := config.Load(write(t, `servers: {s: {http: {url: "`+text+`"}}}`), noEnv)
		if err == nil || strings.Contains(err.Error(), "canary-1") || !strings.Contains(err.Error(), "servers.s.http.url: ") {
			t.Errorf("the error about %s is %v", text, err)
		}
	}
}
