package personal_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// URLs of one mesh have one form, and the directories of two meshes differ.
func TestElsewhere_HasOneFormOfTheURL(t *testing.T) {
	t.Parallel()
	p := personal.Paths{Data: filepath.Join("x", "data")}
	dirs := make(map[string]string)
	for given, want := range map[string]string{
		"https://Mesh.example.com":             "https://mesh.example.com",
		"https://mesh.example.com/":            "https://mesh.example.com",
		"https://mesh.example.com/mcp":         "https://mesh.example.com",
		"https://mesh.example.com/mcp/":        "https://mesh.example.com",
		"https://mesh.example.com:8443":        "https://mesh.example.com:8443",
		"https://example.com/team%20a/mcp":     "https://example.com/team%20a",
		"https://example.com/a":                "https://example.com/a",
		"https://example.com/b":                "https://example.com/b",
		"http://127.0.0.1:8080/mcp":            "http://127.0.0.1:8080",
		"http://[::1]:8080":                    "http://[::1]:8080",
		"https://" + strings.Repeat("a.", 100): "https://" + strings.Repeat("a.", 100),
	} {
		e, err := p.Elsewhere(given)
		if err != nil || e.URL != want {
			t.Errorf("%s is %q, %v; want %q", given, e.URL, err, want)
		}
		dir := filepath.Dir(e.Token("cursor"))
		if other, taken := dirs[dir]; taken && other != want {
			t.Errorf("%s and %s have the same directory", other, want)
		}
		dirs[dir] = want
		if name := filepath.Base(dir); filepath.Dir(dir) != filepath.Join(p.Data, "tokens", "elsewhere") || strings.ContainsAny(name, `:[]/\`) || len(name) > 80 {
			t.Errorf("%s has the directory %s", given, dir)
		}
	}
}

func TestElsewhere_RefusesOtherURLs(t *testing.T) {
	t.Parallel()
	for _, given := range []string{
		"", "mesh.example.com", "https://", "ftp://mesh.example.com", "http://mesh.example.com", "http://10.0.0.7:8080", "https://a:b@mesh.example.com",
		"https://mesh.example.com?token=x", "https://mesh.example.com/mcp#x", "https://mesh.example.com:port",
	} {
		if e, err := (personal.Paths{}).Elsewhere(given); err == nil {
			t.Errorf("%q is accepted as %s", given, e.URL)
		}
	}
}
