package catalog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// `catalog classify` classifies the tools of a server or of a tool list. It does not need a mesh.
func TestCatalogClassify_ClassifiesAServerOrAList(t *testing.T) {
	t.Parallel()
	lists := filepath.Join("..", "..", "policy", "internal", "classify", "testdata", "lists")
	type class struct {
		Name       string  `json:"name"`
		Category   string  `json:"category"`
		Risk       string  `json:"risk"`
		Confidence float64 `json:"confidence"`
		Evidence   []struct {
			Quote string `json:"quote"`
		} `json:"evidence"`
	}
	classesOf := func(args ...string) map[string]class {
		t.Helper()
		ran := stack.Run(t, stack.Command{Args: append([]string{"catalog", "classify", "--output", "json", "--server"}, args...)})
		byName := make(map[string]class)
		for _, c := range stack.DecodeOutput[[]class](t, ran) {
			byName[c.Name] = c
		}
		return byName
	}
	flow := classesOf("claude-flow", "--file", filepath.Join(lists, "claude-flow.json"))
	for name, want := range map[string][2]string{
		"wasm_agent_export": {"Write", "Medium"}, "wasm_agent_todos": {"Read", "Low"}, "wasm_agent_is_stopped": {"Read", "Low"},
		"wasm_agent_terminate": {"Destructive", "Critical"},
	} {
		got := flow[name]
		if got.Category != want[0] || got.Risk != want[1] || len(got.Evidence) == 0 || got.Evidence[0].Quote == "" {
			t.Errorf("%s is %+v, want %v", name, got, want)
		}
	}
	if len(flow) != 353 {
		t.Errorf("%d tools", len(flow))
	}
	demo := classesOf("demo", "--run", "--", stack.Program(t, "sluice"), "demo-server", "--stdio")
	if demo["delete_note"].Category != "Destructive" || demo["list_notes"].Category != "Read" {
		t.Errorf("the demo server's tools are %v", demo)
	}
}

// A policy from `policy suggest` loads unchanged. Under this policy, calls to tools that read are allowed, and calls to
// tools that delete need approval.
func TestPolicySuggest_LoadsUnchanged(t *testing.T) {
	t.Parallel()
	ran := stack.Run(t, stack.Command{Args: []string{"policy", "suggest", "--server", "raw", "--file", "-"}, Stdin: `[
		{"name":"safe","description":"Get what is safe."},{"name":"pay","description":"Pay somebody."}]`})
	if ran.Code != 0 {
		t.Fatalf("%+v", ran)
	}
	a := rawmesh.StartDistributed(t, ran.Stdout, "approvals: {hold: 1s}")
	c := a.Connect(t)
	if resp := c.Call("safe", `{}`); resp.IsError(t) {
		t.Errorf("the tool that reads: %s", resp.Body)
	}
	if code := c.Call("pay", `{}`).Decision(t).Code; code != "approval_pending" {
		t.Errorf("the tool that pays: %q", code)
	}
	if code := c.Call("other", `{}`).Decision(t).Code; code != "tool_unknown" && code != "denied_by_default" {
		t.Errorf("a tool that the policy does not name: %q", code)
	}
}

