package locator_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// BenchmarkWorst measures parsing. It uses strings of maximum length that are known to take the longest.
func BenchmarkWorst(b *testing.B) {
	for _, tt := range []struct{ name, text string }{
		{"path", "/" + strings.Repeat("a/", 2000)},
		{"letters", strings.Repeat("/\ufdfaé", 680)},
		{"one", strings.Repeat("\u1e9b\u0323", 680)},
		{"host", "https://" + strings.Repeat("é中", 200)},
		{"hosts", "https://" + strings.Repeat("é中.", 160) + "é"},
		{"punycode", "https://" + strings.Repeat("xn--bcher-kva.", 17) + "example/"},
		{"escapes", "https://ok/" + strings.Repeat("%c3%a9", 680)},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = locator.ParsePath(tt.text)
				_, _ = locator.ParseURL(tt.text)
			}
		})
	}
}
