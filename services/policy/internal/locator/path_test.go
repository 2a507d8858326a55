package locator_test

import (
	"path"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// TestPath_Within checks which paths are within a root, and which strings are errors. Case P14.
func TestPath_Within(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, root, want string }{
		{"/srv/a.txt", "/srv", "true"},
		{"/srv", "/srv", "true"},
		{"/srv/", "/srv", "true"},
		{"/srv/a", "/srv/", "true"},
		{"/srv//a/./b/", "/srv", "true"},
		{"/srv/a/../b", "/srv", "true"},
		{"/srv/Grüße/日本語.txt", "/srv", "true"},
		{"/srv/100%/a~b", "/srv", "true"},
		{"/srv/...a/b", "/srv", "true"},
		{"/anything", "/", "true"},
		{"a/b", "a", "true"},
		{"./a/b", "a", "true"},
		{"a", ".", "true"},
		{"/srv/../etc/passwd", "/srv", "false"},
		{"/srv/a/../../etc", "/srv", "false"},
		{"/srvx/a", "/srv", "false"},
		{"/SRV/a", "/srv", "false"},
		{"/", "/srv", "false"},
		{"b/a", "a", "false"},
		{"a/../b", "a", "false"},

		{"", "/srv", "is empty"},
		{"/srv/../../etc", "/srv", "has .. segments"},
		{"/..", "/", "has .. segments"},
		{"../srv", "srv", "has .. segments"},
		{"a/../../srv", "srv", "has .. segments"},
		{"srv/a", "/srv", "absolute"},
		{"/srv/a", "srv", "absolute"},
		{"~/a", ".", "home"},
		{"~root/a", ".", "home"},
		{"./~/a", ".", "home"},
		{"x/../~/a", ".", "home"},
		{"/srv/%2e%2e/etc", "/srv", "% with two hex digits"},
		{"/srv/%2E%2e%2fetc", "/srv", "% with two hex digits"},
		{"/srv/%00", "/srv", "% with two hex digits"},
		{`/srv/..\..\etc`, "/srv", `contains a \`},
		{`\\host\share`, "/srv", `contains a \`},
		{"//host/share", "/", "two slashes"},
		{"C:/Windows", ".", "drive"},
		{"a/../C:/Windows", ".", "drive"},
		{"/srv/a\x00.txt", "/srv", "unprintable"},
		{"/srv/a\n", "/srv", "unprintable"},
		{"/srv/a\x7f", "/srv", "unprintable"},
		{"/srv/\u202etxt", "/srv", "unprintable"},
		{"/srv/\u200b../x", "/srv", "unprintable"},
		{"/srv/\u00a0", "/srv", "unprintable"},
		{"/srv/.. /etc", "/srv", "dots and spaces"},
		{"/srv/.../etc", "/srv", "dots and spaces"},
		{"/srv/a./etc", "/srv", "ends with a dot"},
		{"/srv/a::$DATA", "/srv", "a stream"},
		{"file:///srv", ".", "the scheme of a URL"},
		{"file:srv", ".", "the scheme of a URL"},
		{"/srv/..\u00a5etc", "/srv", "take for a slash or a dot"},
		{"/srv/ /etc", "/srv", "dots and spaces"},
		{"/srv/a /etc", "/srv", "begins or ends with a space"},
		{"/srv/\uff0e\uff0e/etc", "/srv", "take for a slash or a dot"},
		{"/srv/\u2025/etc", "/srv", "take for a slash or a dot"},
		{"/srv/.\u2024/etc", "/srv", "take for a slash or a dot"},
		{"/srv/a\uff0fb", "/srv", "take for a slash or a dot"},
		{"/srv/\u2100", "/srv", "take for a slash or a dot"},
		{"/srv/\uff052e", "/srv", "take for a slash or a dot"},
		{"/srv/\xff", "/srv", "not UTF-8"},
		{"/srv/" + strings.Repeat("a", locator.MaxBytes), "/srv", "longer than"},
	} {
		if got := answer(within(tt.text, tt.root)); !strings.Contains(got, tt.want) {
			t.Errorf("%q within %q: %s; want %s", tt.text, tt.root, got, tt.want)
		}
	}
}

func TestPath_BaseAndExt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, base, ext string }{
		{"/srv/a.txt", "a.txt", ".txt"},
		{"/srv/a.tar.gz/", "a.tar.gz", ".gz"},
		{"/srv/a.txt/../b", "b", ""},
		{"a.TXT", "a.TXT", ".TXT"},
		{"/home/.a.txt", ".a.txt", ".txt"},
		{"/", "no last segment", "no last segment"},
		{"a/..", "no last segment", "no last segment"},
		{"a.", "ends with a dot", "ends with a dot"},
		{"a.txt%00.png", "two hex digits", "two hex digits"},
		{"a.exe ", "a space", "a space"},
	} {
		p, err := locator.ParsePath(tt.text)
		base, ext := "", ""
		if err == nil {
			base, err = p.Base()
		}
		if err == nil {
			ext, err = p.Ext()
		}
		if err != nil {
			if !strings.Contains(err.Error(), tt.base) || !strings.Contains(err.Error(), tt.ext) {
				t.Errorf("%q: %v; want %s", tt.text, err, tt.base)
			}
		} else if base != tt.base || ext != tt.ext {
			t.Errorf("%q: %q, %q; want %q, %q", tt.text, base, ext, tt.base, tt.ext)
		}
	}
}

// TestPath_ExtFailsIfReadersDisagree checks names for which well-known programs find different extensions. Case P14.
func TestPath_ExtFailsIfReadersDisagree(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"/home/.profile": "only dots are at its start",
		"..png":          "only dots are at its start",
		"a\u2024txt":     "take for a slash or a dot",
		"a.b\uff0etxt":   "take for a slash or a dot",
		"Wait\u2026.txt": "take for a slash or a dot",
	} {
		p, err := locator.ParsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		if ext, err := p.Ext(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %s", text, ext, err, want)
		}
	}
}

// FuzzP14PathWithin checks that if Within returns no error, the standard library agrees on whether the path is within
// the root. Within must return the same result for the cleaned paths.
func FuzzP14PathWithin(f *testing.F) {
	for _, seed := range []string{"/srv/../etc", "/srv/a/./b//c/..", "a/../..", "/srv/.. /x", "~", "/srv/\uff0e./x", "//srv", `/srv\..\x`, "/srv/%2e%2e/x", "c:/x", "./c:/x"} {
		f.Add(seed, "/srv")
		f.Add(seed, "a")
	}
	f.Fuzz(func(t *testing.T, text, root string) {
		in, err := within(text, root)
		if err != nil {
			if in {
				t.Fatalf("%q within %q, and %v", text, root, err)
			}
			return
		}
		p, _ := locator.ParsePath(text)
		r, _ := locator.ParsePath(root)
		if cleaned, err := within(p.String(), r.String()); err != nil || cleaned != in {
			t.Fatalf("%q within %q: %v; cleaned %v, %v", text, root, in, cleaned, err)
		}
		clean, cleanRoot := path.Clean(text), path.Clean(root)
		if clean != p.String() || cleanRoot != r.String() {
			t.Fatalf("%q and %q are cleaned to %q and %q; want %q and %q", text, root, p, r, clean, cleanRoot)
		}
		below := clean == cleanRoot || strings.HasPrefix(clean, strings.TrimSuffix(cleanRoot, "/")+"/") || cleanRoot == "."
		if in != below {
			t.Fatalf("%q within %q: %v; the standard library says %v", text, root, in, below)
		}
		if deeper, err := within(strings.TrimSuffix(text, "/")+"/zz", root); in && len(text) < locator.MaxBytes-3 && (err != nil || !deeper) {
			t.Fatalf("%q within %q, and what lies below it does not: %v", text, root, err)
		}
	})
}

func within(text, root string) (bool, error) {
	p, err := locator.ParsePath(text)
	if err != nil {
		return false, err
	}
	r, err := locator.ParsePath(root)
	if err != nil {
		return false, err
	}
	return p.Within(r)
}

// answer returns a result as a string, or the error message if there is an error.
func answer(yes bool, err error) string {
	switch {
	case err != nil && yes:
		return "both true and an error"
	case err != nil:
		return err.Error()
	case yes:
		return "true"
	}
	return "false"
}