// `policy suggest --used` returns a policy that contains only the tools that were called. If the rule of a tool has a
// rate limit, the limit allows at least the highest number of calls that one session made in a minute.
func TestPolicySuggest_UsedNamesOnlyCalledTools(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, "["+toolDefinition("get_note", "Gets a note.")+","+toolDefinition("add_note", "Adds a note.")+","+toolDefinition("delete_note", "Deletes a note.")+"]")
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: "version: 1\nname: open\ndefault: allow\n", GRPC: stack.FreeAddr(t),
	}))
	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	for range 35 {
		if resp := c.Call("add_note", `{}`); resp.IsError(t) {
			t.Fatalf("%s", resp.Body)
		}
	}
	suggest := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{
			Args: append([]string{"policy", "suggest", "--server", "raw", "--config", p.Config, "--used"}, args...), Dir: p.Dir, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
		})
	}
	eventually.Holds(t, "the gateway has listed the server", func() bool { return suggest().Code == 0 })
	ran := suggest()
	stack.CheckCommand(t, ran, 0, ran.Stdout, "\n  add_note: {action: allow, rate_limit: {max: 35, window: 60}}\n", "  # calls: 35, callers: 1, at most 35 in a minute, the last on ", "\n#   get_note: {action: allow}\n", "\n#   delete_note: {action: require_approval")
	if strings.Contains(ran.Stdout, "\n  get_note") || strings.Contains(ran.Stdout, "\n  delete_note") {
		t.Errorf("tools without calls are allowed:\n%s", ran.Stdout)
	}
	stack.CheckCommand(t, suggest("--file", "x"), 2, "")

	since := time.Now()
	if resp := c.Call("get_note", `{}`); resp.IsError(t) {
		t.Fatalf("%s", resp.Body)
	}
	for ago, want := range map[string][]string{
		since.Format(time.RFC3339Nano): {"\n  get_note: {action: allow}\n", "\n#   add_note: {action: allow, rate_limit: {max: 30, window: 60}}\n"},
		"1h":                           {"\n  get_note: {action: allow}\n", "\n  add_note: {action: allow, rate_limit: {max: 35, window: 60}}\n"},
	} {
		ran := suggest("--since", ago)
		stack.CheckCommand(t, ran, 0, ran.Stdout, want...)
	}
	wrong := suggest("--since", "yesterday")
	stack.CheckCommand(t, wrong, 2, wrong.Stderr, `--since "yesterday" is neither a time`)
}

func TestCatalogClassify_InvalidInputIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		about string
		args  []string
		code  int
		says  string
	}{
		{"no list", []string{"--server", "s", "--file", file("no.json", `{"x":1}`)}, 1, "no.json: this is not a list of tools: give the response to `tools/list`, its result, or the array in its result"},
		{"not JSON", []string{"--server", "s", "--file", file("cut.json", `[{"name":"a"}`)}, 1, "cut.json: this is not a list of tools"},
		{"two lists", []string{"--server", "s", "--file", file("two.json", `[] []`)}, 1, "more text follows the JSON value"},
		{"a name twice", []string{"--server", "s", "--file", file("twice.json", `{"tools":[{"name":"a"},{"name":"b"},{"name":"a"}]}`)}, 1, `tools[2]: the name "a" is already at tools[0]`},
		{"a key twice", []string{"--server", "s", "--file", file("key.json", `[{"name":"a","name":"b"}]`)}, 1, "duplicate"},
		{"no name", []string{"--server", "s", "--file", file("name.json", `{"result":{"tools":[{"title":"a"}]}}`)}, 1, "result.tools[0]: this is not the definition of a tool: it has no name"},
		{"no file", []string{"--server", "s", "--file", filepath.Join(dir, "nowhere.json")}, 1, "no such file"},
		{"no server", []string{"--file", "x"}, 2, `required flag(s) "server" not set`},
		{"no source", []string{"--server", "s"}, 2, "file run"},
		{"two sources", []string{"--server", "s", "--file", "x", "--run", "--", "y"}, 2, "file run"},
		{"no command", []string{"--server", "s", "--run"}, 2, "--run needs the command that starts the server"},
		{"a command alone", []string{"--server", "s", "--file", "x", "y"}, 2, `"y" is only allowed with --run`},
		{"no program", []string{"--server", "s", "--run", "--", "no-such-program"}, 1, "start no-such-program"},
		{"a program that is no server", []string{"--server", "s", "--run", "--", "sh", "-c", "echo oops >&2; exit 3"}, 1, "initialize: the server did not answer"},
		{"what it said", []string{"--server", "s", "--run", "--", "sh", "-c", "echo oops >&2; exit 3"}, 1, "oops"},
	} {
		ran := stack.Run(t, stack.Command{Args: append([]string{"catalog", "classify"}, test.args...)})
		if ran.Code != test.code || !strings.Contains(ran.Stderr, test.says) {
			t.Errorf("%s: exit code %d and %q, want %d and %q", test.about, ran.Code, ran.Stderr, test.code, test.says)
		}
	}
	ran := stack.Run(t, stack.Command{Args: []string{"catalog", "classify", "--server", "s", "--file", "-", "-o", "json"}, Stdin: "[]"})
	if ran.Code != 0 || strings.TrimSpace(ran.Stdout) != "[]" {
		t.Errorf("an empty list: %+v", ran)
	}
}
