package servers_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Case S1. At debug level, the log contains the standard error of stdio servers, but no headers, arguments or results.
func TestLogLevel_DebugHasStandardErrorAndNoContent(t *testing.T) {
	t.Parallel()
	const header, argument, answer = "header-w8Xk3", "argument-p5Vn9", "answer-t2Qz7"
	up := rawmcp.Start(t, rawmcp.Tools)
	up.SetAnswer("run", func(w http.ResponseWriter, _ *http.Request, id string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"` + answer + `"}],"broken"}}`))
	})
	servers := "  raw: {http: {url: \"" + up.URL + "\"}}\n" + `  dying: {stdio: {command: [sh, -c, "echo \"the licence of $KEY\" >&2; exit 7"], env: {KEY: "${env:CAUSE_SECRET}"}}}` + "\n"
	for name, opts := range map[string]struct {
		extra string
		args  []string
		level bool
	}{
		"key":              {extra: "log: {level: debug}\n", level: true},
		"flag":             {args: []string{"--log-level", "debug"}, level: true},
		"flag before key":  {extra: "log: {level: debug}\n", args: []string{"--log-level", "warn"}},
		"nothing":          {},
		"error and nobody": {extra: "log: {level: error}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stack.WriteConfig(t, stack.Options{Policy: stack.OpenPolicy, Servers: servers, Extra: opts.extra})
			s.Env, s.Args = []string{"CAUSE_SECRET=" + serverSecret}, opts.args
			p := stack.Start(t, s)
			postMessage(t, p.MCP("dying"), stack.InitializeRequest, http.Header{})
			c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
			c.Header = http.Header{"X-Own": {header}}
			c.Call("run", `{"text":"`+argument+`"}`)
			if opts.level {
				eventually.Holds(t, "the log has what the program wrote", func() bool {
					return strings.Contains(p.Stderr(), "server wrote to standard error") && strings.Contains(p.Stderr(), "the licence of [redacted]")
				})
			} else if strings.Contains(p.Stderr(), "level=DEBUG") || opts.args != nil && strings.Contains(p.Stderr(), "level=INFO") {
				t.Errorf("the log has another level:\n%s", p.Stderr())
			}
			for _, content := range []string{header, argument, answer, serverSecret, stack.AgentToken} {
				if strings.Contains(p.Stderr(), content) {
					t.Errorf("the log has %q", content)
				}
			}
		})
	}
	ran := stack.Run(t, stack.Command{Args: []string{"up", "--log-level", "loud"}, Dir: t.TempDir()})
	stack.CheckCommand(t, ran, 2, ran.Stderr, "loud", "debug, info, warn, error")
}
