package bench

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// serverName is what the echo server is called in the mesh.
const serverName = "echo"

// policyRules is how many rules the policy has.
const policyRules = 100

//go:embed mesh.yaml.tmpl
var meshTemplate string

// meshFile is what a configuration of the mesh is made of. Where Certs is empty
// all roles share one process.
type meshFile struct {
	MCP, GRPC, Data string
	Certs           string
	// Roles are the addresses of roles that live apart.
	Roles map[string]string

	// What follows is the same for all.
	Token, Upstream, OTLP, Server string
}

// writeMesh writes a configuration, and the policy beside it, and returns its
// path.
func (s *sites) writeMesh(name string, mesh meshFile) (string, error) {
	mesh.Token, mesh.Server = s.token, serverName
	mesh.Upstream, mesh.OTLP = "http://"+s.echo.at.addr+s.echo.at.path, s.sink.url()
	tmpl, err := template.New(name).Parse(meshTemplate)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	if err := tmpl.Execute(&text, mesh); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "policy.yaml"), []byte(policyText()), 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(s.dir, name)
	return path, os.WriteFile(path, []byte(text.String()), 0o600)
}

// policyText is a policy of 100 rules: the tools that are called, patterns that
// match them for some callers alone, and many that are never called.
func policyText() string {
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\nname: bench\nserver: %s\ndefault: deny\ntools:\n", serverName)
	fmt.Fprintf(&text, "  %s: {action: allow}\n", toolAllowed)
	fmt.Fprintf(&text, "  %s: {rate_limit: {max: 1000000000, window: 60}}\n", toolLimited)
	fmt.Fprintf(&text, "  %s: {action: deny, reason: this tool is closed}\n", toolDenied)
	const patterns = 12
	for i := range policyRules - patterns - 3 {
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
