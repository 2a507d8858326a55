package servers_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A stdio server that starts slowly is reported as starting, not as unusable, and is not killed.
func TestSlowStart_ServerIsReportedAsStarting(t *testing.T) {
	t.Parallel()
	go1 := filepath.Join(t.TempDir(), "go")
	program := filepath.Join(t.TempDir(), "server.sh")
	stack.WriteFile(t, program, `echo "installing" >&2
while [ ! -e "`+go1+`" ]; do sleep 0.05; done
while read line; do
  case "$line" in *'"initialize"'*) id=${line#*\"id\":}; echo '{"jsonrpc":"2.0","id":'${id%%,*}',"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"slow","version":"1"},"capabilities":{"tools":{}}}}';; esac
done
`)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Policy: stack.OpenPolicy, Servers: fmt.Sprintf("  slow: {stdio: {command: [sh, %q], start: 5m}, timeout: 1s}\n", program),
	}))
	text := string(postMessage(t, p.MCP("slow"), stack.InitializeRequest, http.Header{}))
	if !strings.Contains(text, "is still starting") || !strings.Contains(text, `"retryable":true`) || !strings.Contains(text, `"retryAfterMs"`) {
		t.Errorf("while the program starts: %s", text)
	}
	status := serverStatuses(t, []string{"SLUICE_CONFIG=" + p.Config, "SLUICE_ADDR=" + p.GRPC, "SLUICE_TOKEN=" + stack.OperatorToken})
	if !strings.Contains(status["slow"], "is still starting") {
		t.Errorf("status reports %q", status["slow"])
	}
	if err := os.WriteFile(go1, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the server can be used once its program has started", func() bool {
		return strings.Contains(string(postMessage(t, p.MCP("slow"), stack.InitializeRequest, http.Header{})), `"serverInfo"`)
	})
	if n := strings.Count(p.Stderr(), "server process started"); n > 2 { // the gateway starts one process to list the tools, and one for the agent
		t.Errorf("%d processes were started", n)
	}
}
