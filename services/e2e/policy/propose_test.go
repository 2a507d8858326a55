package policy_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// proposedCalls returns the calls that are made in a day with mode: observe. Each tool is called at most ten times, so
// that no rate limit depends on the speed of the machine. site is the URL of a website.
func proposedCalls(root, site string) (out []dayCall) {
	add := func(server, tool string, arguments ...string) {
		for _, one := range arguments {
			out = append(out, dayCall{server: server, tool: tool, args: one})
		}
	}
	file := func(name string) string { return filepath.Join(root, "project", name) }
	path := func(names ...string) (all []string) {
		for _, name := range names {
			all = append(all, dayJSON("path", file(name)))
		}
		return all
	}
	add("files", "create_directory", path("drafts", "drafts/old", "notes")...)
	add("files", "list_directory", path("", "drafts", "no-such-folder")...)
	add("files", "read_text_file", path("plan.md", "notes.md", "drafts/../plan.md")...)
	add("files", "read_text_file", dayJSON("path", file("plan.md"), "head", 2), dayJSON("path", file("notes.md"), "head", 10))
	add("files", "read_multiple_files", dayJSON("paths", []string{file("plan.md"), file("notes.md")}), dayJSON("paths", []string{file("plan.md")}))
	add("files", "search_files", dayJSON("path", file(""), "pattern", "*.md"), dayJSON("path", file("drafts"), "pattern", "Größe*"))
	add("memory", "read_graph", `{}`, `{}`)
	add("memory", "search_nodes", `{"query":"note"}`, `{"query":"Montag"}`, `{"query":"木曜日"}`)
	add("memory", "open_nodes", `{"names":["a","b"]}`, `{"names":["a"]}`, `{"names":["b"]}`, `{"names":["a","b"]}`)
	add("everything", "get-sum", `{"a":1,"b":2.5}`, `{"a":100,"b":0.1}`, `{"a":1e1,"b":7}`)
	add("everything", "echo", `{"message":"one"}`, `{"message":"zwei"}`)
	add("everything", "get-annotated-message", slices.Repeat([]string{`{"messageType":"success","includeImage":false}`, `{"messageType":"error"}`}, 3)...)
	add("everything", "gzip-file-as-resource", slices.Repeat([]string{dayJSON("name", "a.gz", "data", site+"/a.txt", "outputType", "resource")}, 3)...)
	add("thinking", "sequentialthinking",
		`{"thought":"first","thoughtNumber":1,"totalThoughts":2,"nextThoughtNeeded":true}`, `{"thought":"last","thoughtNumber":2,"totalThoughts":2,"nextThoughtNeeded":false}`)
	add("claude-flow", "wasm_agent_list", `{}`)
	add("claude-flow", "wasm_agent_is_stopped", slices.Repeat([]string{`{"agentId":"wasm-agent-1"}`}, 3)...)
	return out
}

// neverFreed returns observed calls to tools that a proposed policy never allows without an approval. The calls refer
// only to entities and files that do not exist.
func neverFreed(root string) []dayCall {
	return []dayCall{
		{server: "memory", tool: "delete_entities", args: `{"entityNames":["no such entity"]}`},
		{server: "files", tool: "write_file", args: dayJSON("path", filepath.Join(root, "project", "new.md"), "content", "text")},
	}
}

