package mcp_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

func TestEncodeHeader_IsReversedByDecodeHeader(t *testing.T) {
	t.Parallel()
	for text, value := range map[string]string{
		"":             "=?base64??=",
		"us-west 1":    "us-west 1",
		" x":           "=?base64?IHg=?=",
		"x\t":          "=?base64?eAk=?=",
		"Grüße":        "=?base64?R3LDvMOfZQ==?=",
		"a\r\nb: c":    "=?base64?YQ0KYjogYw==?=",
		"=?base64?x?=": "=?base64?PT9iYXNlNjQ/eD89?=",
		"=?base64?":    "=?base64?",
	} {
		if got := mcp.EncodeHeader(text); got != value {
			t.Errorf("%q is written %q, want %q", text, got, value)
		}
		if got, ok := mcp.DecodeHeader(value); got != text || !ok {
			t.Errorf("%q is read as %q, %t", value, got, ok)
		}
	}
	for _, broken := range []string{"=?base64?e?=", "=?base64?!!?=", "=?base64?eB==?=", "=?base64?eA?="} {
		if got, ok := mcp.DecodeHeader(broken); ok {
			t.Errorf("%q is read as %q", broken, got)
		}
	}
}

// FuzzHeader checks that an encoded value is one line of visible ASCII, and that it decodes to the original string.
func FuzzHeader(f *testing.F) {
	f.Add("x")
	f.Add("=?base64?eA==?=")
	f.Add(" \x00ü ")
	f.Fuzz(func(t *testing.T, text string) {
		value := mcp.EncodeHeader(text)
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) || strings.TrimSpace(value) != value {
			t.Errorf("%q is written %q", text, value)
		}
		if got, ok := mcp.DecodeHeader(value); !ok || got != text {
			t.Errorf("%q is read as %q, %t", text, got, ok)
		}
	})
}
