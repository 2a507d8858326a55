package cli_test

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const goodPolicy = "version: 1\nname: good\ndefault: deny\ntools: {run: {action: allow}}\n"

const brokenPolicy = `version: 1
name: broken
defualt: deny
tools:
  delete: {action: forbid}
  pay: {action: allow, mode: "observe-only"}
  slow: {rate_limit: {max: ten, window: 60}}
`

// brokenPolicyErrors lists the errors in brokenPolicy, each with its position.
var brokenPolicyErrors = []string{
	`:3:1: unknown key "defualt"; did you mean "default"?`,
	`:5:20: tools.delete.action: unknown action "forbid"; write deny`,
	`:6:30: tools.pay.mode: unknown mode "observe-only"; write observe, or remove it to enforce`,
	`:7:28: tools.slow.rate_limit.max: wanted a whole number, found text "ten"`,
}

// configurationText returns a valid configuration after replacing the strings in oldnew.
func configurationText(oldnew ...string) string {
	return strings.NewReplacer(oldnew...).Replace(`listen: 127.0.0.1:0
grpc: 127.0.0.1:0
data: data
policies: [policy.yaml]
auth: {tokens: [{name: agent, token: "` + stack.AgentToken + `", role: agent}]}
servers: {raw: {http: {url: "http://127.0.0.1:1/mcp"}}}
`)
}

// `config check` and `up` report each error in a configuration with its position and with what to do. The output
// contains no secret.
func TestConfig_InvalidConfigurationsAreReportedWithPosition(t *testing.T) {
	t.Parallel()
	const role = "role: agent"
	tests := []struct {
		name, config string
		want         []string
	}{
		{"an unknown key", configurationText("listen:", "lisen:"), []string{`sluice: sluice.yaml:1:1: unknown key "lisen"; did you mean "listen"?`}},
		{"an unknown key, deep inside", configurationText("url:", "uri:"), []string{`sluice.yaml:6:24: servers.raw.http: unknown key "uri"; did you mean "url"?`}},
		{"a wrong type", configurationText("listen: 127.0.0.1:0", "listen: [1]"), []string{"sluice.yaml:1:1: listen: wanted text, found a list"}},
		{"a wrong duration", configurationText("data: data", "data: data\nsession: {idle: soon}"), []string{`session.idle: wanted a duration such as "30s", found text "soon"; units are ms, s, m and h`}},
		{"several at once", configurationText("data: data", "data: data\njournal: {sync: sometimes}\ntelemetry: {sample: 2}"), []string{
			`sluice.yaml:4:17: journal.sync: "sometimes" is not one of never, always`, "sluice.yaml:5:21: telemetry.sample: 2 is not between 0 and 1",
		}},
		{"no YAML", configurationText("policies: [policy.yaml]", "policies: [policy.yaml"), []string{"sluice.yaml:", "is not YAML: "}},
		{"a policy that is missing", configurationText("policy.yaml", "nowhere.yaml"), []string{"nowhere.yaml does not exist: name a file or a folder with policy documents"}},
		{"a broken policy", configurationText("policy.yaml", "broken.yaml"), brokenPolicyErrors},
		{"a short token", configurationText(stack.AgentToken, "hunter2hunter2"), []string{"auth.tokens[0] (agent): the token has 14 characters, fewer than 32: make one with `openssl rand -hex 32`"}},
		{"a sample token", configurationText(stack.AgentToken, "change-me-change-me-change-me-change-me"), []string{"auth.tokens[0] (agent): the token is a publicly known sample: make one with `openssl rand -hex 32`"}},
		{"two tokens of one text", configurationText("role: agent}", `role: agent}, {name: twin, token: "`+stack.AgentToken+`", role: viewer}`), []string{`auth.tokens: tokens "agent" and "twin" have the same text`}},
		{"the hash of a sample", configurationText(`token: "`+stack.AgentToken+`"`, "sha256: 3eb1bd439947eb762998e566ccc2e099c791118b2f40579cc4f7da2b5061b7f9"), []string{`auth.tokens: token "agent" is a publicly known sample: make one with ` + "`openssl rand -hex 32`"}},
		{"a token from nowhere", configurationText(stack.AgentToken, "${env:NO_SUCH_TOKEN}"), []string{"auth.tokens[0] (agent): the environment variable NO_SUCH_TOKEN is not set"}},
		{"a role that is none", configurationText(role, "role: root"), []string{`auth.tokens[0].role: "root" is not one of agent, operator, approver, viewer`}},
		{"two transports", configurationText("{http:", "{stdio: {command: [cat]}, http:"), []string{"servers.raw: set exactly one of http, stdio and grpc"}},
		{"what this version does not do", configurationText("data: data", "data: data\nstores: {ratelimit: memory}"), []string{`stores: "ratelimit" is not offered in this version; remove it: limits are kept in memory`}},
		{"certificates that are missing", configurationText("data: data", "data: data\ntls: {dir: nowhere}"), []string{"nowhere/ca.pem: no such file or directory (make it with `sluice certs --dir "}},
		{"gRPC in the clear beyond this machine", configurationText("grpc: 127.0.0.1:0", "grpc: 0.0.0.0:0"), []string{"gRPC without TLS is served on loopback only: set tls.dir, or set grpc to an address on 127.0.0.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := stack.WriteFolder(t, map[string]string{"sluice.yaml": tt.config, "policy.yaml": goodPolicy, "broken.yaml": brokenPolicy})
			for _, command := range [][]string{{"up"}, {"config", "check"}} {
				ran := stack.Run(t, stack.Command{Args: append(command, "--config", "sluice.yaml"), Dir: dir})
				stack.CheckCommand(t, ran, 1, ran.Stderr, tt.want...)
				for _, secret := range []string{stack.AgentToken, "hunter2", "change-me"} {
					if strings.Contains(ran.Stdout+ran.Stderr, secret) {
						t.Errorf("%s prints a secret:\n%s%s", command, ran.Stdout, ran.Stderr)
					}
				}
			}
		})
	}
}