// proposalAttacks returns calls that were not observed and that a proposed policy must not allow. The keys describe the
// calls.
func proposalAttacks(root, site string) map[string]dayCall {
	project := filepath.Join(root, "project")
	read := func(path string) dayCall {
		return dayCall{server: "files", tool: "read_text_file", args: dayJSON("path", path)}
	}
	gzip := func(url string) dayCall {
		return dayCall{server: "everything", tool: "gzip-file-as-resource", args: dayJSON("name", "a.gz", "data", url, "outputType", "resource")}
	}
	return map[string]dayCall{
		"a path outside of the folder":   read("/etc/passwd"),
		"another folder of the server":   read(filepath.Join(root, "private/salaries.csv")),
		"a way up":                       read(project + "/../private/salaries.csv"),
		"an encoded way up":              read(project + "/%2e%2e/private/salaries.csv"),
		"a folder with a longer name":    read(project + "-2/a.md"),
		"the home folder":                read("~/.ssh/id_rsa"),
		"a list instead of a path":       {server: "files", tool: "read_text_file", args: dayJSON("path", []string{project + "/plan.md"})},
		"no path":                        {server: "files", tool: "list_directory", args: `{}`},
		"one path of two outside":        {server: "files", tool: "read_multiple_files", args: dayJSON("paths", []string{project + "/plan.md", "/etc/passwd"})},
		"an object instead of a list":    {server: "files", tool: "read_multiple_files", args: dayJSON("paths", map[string]string{project + "/plan.md": "/etc/passwd"})},
		"a folder to create outside":     {server: "files", tool: "create_directory", args: dayJSON("path", filepath.Join(root, "private/x"))},
		"an extra argument":              {server: "files", tool: "list_directory", args: dayJSON("path", project, "recursive", true)},
		"an argument of the schema":      {server: "files", tool: "read_text_file", args: dayJSON("path", project+"/plan.md", "tail", 1)},
		"another spelling of a name":     {server: "files", tool: "read_text_file", args: dayJSON("path", project+"/plan.md", "Path", "/etc/passwd")},
		"another host":                   gzip("https://evil.example/a.txt"),
		"another host behind a user":     gzip(strings.Replace(site, "http://", "http://evil.example@", 1) + "/a.txt"),
		"another port":                   gzip("http://127.0.0.1:1/a.txt"),
		"another scheme":                 gzip("data:text/plain;base64,YQ=="),
		"a number above":                 {server: "everything", tool: "get-sum", args: `{"a":100.01,"b":1}`},
		"a number below":                 {server: "everything", tool: "get-sum", args: `{"a":-1,"b":1}`},
		"a text instead of a number":     {server: "everything", tool: "get-sum", args: `{"a":"1","b":1}`},
		"another text":                   {server: "everything", tool: "get-annotated-message", args: `{"messageType":"debug"}`},
		"the other boolean":              {server: "everything", tool: "get-annotated-message", args: `{"messageType":"error","includeImage":true}`},
		"a number instead of a text":     {server: "everything", tool: "echo", args: `{"message":7}`},
		"arguments where there was none": {server: "memory", tool: "read_graph", args: `{"depth":9}`},
		"another agent":                  {server: "claude-flow", tool: "wasm_agent_is_stopped", args: `{"agentId":"wasm-agent-2"}`},
		"an unknown tool":                {server: "files", tool: "delete_file", args: dayJSON("path", project+"/plan.md")},
		"a tool that was not called":     {server: "everything", tool: "get-env", args: `{}`},
		"a destructive tool, not called": {server: "memory", tool: "delete_relations", args: `{"relations":[]}`},
	}
}

// startProposedDay starts the mesh with the five servers and a policy that denies everything. All servers have mode:
// observe and record the arguments of calls.
func startProposedDay(t *testing.T) *day {
	t.Helper()
	dir := writeProject(t)
	servers := strings.ReplaceAll(strings.ReplaceAll(dayServers(t, dir), "pin: review, ", ""), "stdio: {", "record: {arguments: redacted}, stdio: {")
	d := &day{root: dir}
	d.Stack = stack.WriteConfig(t, stack.Options{Servers: servers, Tokens: dayTokens(), Extra: "approvals: {hold: 0s, max_pending: 1000}"})
	if err := os.Mkdir(filepath.Join(d.Dir, "policies"), 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(d.Dir, "policies", "base.yaml"), "{version: 1, default: deny}\n")
	stack.ReplaceInFile(t, d.Config, "policies: [policy.yaml]", "policies: [policies/]")
	d.process = stack.Start(t, d.Stack)
	eventually.Within(t, 3*time.Minute, "the catalog has all servers", func() bool {
		listed := d.sluice(t, "catalog", "servers").Stdout
		return !slices.ContainsFunc(proposedServers(), func(server string) bool { return !strings.Contains(listed, "\n"+server+" ") })
	})
	// The classifier can't tell what the tool does, so an operator sets the tool's class.
	d.sluice(t, "catalog", "override", "thinking", "sequentialthinking", "--category", "read", "--risk", "low", "--reason", "it only thinks")
	return d
}

