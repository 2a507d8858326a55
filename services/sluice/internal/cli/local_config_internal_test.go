package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// printUses prints every program, every address and the name of every secret that a configuration uses. It does not
// print the secrets themselves.
func TestPrintUses_PrintsAllButSecrets(t *testing.T) {
	t.Parallel()
	const text = `listen: 127.0.0.1:1
auth: {tokens: [{name: a, token: "literal-secret-literal-secret-literal", role: operator}]}
servers:
  files: {stdio: {command: [npx, -y, "a b"], env: {KEY: "${env:FILES_KEY}", OTHER: "x${file:/run/other}"}, dir: /srv, sandbox: {mode: off}}}
  kept: {stdio: {command: ["evil\e[2Jprogram"], sandbox: {read: [/r], write: [/w]}}}
  web: {http: {url: "https://user:url-secret@web.example/mcp?key=query-secret", headers: {A: "Bearer ${env:\u0057EB}"}}}
  calls: {grpc: {target: "grpc.example:443"}}
stores: {approval: "postgres://ana:store-secret@db.example/approvals"}
agents: {providers: {local: {kind: openai, url: "https://models.example/v1/", key: "${env:MODELS}"}}}
telemetry: {otlp: "http://spans.example:4317"}
policies: [p.yaml]
`
	f, err := config.Parse("sluice.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	printUses(safetext.NewWriter(&out), f)
	shown := out.String()
	for _, want := range []string{
		"  listens   MCP 127.0.0.1:1, gRPC 127.0.0.1:9090\n", "  token     a, with the role operator\n", "  policies  /",
		"  server    files: runs npx -y 'a b', in /srv, with KEY, OTHER, without a sandbox\n", "reads /r", "writes /w",
		"  server    web: https://web.example/mcp\n", "  server    calls: gRPC grpc.example:443\n",
		"  address   https://models.example/v1/\n", "  address   http://spans.example:4317\n", "  address   postgres://db.example/approvals\n",
		"  secret    env FILES_KEY\n", "  secret    env MODELS\n", "  secret    env WEB\n", "  secret    file /run/other\n",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	for _, secret := range []string{"literal-secret", "url-secret", "query-secret", "store-secret", "\x1b"} {
		if strings.Contains(shown, secret) {
			t.Errorf("%q is in\n%s", secret, shown)
		}
	}
}
