package bench

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const serverName = "echo"

// principals is the number of principals. In the cell with denied calls, the callers make calls for each principal in
// turn. For each principal, the gateway records at most 1,000 refusals a minute individually (up to 1 MiB at once, and
// 60 KiB a minute). It delays a principal that is refused more often.
const principals = 2000

func newTokens() []string {
	tokens := make([]string, principals)
	for i := range tokens {
		tokens[i] = authn.NewSecret()
	}
	return tokens
}

const policyRules = 100

//go:embed mesh.yaml.tmpl
var meshTemplate string

// meshFile contains the data for the template of a mesh's configuration file. If Certs is empty, all services of the
// mesh run in one process.
type meshFile struct {
	MCP, GRPC, Data string
	Certs           string
	// Roles maps the names of the mesh services that run in separate processes to their addresses.
	Roles map[string]string
	// Asked is true if the gateway does not cache decisions and therefore asks the policy service about every call.
	Asked bool
	// Issuer is the URL of the issuer whose JWTs identify callers. If it is empty, only tokens identify callers.
	Issuer string

	// The method writeMesh sets the following fields. They are the same in all configurations of a run.
	Tokens                 []string
	Upstream, OTLP, Server string
}

// writeMesh writes a configuration and its policy to dir, and returns the path of the configuration.
func (s *sites) writeMesh(dir string, mesh meshFile) (string, error) {
	mesh.Tokens, mesh.Server = s.tokens, serverName
	mesh.Upstream, mesh.OTLP = "http://"+s.echo.at.addr+s.echo.at.path, s.sink.url()
	tmpl, err := template.New("mesh").Parse(meshTemplate)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	if err := tmpl.Execute(&text, mesh); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policyText()), 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "mesh.yaml")
	return path, os.WriteFile(path, []byte(text.String()), 0o600)
}

// policyText returns a policy with policyRules rules. It contains rules for the tools that are called, rules with
// patterns that match these tools for other callers only, and rules for tools that are never called.
func policyText() string {
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\nname: bench\nserver: %s\ndefault: deny\ntools:\n", serverName)
	fmt.Fprintf(&text, "  %s: {action: allow}\n", toolAllowed)
	fmt.Fprintf(&text, "  %s: {rate_limit: {max: 1000000000, window: 60}}\n", toolLimited)
	fmt.Fprintf(&text, "  %s: {action: deny, reason: this tool is closed}\n", toolDenied)
	fmt.Fprintf(&text, "  %s: {action: allow, when: '%s', otherwise: {action: deny, reason: other texts}}\n", toolConditional,
		`args.text.startsWith("hel") && args.text.size() < 100 && !args.text.contains("secret")`)
	const patterns = 12
	for i := range policyRules - patterns - 4 {
		fmt.Fprintf(&text, "  tool_%d: {action: allow}\n", i)
	}
	text.WriteString("rules:\n")
	text.WriteString("  - {name: not-for-guests, match: {tool: \"echo*\", groups: [guests]}, action: hide}\n")
	text.WriteString("  - {name: for-developers, match: {tool: \"echo*\", groups: [developers]}, action: allow}\n")
	for i := range patterns - 2 {
		fmt.Fprintf(&text, "  - {name: pattern-%d, match: {tool: \"*_report_%d\", groups: [developers]}, action: require_approval}\n", i, i)
	}
	return text.String()
}