func proposedServers() []string { return slices.Sorted(maps.Keys(dayPolicies(""))) }

// make makes calls in new sessions, and returns the code of each.
func (d *day) make(t *testing.T, calls []dayCall) []string {
	t.Helper()
	a := &dayAgent{name: "coder", token: dayToken("coder"), calls: calls}
	clients := a.connect(t, d.Stack)
	out := make([]string, len(calls))
	for i, c := range calls {
		r, err := a.call(clients, c)
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		out[i] = r.code
	}
	return out
}

// A policy is proposed from the calls that are observed on five real servers in a day. It allows the same calls when
// they are made again. It refuses other calls or requires approval for them.
func TestPropose_ObservedDayBecomesAPolicy(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "text") }))
	t.Cleanup(site.Close)
	d := startProposedDay(t)
	calls, asked := proposedCalls(d.root, site.URL), neverFreed(d.root)
	for i, code := range d.make(t, append(slices.Clone(calls), asked...)) {
		if code != "" {
			t.Fatalf("call %d is refused while it is observed: %s", i, code)
		}
	}
	d.writeProposals(t)
	d.enforce(t)
	for i, code := range d.make(t, calls) {
		if code != "" {
			t.Errorf("the observed call %s is refused: %s", calls[i], code)
		}
	}
	for i, code := range d.make(t, asked) {
		if code != "approval_pending" && code != "approval_required" {
			t.Errorf("%s: the code is %q, want an approval", asked[i], code)
		}
	}
	d.checkAttacks(t, proposalAttacks(d.root, site.URL))
}

// writeProposals writes the proposed policy for each server to the policy directory, and checks these policies.
func (d *day) writeProposals(t *testing.T) {
	t.Helper()
	policies := filepath.Join(d.Dir, "policies")
	for _, server := range proposedServers() {
		ran := d.sluice(t, "policy", "propose", "--server", server, "--since", "24h")
		t.Logf("%s%s", ran.Stderr, ran.Stdout)
		stack.WriteFile(t, filepath.Join(policies, server+".yaml"), ran.Stdout)
	}
	d.sluice(t, "policy", "lint", policies)
	d.sluice(t, "policy", "lint", "--live", policies)
}

// checkAttacks checks that no attack is allowed.
func (d *day) checkAttacks(t *testing.T, attacks map[string]dayCall) {
	t.Helper()
	names := slices.Sorted(maps.Keys(attacks))
	list := make([]dayCall, len(names))
	for i, name := range names {
		list[i] = attacks[name]
	}
	refused := make(map[string]int)
	for i, code := range d.make(t, list) {
		refused[code]++
		if code == "" {
			t.Errorf("%s is allowed: %s", names[i], list[i])
		}
	}
	t.Logf("attacks by code: %v", refused)
}

const proposeTools = `[{"name":"get_note","description":"Get a note.","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}},
	{"name":"add_note","description":"Add a note.","inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}},
	{"name":"list_notes","description":"List the notes.","inputSchema":{"type":"object"}}]`

const proposePolicy = `version: 1
name: team
default: allow
rules:
  - {name: additions, match: {server: notes, tool: add_note}, action: require_approval}
  - {name: no-lists, match: {tool: list_notes}, action: deny}
`