func TestConfigCheck_DescribesTheConfiguration(t *testing.T) {
	t.Parallel()
	dir := stack.WriteFolder(t, map[string]string{"sluice.yaml": configurationText(), "policy.yaml": goodPolicy})
	ran := stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", "sluice.yaml"}, Dir: dir})
	stack.CheckCommand(t, ran, 0, ran.Stdout, "journal.sync  never", "token         agent (agent)", "server        raw", "policy        policy.yaml")
	c := stack.DecodeOutput[struct {
		Listen          string
		Tokens, Servers []string
	}](t, stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", "sluice.yaml", "-o", "json"}, Dir: dir}))
	if c.Listen != "127.0.0.1:0" || len(c.Tokens) != 1 || len(c.Servers) != 1 {
		t.Errorf("checked %+v", c)
	}
}

func TestCLI_InvalidCommandLinesAreReported(t *testing.T) {
	t.Parallel()
	dir := stack.WriteFolder(t, map[string]string{
		"good.yaml": goodPolicy, "twin.yaml": goodPolicy, "broken.yaml": brokenPolicy,
		"distributed.yaml": configurationText("data: data", "data: data\nroles: {policy: {listen: \"127.0.0.1:0\"}}", "policy.yaml", "good.yaml"),
		"nocerts.yaml":     configurationText("data: data", "data: data\ntls: {dir: nowhere}\nroles: {policy: {listen: \"127.0.0.1:0\"}}", "policy.yaml", "good.yaml"),
	})
	tests := []struct {
		name, program string
		args          []string
		code          int
		want          string
	}{
		{"a command that is none", "sluice", []string{"stauts"}, 2, `sluice: unknown command "stauts" for "sluice"; did you mean "status"?`},
		{"a command like none", "sluice", []string{"frobnicate"}, 2, "sluice: unknown command \"frobnicate\" for \"sluice\"; see `sluice --help`"},
		{"a command that is none, deeper", "sluice", []string{"decisions", "lists"}, 2, `unknown command "lists" for "sluice decisions"`},
		{"a flag that is none", "sluice", []string{"status", "--verbose"}, 2, "sluice: unknown flag: --verbose; see `sluice status --help`"},
		{"a flag that needs a number", "sluice", []string{"decisions", "tail", "-n", "many"}, 2, `invalid argument "many" for "-n, --lines" flag`},
		{"an output that is none", "sluice", []string{"status", "-o", "yaml"}, 2, `--output must be table or json, is "yaml"`},
		{"an argument too many", "sluice", []string{"up", "now"}, 2, "see `sluice up --help`"},
		{"a file that is missing", "sluice", []string{"up", "--config", "nowhere.yaml"}, 1, "sluice: the configuration nowhere.yaml does not exist: name another with --config"},
		{"a mesh that is not there", "sluice", []string{"status", "--data", "nowhere"}, 1, "no operator token: "},
		{"nothing to lint", "sluice", []string{"policy", "lint"}, 2, "requires at least 1 arg(s)"},
		{"a policy that is missing", "sluice", []string{"policy", "lint", "nowhere.yaml"}, 1, "sluice: the policy nowhere.yaml does not exist: name a file or a folder with policy documents"},
		{"distributed roles, started as one", "sluice", []string{"up", "--config", "distributed.yaml"}, 1, "`roles`, which is for roles in separate processes: start each role by its own program, or remove `roles` to run them in one process"},
		{"a role without certificates", "policy", []string{"--config", "distributed.yaml"}, 1, "policy: tls.dir is not set: roles in separate processes need certificates; make them with `sluice certs`"},
		{"a role whose certificates are missing", "policy", []string{"--config", "nocerts.yaml"}, 1, "nowhere/ca.pem: no such file or directory (make it with `sluice certs --dir "},
		{"people without certificates", "sluice", []string{"status", "--config", "distributed.yaml"}, 1, "set tls.dir to the folder with ca.pem"},
		{"a role's flag that is none", "policy", []string{"--verbose"}, 2, "flag provided but not defined: -verbose"},
		{"a role's argument", "policy", []string{"now"}, 2, `policy: "now" is not understood; see policy --help`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ran := stack.Run(t, stack.Command{Program: tt.program, Args: tt.args, Dir: dir, Env: []string{tokenVariable(tt.name)}})
			stack.CheckCommand(t, ran, tt.code, ran.Stderr, tt.want)
			if ran.Stdout != "" {
				t.Errorf("standard output has %q", ran.Stdout)
			}
		})
	}
}

