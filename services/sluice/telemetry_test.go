package sluice_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/telemetry/telemetrytest"
)

// The spans that a mesh makes are those of docs/telemetry.md, all of them and no
// others.
func TestSpansAreDocumented(t *testing.T) {
	t.Parallel()
	collector := stack.NewCollector(t)
	t.Run("calls", func(t *testing.T) { makeEverySpan(t, collector.URL) }) // its end exports what is left
	made := make(map[string]bool)
	for _, span := range collector.Spans("") {
		kind := strings.TrimPrefix(span.Kind.String(), "SPAN_KIND_")
		made[spanName(span)+" "+kind] = true
	}
	documented := make(map[string]bool)
	for _, row := range telemetrytest.Documented(t, "../../docs/telemetry.md", "Spans") {
		documented[row[0]+" "+row[1]] = true
	}
	if diff := cmp.Diff(documented, made); diff != "" {
		t.Errorf("spans (-documented +made):\n%s", diff)
	}
}

// spanName is a span's name as the document has it.
func spanName(s stack.Span) string {
	switch method := s.Attributes["mcp.method.name"]; {
	case method == "":
		return s.Name
	case s.Name == method:
		return "METHOD"
	default:
		return strings.ReplaceAll(s.Name, s.Attributes["gen_ai.tool.name"], "TOOL")
	}
}

// makeEverySpan runs a mesh that makes every kind of span that there is.
func makeEverySpan(t *testing.T, collector string) {
	up := rawmcp.Start(t, `[{"name":"limited","inputSchema":{}}]`)
	s := stack.Up(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL),
		Policy:  "version: 1\nname: p\ndefault: deny\ntools:\n  limited: {rate_limit: {max: 2, window: 60}}\n",
		Extra:   fmt.Sprintf("telemetry: {otlp: %q, sample: 1}", collector),
	})
	c := stack.Connect(t, s.MCP("raw"), stack.AgentToken)
	c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	c.Post(`{"jsonrpc":"2.0","id":"x","result":{}}`) // an answer that nobody asked for
	c.Call("limited", "{}")
	up.Stop()
	c.Call("limited", "{}") // it can't be sent, and its reservation is given back
}