// A policy proposal is based only on calls that were sent without a person's approval. If no arguments were recorded,
// the proposal sets no bounds on arguments, and allows only tools that read. Only operators can request a proposal.
func TestPropose_CountsOnlyCallsThatWereSentWithoutApproval(t *testing.T) {
	t.Parallel()
	raw := rawmcp.Start(t, proposeTools)
	s := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  notes: {http: {url: %[1]q}, record: {arguments: redacted}}\n  plain: {http: {url: %[1]q}}\n  idle: {http: {url: %[1]q}}", raw.URL),
		Policy:  proposePolicy, Extra: "approvals: {hold: 0s}",
	}))
	propose := func(token, server string, args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"policy", "propose", "--server", server, "--addr", s.GRPC}, args...), Dir: s.Dir, Env: []string{"SLUICE_TOKEN=" + token}})
	}
	makeNoteCalls(t, s)

	ran := propose(stack.OperatorToken, "notes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, `path.within(args.path, "/srv/notes")`, "calls: 2, callers: 1", "add_note: it was not called", "list_notes: it was not called", "forward: strict")
	stack.CheckCommand(t, ran, 0, ran.Stderr, "the document allows 2 of the 2 calls")
	type proposal struct {
		Server, Document string
		Allowed, Refused int
	}
	if got := stack.DecodeOutput[proposal](t, propose(stack.OperatorToken, "notes", "-o", "json")); got != (proposal{"notes", ran.Stdout, 2, 0}) {
		t.Errorf("as JSON: %+v", got)
	}
	ran = propose(stack.OperatorToken, "plain")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "no bounds: the arguments of 2 of 2 calls were not recorded", "  get_note:\n    action: allow\n    rate_limit", "  add_note: {action: require_approval")
	ran = propose(stack.OperatorToken, "idle")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "no call to a tool of idle was sent")
	for _, token := range []string{stack.ViewerToken, stack.AgentToken} {
		if ran := propose(token, "notes"); ran.Code == 0 || strings.Contains(ran.Stdout+ran.Stderr, "/srv/notes") {
			t.Errorf("another token proposes: %+v", ran)
		}
	}
}

// makeNoteCalls makes calls to the servers notes and plain. On notes, the calls are allowed, refused or approved. On
// plain, they are allowed or refused.
func makeNoteCalls(t *testing.T, s *stack.Process) {
	t.Helper()
	for _, server := range []string{"notes", "plain"} {
		c := stack.Connect(t, s.MCP(server), stack.AgentToken)
		for _, name := range []string{"a", "b"} {
			if d := c.Call("get_note", `{"path":"/srv/notes/`+name+`"}`).Decision(t); d.Code != "" {
				t.Fatalf("get_note: %+v", d)
			}
		}
		if d := c.Call("list_notes", `{}`).Decision(t); d.Code != "denied_by_rule" {
			t.Fatalf("list_notes: %+v", d)
		}
	}
	plain := stack.Connect(t, s.MCP("plain"), stack.AgentToken)
	if d := plain.Call("add_note", `{"path":"/srv/notes/a"}`).Decision(t); d.Code != "" {
		t.Fatalf("add_note: %+v", d)
	}
	callApproved(t, s, stack.Connect(t, s.MCP("notes"), stack.AgentToken), "add_note", `{"path":"/srv/notes/c"}`)
}

// callApproved makes a call that needs approval, lets the operator approve it, and makes it again.
func callApproved(t *testing.T, s *stack.Process, c *stack.Client, tool, arguments string) {
	t.Helper()
	waiting := c.Call(tool, arguments)
	var body struct {
		Result struct {
			Meta struct {
				Decision struct {
					Approval struct{ ID string } `json:"approval"`
				} `json:"dev.sluice/decision"`
			} `json:"_meta"`
		}
		Error struct {
			Data struct {
				Approval struct{ ID string } `json:"approval"`
			}
		}
	}
	if err := json.Unmarshal(waiting.Body, &body); err != nil {
		t.Fatal(err)
	}
	id := cmp.Or(body.Result.Meta.Decision.Approval.ID, body.Error.Data.Approval.ID)
	approve := stack.Run(t, stack.Command{Args: []string{"approvals", "approve", id, "--yes", "--addr", s.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	if approve.Code != 0 {
		t.Fatalf("approve %q: %s%s; the call was answered %s", id, approve.Stdout, approve.Stderr, waiting.Body)
	}
	if d := c.Call(tool, arguments).Decision(t); d.Code != "" {
		t.Fatalf("the approved call: %+v", d)
	}
}
