package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const accessPolicy = `version: 1
name: files
default: allow
tools:
  raed: {action: deny}
  secret: {action: hide}
rules:
  - {name: docs, match: {tool: write_file}, when: 'path.within(args.path, "/docs")', action: allow, otherwise: {action: deny, reason: only docs}}
  - {name: forced, match: {tool: move}, when: args.force == true, action: deny}
  - {name: exact, match: {tool: odd}, forward: strict}
  - {name: slow, match: {tool: read}, rate_limit: {max: 3, window: 60}}
  - {name: developers, match: {tool: build, groups: developers}, action: deny}
`

const accessTools = `[{"name":"read","description":"Reads a file.","inputSchema":{"type":"object"}},
{"name":"write_file","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}},
{"name":"move","inputSchema":{"type":"object","properties":{"force":{"type":"boolean"}}}},
{"name":"build","description":"Reads the build.","inputSchema":{"type":"object"}},
{"name":"odd","inputSchema":{"type":"object","properties":{"to":{"type":"string","pattern":"^(?!x)"}}}},
{"name":"secret","inputSchema":{"type":"object"}},
{"name":"drop_database","description":"Permanently deletes the database.","inputSchema":{"type":"object"}}]`

// TestAccess_ShowsWhatOneCallerMayDo uses a server that has some tools for which the policy has no rule. `policy
// access` prints what callers may do with each tool, and `policy lint` reports parts of the policy that do not match
// the server's tools, both offline and with the running mesh.
func TestAccess_ShowsWhatOneCallerMayDo(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, accessTools)
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: accessPolicy})
	p := stack.Start(t, s)
	run := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{
			Args: append(args, "--config", s.Config, "--addr", p.GRPC), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
		})
	}
	eventually.Holds(t, "the list is in the catalog", func() bool { return strings.Contains(run("policy", "access").Stdout, "drop_database") })
	one := run("policy", "access", "--server", "raw")
	stack.CheckCommand(t, one, 0, squeeze(one.Stdout),
		"raw: 7 tools: 2 allowed, 1 limited, 3 depends, 1 hidden",
		"other methods that are not denied: -",
		"read limited default at most 3 in 1m0s per session",
		`write_file depends files/docs allow if path.within(args.path, "/docs")`,
		`files/docs.otherwise deny unless path.within(args.path, "/docs"); only docs`,
		"move depends files/forced deny if args.force == true\ndefault allow otherwise",
		"secret hidden files/tools.secret",
		"build allowed default",
	)
	developer := run("policy", "access", "--server", "raw", "--groups", "developers")
	stack.CheckCommand(t, developer, 0, squeeze(developer.Stdout), "build denied files/developers")
	holder := run("policy", "access", "--token", "agent")
	stack.CheckCommand(t, holder, 0, holder.Stdout, "subject ")
	stack.CheckCommand(t, run("policy", "access", "--token", "unknown"), 1, "")
	for _, lint := range []stack.CommandResult{run("policy", "lint", s.Policy), run("policy", "lint", "--live", s.Policy)} {
		stack.CheckCommand(t, lint, 1, lint.Stdout,
			`5:3: warning: tools.raed: no tool called "raed" was listed by raw; did you mean "read"?`,
			"error: rules[1].when: reads args.force, which not every call of raw/move has: the condition fails for the others; write args.?force.orValue(false)",
			"warning: rules[2].forward: refuses every call of raw/odd, because the accepted schema can't be used (raw/odd: a pattern in it is not a regular expression of RE2)",
			"3:10: warning: default: allows dangerous tools that no rule names: raw/drop_database",
		)
	}
}

// squeeze replaces each run of spaces with one space.
func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}
