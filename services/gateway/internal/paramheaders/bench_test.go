package paramheaders_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/paramheaders"
)

// BenchmarkHeaders measures the most expensive case: a tool with the maximum number of headers, each for an argument at
// the maximum depth.
func BenchmarkHeaders(b *testing.B) {
	var properties []string
	for i := range 64 {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"string","x-mcp-header":"F%d"}`, i, i))
	}
	schema, arguments := strings.Join(properties, ","), `{"z":"`+strings.Repeat("x", 4<<20-200)+`"}`
	for range 14 {
		schema, arguments = `"o":{"type":"object","properties":{`+schema+`}}`, `{"o":`+arguments+`}`
	}
	bindings := paramheaders.Bindings(tool(schema))
	if len(bindings) != 64 {
		b.Fatalf("%d bindings", len(bindings))
	}
	for b.Loop() {
		if _, err := paramheaders.Headers([]byte(arguments), bindings, func(string) string { return "" }); err != nil {
			b.Fatal(err)
		}
	}
}