// tokenVariable returns the setting of the environment variable SLUICE_TOKEN for a test case. The value is empty,
// except in the case that needs an operator.
func tokenVariable(name string) string {
	if name == "people without certificates" {
		return "SLUICE_TOKEN=" + stack.OperatorToken
	}
	return "SLUICE_TOKEN="
}

func TestPolicyLint_ReportsErrorsWithPosition(t *testing.T) {
	t.Parallel()
	dir := stack.WriteFolder(t, map[string]string{"good.yaml": goodPolicy, "twin.yaml": goodPolicy, "broken.yaml": brokenPolicy})
	lint := func(args ...string) stack.CommandResult {
		t.Helper()
		return stack.Run(t, stack.Command{Args: append([]string{"policy", "lint"}, args...), Dir: dir})
	}
	stack.CheckCommand(t, lint("good.yaml"), 0, lint("good.yaml").Stdout, "1 document(s) load")
	ran := lint("broken.yaml")
	for _, f := range brokenPolicyErrors {
		place, text, _ := strings.Cut(f, ": ")
		stack.CheckCommand(t, ran, 1, ran.Stdout, "broken.yaml"+place+": error: "+text)
	}
	twins := lint("good.yaml", "twin.yaml")
	stack.CheckCommand(t, twins, 1, twins.Stdout, `twin.yaml:2:7: error: name: another document has the name "good": good.yaml; give each document a different name`)
	type finding struct {
		Path         string
		Line, Column int
	}
	want := []finding{{"broken.yaml", 3, 1}, {"broken.yaml", 5, 20}, {"broken.yaml", 6, 30}, {"broken.yaml", 7, 28}}
	if diff := cmp.Diff(want, stack.DecodeOutput[[]finding](t, lint("broken.yaml", "-o", "json"))); diff != "" {
		t.Errorf("findings as JSON (-want +got):\n%s", diff)
	}
}

func TestUp_AddressOrFolderInUseIsReported(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	taken := lis.Addr().String()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Policy: goodPolicy}))
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"the port of MCP", []string{"--data", "other", "--listen", taken}, "sluice: listen for MCP (the key `listen`, or --listen): listen tcp " + taken + ": bind: address already in use"},
		{"the port of gRPC", []string{"--data", "other", "--grpc", taken}, "sluice: listen for gRPC (set another address with the key `grpc` or with --grpc): listen tcp " + taken + ": bind: address already in use"},
		{"the data folder", nil, "data: the folder is in use by another process: stop it, or choose another folder with --data"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ran := stack.Run(t, stack.Command{Args: append([]string{"up", "--config", p.Config}, tt.args...), Dir: p.Dir})
			stack.CheckCommand(t, ran, 1, ran.Stderr, tt.want)
		})
	}
	if ran := runStatusCommand(t, p); ran.Code != 0 {
		t.Errorf("the mesh that was started first: %s%s", ran.Stdout, ran.Stderr)
	}
}

