package redact

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Text with a secret is split into pieces at any position. The stream removes the secret in every form in which
// programs may print it.
func TestStream_RemovesSecretsInEveryFormAcrossPieces(t *testing.T) {
	t.Parallel()
	const secret = `sk-live_4f/9+Zq"é=77`
	s := New(nil, Forms(secret))
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.StringMatching(`[a-z ]{0,7}`).Draw(t, "before")
		forms := map[string]string{
			"plain": secret, "header": "Authorization: Bearer " + secret, "query": "?key=" + url.QueryEscape(secret), "path": url.PathEscape(secret),
			"lower": strings.ToLower("%2F") + strings.ReplaceAll(url.QueryEscape(secret), "%2F", "%2f"),
			"json":  strings.ReplaceAll(secret, `"`, `\"`), "hex": hex.EncodeToString([]byte(secret)),
			"base64": base64.StdEncoding.EncodeToString([]byte(before + secret + "tail")), "base64url": base64.RawURLEncoding.EncodeToString([]byte(before + secret)),
		}
		form := rapid.SampledFrom([]string{"plain", "header", "query", "path", "json", "hex", "base64", "base64url"}).Draw(t, "form")
		text := before + forms[form] + " sk-live_ is how it begins"
		var out strings.Builder
		stream := s.Stream(func(piece string) { out.WriteString(piece) })
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			stream.Write(rest[:n])
			rest = rest[n:]
		}
		stream.Close()
		if got := out.String(); !strings.Contains(got, "[redacted]") || !strings.HasSuffix(got, " sk-live_ is how it begins") || !strings.HasPrefix(got, before) {
			t.Fatalf("%s: %q becomes %q", form, text, got)
		}
		for _, spelling := range Forms(secret) {
			if strings.Contains(out.String(), spelling) {
				t.Fatalf("%s: %q holds %q", form, out.String(), spelling)
			}
		}
	})
}

func TestForms_ShortTextHasNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "none", " x "} {
		if got := Forms(text); got != nil {
			t.Errorf("%q is spelled %q", text, got)
		}
	}
}

// Each line of a value is removed in every form. Strings that are too short to be secrets are not removed.
func TestNewForAllForms_RemovesEachLineInEveryForm(t *testing.T) {
	t.Parallel()
	const first, second = "first-line-4f9Z", "second-line-77Q"
	s := NewForAllForms([]string{first + "\n" + second + "\n", "on"})
	for _, form := range []string{first, second, hex.EncodeToString([]byte(second)), base64.StdEncoding.EncodeToString([]byte("key=" + first + ";"))} {
		got := s.Log("based on " + form + " it is on")
		if !strings.Contains(got, "[redacted]") || !strings.HasPrefix(got, "based on ") || !strings.HasSuffix(got, " it is on") {
			t.Errorf("%q becomes %q", form, got)
		}
	}
}
