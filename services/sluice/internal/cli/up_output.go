package cli

import (
	_ "embed"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// starterPolicy and agentsPolicy are the policies for the demo server and for the mesh's own agents. `up` uses them if
// no policy is configured.
var (
	//go:embed starter.yaml
	starterPolicy string
	//go:embed agents.yaml
	agentsPolicy string
)

// upOutput is the JSON that `up` prints about a started mesh.
type upOutput struct {
	Version string            `json:"version"`
	MCP     map[string]string `json:"mcp"`
	// All is the URL for all servers together.
	All      string   `json:"all"`
	GRPC     string   `json:"grpc"`
	Policies []string `json:"policies"`
	Tokens   string   `json:"tokens"`
	// Sandboxes contains the restrictions that the kernel enforces for stdio servers.
	Sandboxes map[string]sandbox.Report `json:"sandboxes,omitempty"`
	// Observed describes the parts of the policy that are in observe mode and therefore not enforced.
	Observed []string `json:"observed,omitempty"`
}

type startedMesh struct {
	// lookupAddrs contains the addresses at which commands look for the mesh.
	lookupAddrs addresses
	generated   []string
	// usesStarterPolicy is true if the starter policy is in force and unchanged.
	usesStarterPolicy bool
	sandboxes         map[string]sandbox.Report
	// observed describes the parts of the policy that are in observe mode and therefore not enforced, one per line.
	observed []string
}

// printStarted prints the addresses of the mesh and the generated tokens. If the starter policy is in force and
// commands can find their tokens, it also prints example commands.
func (t *tool) printStarted(f *config.File, w startedMesh) error {
	names, generated := slices.Sorted(maps.Keys(f.Servers)), w.generated
	if t.json() {
		at := upOutput{Version: app.Version(), All: mcpURL(f, ""), MCP: make(map[string]string), GRPC: f.GRPC, Tokens: filepath.Join(f.Path(f.Data), "tokens"), Sandboxes: w.sandboxes, Observed: w.observed}
		for _, name := range names {
			at.MCP[name] = mcpURL(f, name)
		}
		for _, p := range f.PolicyFiles() {
			at.Policies = append(at.Policies, f.Path(p))
		}
		return t.printLine(at)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nSluice %s is up.\n\n", app.Version())
	for _, name := range names {
		fmt.Fprintf(&b, "  MCP       %s\n", mcpURL(f, name))
	}
	if len(names) > 1 {
		fmt.Fprintf(&b, "  MCP       %s   (all servers: their tools are named <server>__<tool>)\n", mcpURL(f, ""))
	}
	fmt.Fprintf(&b, "  gRPC      %s\n", f.GRPC)
	for _, alike := range sandbox.GroupByReport(w.sandboxes) {
		fmt.Fprintf(&b, "  sandbox   %s: %s\n", strings.Join(alike.Names, ", "), alike.Report)
		if advice := alike.Report.Advice(); advice != "" {
			fmt.Fprintf(&b, "            for a stronger sandbox: %s\n", advice)
		}
	}
	if f.PoliciesInStore() {
		fmt.Fprintf(&b, "  policy    in the store   (%s changes it)\n", t.command("policy apply"))
	}
	for _, p := range f.PolicyFiles() {
		fmt.Fprintf(&b, "  policy    %s   (edit it: a valid change takes effect in about a second)\n", f.Path(p))
	}
	for _, line := range w.observed {
		fmt.Fprintf(&b, "  observed  %s\n", line)
	}
	if len(generated) > 0 {
		fmt.Fprintf(&b, "  tokens    %s   (%s)\n", filepath.Join(f.Path(f.Data), "tokens"), strings.Join(generated, ", "))
	}
	fmt.Fprintf(&b, "\nFor your MCP client:\n\n%s\n", clientConfig(f, names, generated))
	flags, _ := t.meshFlags()
	entry := t.stdioEntry(flags)
	if f.Listen != w.lookupAddrs.mcp {
		entry = strings.TrimSuffix(entry, "}") + fmt.Sprintf(`,"env":{"SLUICE_URL":%q}}`, f.MCPScheme()+"://"+f.Listen)
	}
	fmt.Fprintf(&b, "For a client that supports only stdio, all servers together:\n\n  {\"mcpServers\": {\"sluice\": %s}}\n\n", entry)
	if w.usesStarterPolicy && slices.Contains(generated, agentToken) && slices.Contains(generated, operatorToken) {
		b.WriteString(t.firstSteps(f, w.lookupAddrs))
	}
	if len(generated) > 0 {
		b.WriteString("\nAll programs of your user can read these tokens, including agents on this machine.\n")
	}
	if slices.Contains(generated, agentToken) {
		b.WriteString("The agent's token names no owner, so the holder of the operator's token may approve the agent's calls.\n")
	}
	b.WriteString("Rate limits are counted in memory, so a restart resets them.\nStop with Ctrl-C.\n\n")
	_, err := fmt.Fprint(t.out, b.String())
	return err
}

func (t *tool) firstSteps(f *config.File, found addresses) string {
	command := t.commandFor(f, found)
	var b strings.Builder
	b.WriteString("\nTry, in another terminal:\n\n")
	for _, step := range [][2]string{
		{"call demo list_notes", "runs"},
		{"call demo delete_note --arg id=1", "is denied, with a reason"},
		{"call demo create_note --arg title=a --arg body=b", "runs four times a minute"},
		{"approvals list", "lists calls that wait for a person, such as a refund"},
		{"decisions tail", "prints what happened, and why"},
		{"policy explain --server demo --tool delete_note", "says why policy denies a call"},
	} {
		fmt.Fprintf(&b, "  %s %-52s # %s\n", command, step[0], step[1])
	}
	return b.String()
}

type addresses struct{ mcp, grpc string }

// commandFor returns the beginning of a command line that finds this mesh: variables, program and flags.
func (t *tool) commandFor(f *config.File, found addresses) string {
	command := t.self
	if f.Listen != found.mcp {
		command = "SLUICE_URL=" + f.MCPScheme() + "://" + f.Listen + " " + command
	}
	if t.config != "" {
		command += " --config " + t.config
	}
	if t.data != "" {
		command += " --data " + t.data
	}
	if f.GRPC != found.grpc {
		command += " --addr " + f.GRPC
	}
	return command
}

// clientConfig returns a configuration for MCP clients. It contains the agent's token if `up` generated one, or a
// placeholder otherwise.
func clientConfig(f *config.File, names, generated []string) string {
	var entries []string
	token := "<your agent's token>"
	for _, t := range f.Auth.Tokens {
		if t.Role == agentToken && slices.Contains(generated, agentToken) {
			token = string(t.Token)
		}
	}
	for _, name := range names {
		entries = append(entries, fmt.Sprintf(`    %q: {"type": "http", "url": %q, "headers": {"Authorization": %q}}`,
			name, mcpURL(f, name), "Bearer "+token))
	}
	return "  {\"mcpServers\": {\n" + strings.Join(entries, ",\n") + "\n  }}\n"
}
