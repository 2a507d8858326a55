package redact

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// Case S1. Answers contain secrets in every JSON spelling. Only the secrets are removed.
func TestAnswer_RemovesSecrets(t *testing.T) {
	t.Parallel()
	s := New(nil, []string{`ghp_"12\é/🐟`, "first-line\n  second-line\n", "short", "12345678", "true,null,", "first-line-and-more", `quote","quote`})
	tests := []struct{ name, raw, want string }{
		{"none", `{"a":"ghp_","b":[1,"x\n"]}`, `{"a":"ghp_","b":[1,"x\n"]}`},
		{"spelled plainly", `{"a":"<ghp_\"12\\é/🐟>"}`, `{"a":"<[redacted]>"}`},
		{"in escapes", `{"a":"<\u0067h\u0070_\u002212\u005C\u00e9\/\ud83d\uDC1f>"}`, `{"a":"<[redacted]>"}`},
		{"twice", `{"a":"12345678123456781234567"}`, `{"a":"[redacted][redacted]1234567"}`},
		{"in a key", `{"12345678":1}`, `{"[redacted]":1}`},
		{"a line of it", `["second-line","first-line\nsecond-line"]`, `["[redacted]","[redacted]\n[redacted]"]`},
		{"one that holds another", `"first-line-and-more"`, `"[redacted]"`},
		{"too short to be one", `"short"`, `"short"`},
		{"a number like it", `[12345678,123456789.5,"\n"]`, `[12345678,123456789.5,"\n"]`},
		{"structure like it", `[true,null,"true,null,"]`, `[true,null,"[redacted]"]`},
		{"over two strings", `["1234","5678","\""]`, `["1234","5678","\""]`},
		{"strings that it would span", `["quote","quote","quote\",\"quote"]`, `["quote","quote","[redacted]"]`},
		{"digits of an escape", `"\u12345678"`, `"\u12345678"`},
		{"an escape like its beginning", `"\\12345678\"12345678"`, `"\\[redacted]\"[redacted]"`},
		{"no JSON", `"12345678`, `"[redacted]`},
		{"an incomplete escape", `"\`, `"\`},
		{"an invalid escape", `"\ud83d\u"`, `"\ud83d\u"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := string(s.Answer([]byte(tt.raw))); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Case S1. A client that parses the redacted answer gets the same values as in the original answer, except that each
// secret is replaced.
func TestAnswer_ChangesOnlySecrets(t *testing.T) {
	t.Parallel()
	const secret = `a"b\cé🐟a`
	s := New(nil, []string{secret})
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{secret, `a`, `"`, `\`, "é", "🐟", secret[:4], secret[4:], "\n", "u0061"})
		spelling := func(text string) string {
			var b strings.Builder
			for _, r := range text {
				escaped := jsontext.Value(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(string(r)) + `"`)
				if r < 0x10000 && rapid.Bool().Draw(t, "escape") {
					escaped = fmt.Appendf(nil, `"\u%04x"`, r)
				}
				b.Write(escaped[1 : len(escaped)-1])
			}
			return `"` + b.String() + `"`
		}
		var members []string
		for i, parts := range rapid.SliceOfN(rapid.SliceOf(part), 0, 4).Draw(t, "strings") {
			members = append(members, fmt.Sprintf(`"k%d": [ 1.50 ,%s]`, i, spelling(strings.Join(parts, ""))))
		}
		raw := []byte("{" + strings.Join(members, " , ") + "}")
		got, want := tokens(t, s.Answer(bytes.Clone(raw))), tokens(t, raw)
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], secret, redacted)
		}
		if strings.Join(got, "\x00") != strings.Join(want, "\x00") {
			t.Fatalf("%s\n got %q\nwant %q", raw, got, want)
		}
	})
}

// tokens returns the values that a JSON parser reads.
func tokens(t *rapid.T, raw []byte) []string {
	t.Helper()
	var out []string
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := d.ReadToken()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		out = append(out, token.String())
	}
}

func BenchmarkAnswer(b *testing.B) {
	raw := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat(`one line of a file, \"quoted\"\n`, 128) + `"}]}}`)
	for name, s := range map[string]*Redactor{"no secret": New(nil, nil), "two secrets": New(nil, []string{"ghp_0123456789", "xoxb-0123456789"})} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				_ = s.Answer(raw)
			}
		})
	}
}