// runStatusCommand runs `sluice status` as the operator of a mesh with configured tokens.
func runStatusCommand(t *testing.T, p *stack.Process) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: []string{"status", "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
}

// If one server does not start, only calls to that server are affected.
func TestServers_OneThatDoesNotStartAffectsOnlyItsCalls(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Policy: stack.OpenPolicy, Servers: fmt.Sprintf(`  raw: {http: {url: %q}}
  away: {http: {url: "http://127.0.0.1:1/mcp"}}
  missing: {stdio: {command: [no-such-program]}}
  dying: {stdio: {command: [sh, -c, "echo the database is locked >&2; exit 3"]}}
`, up.URL)}))
	for server, c := range map[string]struct{ told, log string }{
		"away":    {"Not executed: the server can't be reached.", "connection refused"},
		"missing": {"Not executed: its program can't be started: there is no such file.", `find the program \"no-such-program\": it is in no folder of PATH`},
		"dying":   {"Not executed: it ended, exit status 3.", "the database is locked"},
	} {
		t.Run(server, func(t *testing.T) {
			ran := stack.Run(t, stack.Command{
				Args: []string{"call", server, "run", "--config", p.Config},
				Env:  []string{"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + p.URL},
			})
			stack.CheckCommand(t, ran, 1, ran.Stderr, c.told)
			eventually.Holds(t, "the log says why", func() bool { return strings.Contains(p.Stderr(), c.log) })
			if strings.Contains(ran.Stderr, c.log) {
				t.Errorf("the caller receives text that is only for the operator: %s", ran.Stderr)
			}
		})
	}
	if resp := stack.Connect(t, p.MCP("raw"), stack.AgentToken).Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("a call of the other server: %s", resp.Body)
	}
	ran := runStatusCommand(t, p)
	stack.CheckCommand(t, ran, 0, ran.Stdout)
	if !regexp.MustCompile(`(?m)^ready +true *$`).MatchString(ran.Stdout) {
		t.Errorf("the mesh is not ready: %s", ran.Stdout)
	}
}

// The policy file becomes invalid while the mesh is running. The old policy stays in force, and `sluice status` gives
// the reason. After the file is corrected, the new policy takes effect.
func TestPolicy_InvalidReloadKeepsTheOldPolicy(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: "version: 1\nname: first\ndefault: deny\ntools: {safe: {action: allow}}\n",
	}))
	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	says := func(fragment string) {
		t.Helper()
		eventually.Holds(t, "sluice status says "+fragment, func() bool {
			ran := runStatusCommand(t, p)
			if ran.Code != 0 {
				t.Fatalf("status: %s%s", ran.Stdout, ran.Stderr)
			}
			return strings.Contains(ran.Stdout, fragment)
		})
	}
	c.Call("safe", "{}") // so that the server is in the catalog, and only the documents change the revision
	before := runStatusCommand(t, p)
	stack.CheckCommand(t, before, 0, before.Stdout, "ready           true")
	if strings.Contains(before.Stdout, "rejected") {
		t.Errorf("a policy that loads is rejected:\n%s", before.Stdout)
	}

	stack.WriteFile(t, p.Policy, brokenPolicy)
	for _, f := range brokenPolicyErrors {
		says("policy.yaml" + f)
	}
	revision := func(ran stack.CommandResult) string {
		_, rest, _ := strings.Cut(ran.Stdout, "policy ")
		line, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		return line
	}
	if got := runStatusCommand(t, p); revision(got) != revision(before) || revision(got) == "" {
		t.Errorf("the revision was %q and is %q", revision(before), revision(got))
	}
	if resp := c.Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("under the old policy: %s", resp.Body)
	}
	if d := c.Call("delete", "{}").Decision(t); d.Code != "denied_by_default" {
		t.Errorf("under the old policy: %+v", d)
	}

	stack.WriteFile(t, p.Policy, "version: 1\nname: second\ndefault: deny\ntools: {safe: {action: deny, reason: no more}}\n")
	eventually.Holds(t, "the corrected policy is in force", func() bool { return c.Call("safe", "{}").Decision(t).Code == "denied_by_rule" })
	after := runStatusCommand(t, p)
	if strings.Contains(after.Stdout, "rejected") || revision(after) == revision(before) {
		t.Errorf("after the policy was corrected:\n%s", after.Stdout)
	}
}
