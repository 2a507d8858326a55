package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// cliMesh is a running mesh and its directory. Its configuration sets only addresses and the data directory.
type cliMesh struct{ *stack.Process }

func newCLIMesh(t *testing.T) cliMesh {
	t.Helper()
	return newCLIMeshIn(t, t.TempDir())
}

func newCLIMeshIn(t *testing.T, dir string) cliMesh {
	t.Helper()
	s := &stack.Stack{Dir: dir, Config: filepath.Join(dir, "sluice.yaml")}
	stack.WriteFile(t, s.Config, "listen: "+stack.FreeAddr(t)+"\ngrpc: "+stack.FreeAddr(t)+"\ndata: state\n")
	return cliMesh{stack.Start(t, s)}
}

// run runs the program in the mesh's directory, with its configuration.
func (d cliMesh) run(t *testing.T, args ...string) stack.CommandResult {
	t.Helper()
	return d.runCommand(t, stack.Command{Args: args})
}

func (d cliMesh) runCommand(t *testing.T, c stack.Command) stack.CommandResult {
	t.Helper()
	c.Dir, c.Env = d.Dir, append(c.Env, "SLUICE_CONFIG=sluice.yaml")
	return stack.Run(t, c)
}

func TestCLI_CallsTools(t *testing.T) {
	t.Parallel()
	d := newCLIMesh(t)
	tests := []struct {
		name         string
		args         []string
		stdin        string
		code         int
		stdout, errs string
	}{
		{"allowed", []string{"call", "demo", "list_notes"}, "", 0, `"title":"Welcome"`, ""},
		{"text as an argument", []string{"call", "demo", "get_note", "--arg", "id=note-1"}, "", 0, "Welcome", ""},
		{"all arguments as JSON", []string{"call", "demo", "list_notes", "--args", `{"offset":1,"limit":1}`}, "", 0, "note-2", ""},
		{"a number as an argument", []string{"call", "demo", "list_notes", "--arg", "limit=1"}, "", 0, `"total":3`, ""},
		{"arguments from standard input", []string{"call", "demo", "get_note", "--args", "-"}, `{"id": "note-3"}`, 0, "note-3", ""},
		{"the tool fails", []string{"call", "demo", "get_note", "--arg", "id=note-9"}, "", 1, "", `no note "note-9"`},
		{"denied", []string{"call", "demo", "delete_note", "--arg", "id=note-1"}, "", 1, "", "Denied by policy: notes are kept; ask a person to remove one\ndecision "},
		{"a server that does not exist", []string{"call", "nowhere", "list_notes"}, "", 1, "", `no server "nowhere" is configured here`},
		{"a tool missing", []string{"call", "demo"}, "", 2, "", "accepts 2 arg(s), received 1; see `sluice call --help`"},
		{"both ways of arguments", []string{"call", "demo", "get_note", "--arg", "id=1", "--args", "{}"}, "", 2, "", "--arg and --args can't be used together"},
		{"arguments that are not an object", []string{"call", "demo", "get_note", "--args", "[]"}, "", 2, "", "--args is not a JSON object"},
		{"an invalid tool name", []string{"call", "demo", "no tool"}, "", 1, "", "the tool's name is missing or breaks the grammar of tool names"},
		{"an argument without a value", []string{"call", "demo", "get_note", "--arg", "id"}, "", 2, "", `--arg must be NAME=VALUE, is "id"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ran := d.runCommand(t, stack.Command{Args: tt.args, Stdin: tt.stdin})
			stack.CheckCommand(t, ran, tt.code, ran.Stdout, tt.stdout)
			stack.CheckCommand(t, ran, tt.code, ran.Stderr, tt.errs)
			if (tt.code != 0) != (ran.Stdout == "") {
				t.Errorf("exit code %d with the output %q", ran.Code, ran.Stdout)
			}
		})
	}
	t.Run("denied, as JSON", func(t *testing.T) {
		ran := d.run(t, "call", "demo", "delete_note", "--arg", "id=note-1", "--output", "json")
		result := stack.DecodeOutput[npmtest.ToolResult](t, ran)
		if d := stack.DecisionOf(t, result); ran.Code != 1 || !result.IsError || d.Code != "denied_by_rule" {
			t.Errorf("exit code %d, %s", ran.Code, ran.Stdout)
		}
	})
	t.Run("every digit of a result, as JSON", func(t *testing.T) {
		ran := d.run(t, "call", "demo", "run_report", "--output", "json")
		stack.CheckCommand(t, ran, 0, ran.Stdout, `"structuredContent": {`)
		digits := regexp.MustCompile(`fingerprint(?:\\"|": ?)[: ]*(\d+)`).FindAllStringSubmatch(ran.Stdout, -1)
		if len(digits) != 2 || digits[0][1] != digits[1][1] {
			t.Errorf("the text and the structured content name the fingerprints %v", digits)
		}
	})
	t.Run("a loop in the shell reaches the limit", func(t *testing.T) {
		for range 4 {
			stack.CheckCommand(t, d.run(t, "call", "demo", "create_note", "--arg", "title=Milk"), 0, "")
		}
		fifth := d.run(t, "call", "demo", "create_note", "--arg", "title=Milk")
		stack.CheckCommand(t, fifth, 1, fifth.Stderr, "Rate limit reached: at most 4 calls in 1m0s for each run. Try again in ", "(rate_limited): sluice decisions show ")
	})
}

// Output that comes from servers is escaped, so that it can't control the terminal.
func TestCLI_EscapesControlCharactersOfServers(t *testing.T) {
	t.Parallel()
	const escape = `\u001b[2J\u0007`
	up := rawmcp.Start(t, `[{"name":"safe","description":"clears`+escape+`","inputSchema":{}},{"name":"danger","inputSchema":{}}]`)
	up.SetAnswer("safe", rawmcp.Result(`{"content":[{"type":"text","text":"one\n\ttwo`+escape+`"},{"type":"image","data":"AA=="}]}`))
	up.SetAnswer("danger", func(w http.ResponseWriter, _ *http.Request, id string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no%s"}}`, id, escape)
	})
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}, pin: \"off\"}", up.URL), Policy: stack.OpenPolicy})) // with pins, the tool's description would make it wait for approval
	sluice := func(args ...string) stack.CommandResult {
		t.Helper()
		return stack.Run(t, stack.Command{Args: args, Env: []string{"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + p.URL}})
	}
	ran := sluice("call", "raw", "safe")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "one\n    two\\u001b[2J\\u0007\n", `{"type":"image","data":"AA=="}`)
	failed := sluice("call", "raw", "danger")
	stack.CheckCommand(t, failed, 1, failed.Stderr, "no\\u001b[2J\\u0007")
	tools := sluice("tools", "raw")
	stack.CheckCommand(t, tools, 0, tools.Stdout, "clears\\u001b[2J\\u0007")
	asJSON := sluice("call", "raw", "safe", "--output", "json")
	stack.CheckCommand(t, asJSON, 0, asJSON.Stdout, escape)
}

// A token file may end with a newline, because editors add one.
func TestCLI_AcceptsTokenFilesWithANewline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "state", "tokens"), 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(dir, "state", "tokens", "agent"), stack.AgentToken+"\n")
	stack.WriteFile(t, filepath.Join(dir, "state", "tokens", "operator"), stack.OperatorToken+"\n")
	d := newCLIMeshIn(t, dir)
	stack.CheckCommand(t, d.run(t, "call", "demo", "list_notes"), 0, "")
	stack.CheckCommand(t, d.run(t, "status"), 0, "")
	if resp := stack.Connect(t, d.MCP("demo"), stack.AgentToken).Call("list_notes", "{}"); resp.IsError(t) {
		t.Errorf("with the token itself: %s", resp.Body)
	}
}

