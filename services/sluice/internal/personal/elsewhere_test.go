package personal_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// Different spellings of a mesh's URL result in the same URL. Different meshes have different directories.
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
		if name := filepath.Base(dir); filepath.Dir(dir) != filepath.Join(p.Data, "tokens", "elsewhere") || strings.ContainsAny(name, `:[]/\`) || len(name) > 130 {
			t.Errorf("%s has the directory %s", given, dir)
		}
	}
}

func TestElsewhere_RefusesOtherURLs(t *testing.T) {
	t.Parallel()
	for _, given := range []string{
		"", "mesh.example.com", "https://", "ftp://mesh.example.com", "http://mesh.example.com", "http://10.0.0.7:8080", "https://a:b@mesh.example.com",
		"https://mesh.example.com?token=x", "https://mesh.example.com/mcp#x", "https://mesh.example.com:port",
		"https://m\u0435sh.example.com", "https://m%D0%B5sh.example.com", "https://\u212Aube.example.com", "https://a;b.example.com", "http://[::1%25eth0]:8080",
	} {
		if e, err := (personal.Paths{}).Elsewhere(given); err == nil {
			t.Errorf("%q is accepted as %s", given, e.URL)
		}
	}
}

// The name of the directory contains the whole digest. If it contained only 32 bits, another URL with the same bits
// could be found by trial and error.
func TestElsewhere_NamesTheDirectoryAfterTheWholeDigest(t *testing.T) {
	t.Parallel()
	e, err := personal.Paths{Data: "x"}.Elsewhere("https://mesh.example.com")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("https://mesh.example.com"))
	if got, want := filepath.Base(filepath.Dir(e.Token("cursor"))), "mesh.example.com-"+hex.EncodeToString(sum[:]); got != want {
		t.Errorf("the directory is %s, want %s", got, want)
	}
}

func TestReadToken_ReadsNothingIfTheDirectoryNamesAnotherMesh(t *testing.T) {
	t.Parallel()
	const url = "https://mesh.example.com"
	for name, tt := range map[string]struct {
		stored string
		absent bool // whether the error says that there is no token
		want   string
	}{
		"the same URL":     {stored: url, want: "secret"},
		"another URL":      {stored: "https://mesh.example.com/a"},
		"another line end": {stored: url + "\n"},
		"no URL":           {absent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := personal.Paths{Data: t.TempDir()}.Elsewhere(url)
			if err != nil {
				t.Fatal(err)
			}
			write(t, e.Token("cursor"), "secret")
			if tt.stored != "" {
				write(t, e.Address(), tt.stored)
			}
			got, err := e.ReadToken("cursor")
			if string(got) != tt.want || (err == nil) != (tt.want != "") || errors.Is(err, fs.ErrNotExist) != tt.absent {
				t.Errorf("the token is %q, %v", got, err)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}
