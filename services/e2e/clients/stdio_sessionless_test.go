package clients_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// sessionlessServer names the environment variable that makes this test binary run as a stdio proxy. Its value is the
// path of an MCP server. Through the proxy, the server appears to support only revision 2026-07-28.
const sessionlessServer = "SLUICE_E2E_SESSIONLESS_SERVER"

func runSessionlessProxy() int {
	cmd := exec.CommandContext(context.Background(), os.Getenv(sessionlessServer))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return 1
	}
	if err := cmd.Start(); err != nil {
		return 1
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), []byte(`"method":"initialize"`)) {
			fmt.Println(`{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"x","data":{"supported":["2026-07-28"],"requested":"x"}}}`)
			continue
		}
		if _, err := io.WriteString(in, lines.Text()+"\n"); err != nil {
			return 1
		}
	}
	_ = in.Close()
	_ = cmd.Wait() // the exit status does not matter
	return 0
}

// A stdio server supports only revision 2026-07-28. It is used by clients of that revision and by clients of the
// revisions that use sessions. They list and call tools, answer server requests, and are notified of changed lists.
func TestStdio_SessionlessProgramServesAllClients(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  bare: {stdio: {command: [%q], env: {%s: %q}}}", os.Args[0], sessionlessServer, gosdk.BuildServer(t)),
		Policy: `version: 1
default: allow
rules:
  - {name: elicit, match: {method: elicitation/create}, action: allow}
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
`,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, over := range map[string]struct {
		mcp.Transport
		version string
	}{
		"without a session": {gosdk.StreamingTransport(s.MCP("bare")), "2026-07-28"},
		"in a session":      {gosdk.StreamingTransport(gosdk.SessionsOnlyProxy(t, s.MCP("bare"))), "2025-11-25"},
		"by sluice stdio":   {gosdk.StdioTransport(t, s, "bare"), "2025-11-25"},
	} {
		t.Run(name, func(t *testing.T) {
			c, heard := gosdk.ConnectInteractive(t, over.Transport)
			defer c.Close()
			if v := c.InitializeResult().ProtocolVersion; v != over.version {
				t.Errorf("the protocol version is %s", v)
			}
			if list, err := c.ListTools(ctx, nil); err != nil || len(list.Tools) < 20 {
				t.Fatalf("the listed tools are %v, %v", list, err)
			}
			r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "test_input_required_result_elicitation"})
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := r.Content[0].(*mcp.TextContent); !strings.Contains(text.Text, "ana") {
				t.Errorf("the result after the elicitation is %q", text.Text)
			}
			if got := <-heard; !strings.HasPrefix(got, "asked ") {
				t.Errorf("the client received %q", got)
			}
			again := time.NewTicker(time.Second)
			defer again.Stop()
			for told := false; !told; { // the client is notified only after its stream is open
				if _, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "test_trigger_prompt_change"}); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-heard:
					if told = true; got != "prompts changed" {
						t.Errorf("the client received %q", got)
					}
				case <-again.C:
				}
			}
		})
	}
}