func TestCLI_ShowsStatusToolsAndDecisions(t *testing.T) {
	t.Parallel()
	d := newCLIMesh(t)
	stack.CheckCommand(t, d.run(t, "call", "demo", "list_notes"), 0, "")
	denied := d.run(t, "call", "demo", "delete_note", "--arg", "id=note-1")
	m := regexp.MustCompile(`decision (\S+) \(denied_by_rule\): sluice (decisions show \S+)\n`).FindStringSubmatch(denied.Stderr)
	if m == nil {
		t.Fatalf("no decision is named in %s", denied.Stderr)
	}

	t.Run("status", func(t *testing.T) {
		ran := d.run(t, "status")
		stack.CheckCommand(t, ran, 0, ran.Stdout, "ready           true", "role gateway    SERVING", "role ratelimit  SERVING", "server demo     http")
		s := stack.DecodeOutput[struct {
			Ready          bool
			PolicyRevision string
			Roles          []struct{ Role, Status string }
		}](t, d.run(t, "status", "--output", "json"))
		if !s.Ready || len(s.PolicyRevision) != 64 || len(s.Roles) != 6 || s.Roles[0].Role != "gateway" {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("tools", func(t *testing.T) {
		for _, args := range [][]string{{"tools"}, {"tools", "demo"}} {
			ran := d.run(t, args...)
			stack.CheckCommand(t, ran, 0, ran.Stdout, "SERVER  TOOL", "demo    list_notes ")
			if strings.Contains(ran.Stdout, "list_accounts") {
				t.Error("a tool that no rule knows is listed")
			}
		}
		tools := stack.DecodeOutput[[]struct{ Server, Name, Description string }](t, d.run(t, "tools", "--output", "json"))
		tools = slices.DeleteFunc(tools, func(t struct{ Server, Name, Description string }) bool { return t.Server == "agents" })
		if len(tools) != 7 || tools[6].Name != "sluice_approval_wait" || tools[0].Server != "demo" || tools[0].Description == "" {
			t.Errorf("tools %+v", tools)
		}
		ran := d.run(t, "tools", "nowhere")
		stack.CheckCommand(t, ran, 1, ran.Stderr, `no server "nowhere" is configured here`)
	})
	t.Run("decisions tail", func(t *testing.T) {
		ran := d.run(t, "decisions", "tail")
		stack.CheckCommand(t, ran, 0, ran.Stdout, "TIME ", "intent   local-agent  demo/list_notes", "starter/tools.delete_note  "+m[1])
		records := stack.DecodeOutput[[]recordFields](t, d.run(t, "decisions", "tail", "--output", "json"))
		want := []recordFields{{"intent", "list_notes", "", ""}, {"outcome", "list_notes", "", "ok"}, {"refusal", "delete_note", "denied_by_rule", ""}}
		if diff := cmp.Diff(want, records[:min(3, len(records))]); diff != "" {
			t.Errorf("the first records, which should be only those of the calls (-want +got):\n%s", diff)
		}
		if strings.Contains(ran.Stdout, "initialize") || strings.Contains(ran.Stdout, "tools/list") {
			t.Errorf("messages of the protocol are printed:\n%s", ran.Stdout)
		}
		protocol := d.run(t, "decisions", "tail", "--protocol")
		stack.CheckCommand(t, protocol, 0, protocol.Stdout, "intent   local-agent  demo/list_notes")
		for _, args := range [][]string{{"-n", "1", "--tool", "list_notes"}, {"--tool", "delete_note", "--server", "demo", "-n", "1"}} {
			if got := stack.DecodeOutput[[]recordFields](t, d.run(t, append([]string{"decisions", "tail", "--output", "json"}, args...)...)); len(got) != 1 {
				t.Errorf("%v gave %+v, want one record", args, got)
			}
		}
		if got := stack.DecodeOutput[[]recordFields](t, d.run(t, "decisions", "tail", "--output", "json", "--subject", "nobody")); len(got) != 0 {
			t.Errorf("records of nobody: %+v", got)
		}
	})
	t.Run("decisions show", func(t *testing.T) {
		ran := d.run(t, strings.Fields(m[2])...)
		stack.CheckCommand(t, ran, 0, ran.Stdout, "decision  "+m[1], "result    denied_by_rule", "reason    Denied by policy: notes are kept", "rule      starter/tools.delete_note", "--all prints every field")
		every := d.run(t, append(strings.Fields(m[2]), "--all")...)
		stack.CheckCommand(t, every, 0, every.Stdout, "kind ", "decisionId ", m[1], "Denied by policy: notes are kept", "argumentsHmac ")
		if got := stack.DecodeOutput[[]recordFields](t, d.run(t, "decisions", "show", m[1], "--output", "json")); len(got) != 1 || got[0].Code != "denied_by_rule" {
			t.Errorf("records %+v", got)
		}
		if prefix := d.run(t, "decisions", "show", m[1][:20]); prefix.Stdout != ran.Stdout {
			t.Errorf("the first characters of the id show %+v", prefix)
		}
		unknown := d.run(t, "decisions", "show", "never-was")
		stack.CheckCommand(t, unknown, 1, unknown.Stderr, "this gateway has no decision with that id")
	})
	t.Run("policy explain", func(t *testing.T) {
		ran := d.run(t, "policy", "explain", "--server", "demo", "--tool", "delete_note")
		stack.CheckCommand(t, ran, 0, ran.Stdout, "deny  denied_by_rule\n", "Rule starter/tools.delete_note matches", "reason: notes are kept", "\nrules that were considered: ")
		if n := strings.Count(ran.Stdout, "starter/tools."); n != 1 || strings.Count(ran.Stdout, "\n") > 5 {
			t.Errorf("%d rules are named without --all:\n%s", n, ran.Stdout)
		}
		all := d.run(t, "policy", "explain", "--server", "demo", "--tool", "delete_note", "--all")
		stack.CheckCommand(t, all, 0, all.Stdout, "Rule starter/tools.delete_note matches", "starter/tools.list_notes ")
		limited := d.run(t, "policy", "explain", "--server", "demo", "--tool", "create_note")
		stack.CheckCommand(t, limited, 0, limited.Stdout, "limit: 4 in 1m0s", "starter/tools.create_note")
		e := stack.DecodeOutput[struct {
			Decision struct{ Effect string }
			Why      string
		}](t, d.run(t, "policy", "explain", "--server", "demo", "--tool", "list_notes", "--output", "json"))
		if e.Decision.Effect != "EFFECT_ALLOW" || e.Why == "" {
			t.Errorf("explanation %+v", e)
		}
		elsewhere := d.run(t, "policy", "explain", "--server", "dmeo\x1b", "--tool", "list_notes")
		if elsewhere.Code == 0 && !strings.Contains(elsewhere.Stderr, "is configured") || strings.Contains(elsewhere.Stderr, "\x1b") {
			t.Errorf("a server that is not configured: %+v", elsewhere)
		}
		elsewhere = d.run(t, "policy", "explain", "--server", "dmeo", "--tool", "list_notes")
		stack.CheckCommand(t, elsewhere, 0, elsewhere.Stderr, `sluice: no server "dmeo" is configured, so the gateway refuses this call before policy decides; the servers are: agents, demo`)
		if ran.Stderr != "" {
			t.Errorf("for a configured server, standard error has %q", ran.Stderr)
		}
		missing := d.run(t, "policy", "explain", "--server", "demo")
		stack.CheckCommand(t, missing, 2, missing.Stderr, "at least one of the flags in the group [tool prompt uri method] is required")
		ran = d.run(t, "policy", "explain", "--server", "demo", "--method", "prompts/list")
		stack.CheckCommand(t, ran, 0, ran.Stdout, "deny  method_denied\n", `No rule with an action matches the method "prompts/list"`)
		ran = d.run(t, "policy", "explain", "--server", "demo", "--uri", "file:///a")
		stack.CheckCommand(t, ran, 0, ran.Stdout, "deny  method_denied\n", `No rule with an action matches the method "resources/read"`)
		ran = d.run(t, "policy", "explain", "--server", "demo", "--prompt", "p", "--method", "completion/complete")
		stack.CheckCommand(t, ran, 0, ran.Stdout, `No rule with an action matches the method "completion/complete"`)
	})
	t.Run("completion", func(t *testing.T) {
		for _, shell := range []string{"bash", "zsh", "fish"} {
			ran := d.run(t, "completion", shell)
			stack.CheckCommand(t, ran, 0, ran.Stdout, "sluice")
		}
		for _, args := range [][]string{{"call", ""}, {"tools", ""}, {"decisions", "tail", "--server", ""}} {
			ran := d.run(t, append([]string{"__complete"}, args...)...)
			stack.CheckCommand(t, ran, 0, ran.Stdout, "demo\n")
		}
	})
}

// recordFields contains the record fields that these tests read.
type recordFields struct {
	Kind, Tool, Code string
	ResultClass      string `json:"resultClass"`
}

func TestCLI_DecisionsTailFollows(t *testing.T) {
	t.Parallel()
	d := newCLIMesh(t)
	stack.CheckCommand(t, d.run(t, "call", "demo", "list_notes"), 0, "")
	cmd := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "decisions", "tail", "--follow", "-n", "1", "--output", "json", "--config", d.Config)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	next := func() recordFields {
		t.Helper()
		var r recordFields
		if !lines.Scan() {
			t.Fatalf("no more lines: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("a line is not one object: %v: %s", err, lines.Bytes())
		}
		return r
	}
	if got := next(); got != (recordFields{"outcome", "list_notes", "", "ok"}) {
		t.Errorf("the newest record is %+v", got)
	}
	stack.CheckCommand(t, d.run(t, "call", "demo", "delete_note", "--arg", "id=note-1"), 1, "")
	if got := next(); got != (recordFields{"refusal", "delete_note", "denied_by_rule", ""}) {
		t.Errorf("the record of the denied call is %+v", got)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		t.Errorf("one more line: %s", lines.Bytes())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C the command ended with %v", err)
	}
}

// The test runs, in a shell and unchanged, the commands that `sluice up` prints.
func TestUp_PrintedCommandsWork(t *testing.T) {
	t.Parallel()
	const ready = "Stop with Ctrl-C."
	p := stack.Launch(t, &stack.Stack{Dir: t.TempDir()}, "--listen", stack.FreeAddr(t), "--grpc", stack.FreeAddr(t))
	eventually.Holds(t, "sluice up says that it is up", func() bool { return strings.Contains(p.Stdout(), ready) })
	_, steps, ok := strings.Cut(p.Stdout(), "Try, in another terminal:\n")
	steps, _, _ = strings.Cut(steps, "\n\nWho ")
	if !ok {
		t.Fatalf("nothing to try in\n%s", p.Stdout())
	}
	tried := 0
	for line := range strings.Lines(steps) {
		step, what, ok := strings.Cut(strings.TrimSpace(line), " # ")
		if !ok {
			continue
		}
		tried++
		cmd := exec.CommandContext(t.Context(), "sh", "-c", step)
		cmd.Dir = p.Dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(stack.Program(t, "sluice"))+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput() // the exit code is checked below
		want := 0
		if strings.Contains(what, "is denied") {
			want = 1
		}
		if got := cmd.ProcessState.ExitCode(); got != want || want == 1 && !strings.Contains(string(out), "Denied by policy") {
			t.Errorf("%s: exit code %d, want %d\n%s", step, got, want, out)
		}
	}
	if tried != 6 {
		t.Errorf("%d commands to try, want 6:\n%s", tried, steps)
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestCLI_WorksWithoutAMesh(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sluice := func(args ...string) stack.CommandResult {
		t.Helper()
		return stack.Run(t, stack.Command{Args: args, Dir: dir})
	}
	if version := sluice("version"); version.Code != 0 || strings.TrimSpace(version.Stdout) == "" {
		t.Errorf("version: %+v", version)
	}
	if v := stack.DecodeOutput[struct{ Version string }](t, sluice("version", "--output", "json")); v.Version == "" {
		t.Error("version as JSON is empty")
	}
	t.Run("certs", func(t *testing.T) {
		ran := sluice("certs")
		stack.CheckCommand(t, ran, 0, ran.Stdout, "created a CA and created certificates for 6 roles in certs")
		ca := stack.ReadFile(t, filepath.Join(dir, "certs", "ca.pem"))
		for _, name := range []string{"ca-key", "gateway-key", "identity-key", "policy-key", "ratelimit-key", "approval-key", "wasmagent-key"} {
			if info, err := os.Stat(filepath.Join(dir, "certs", name+".pem")); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		again := sluice("certs")
		stack.CheckCommand(t, again, 0, again.Stdout, "used the existing CA and created certificates for 6 roles in certs")
		if stack.ReadFile(t, filepath.Join(dir, "certs", "ca.pem")) != ca {
			t.Error("the CA was replaced")
		}
	})
	t.Run("setup and token show", func(t *testing.T) {
		stack.CheckCommand(t, sluice("setup"), 0, "")
		ran := sluice("token", "show", "operator", "--data", filepath.Join("setup", "operator"))
		stack.CheckCommand(t, ran, 0, ran.Stdout, strings.TrimSpace(stack.ReadFile(t, filepath.Join(dir, "setup", "operator", "tokens", "operator"))))
		stack.CheckCommand(t, sluice("token", "show", "nobody"), 2, "")
	})
}
