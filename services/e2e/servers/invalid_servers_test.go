package servers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// oddProgram is the name of the environment variable that makes this test binary run as a stdio server. When the
// server's tool "raw" is called, the server responds with the line in the call's arguments.
const oddProgram = "SLUICE_E2E_ODD_PROGRAM"

func runOddProgram() int {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Arguments struct{ Line string } }
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		answer := `{"jsonrpc":"2.0","id":ID,"result":{}}`
		switch m.Method {
		case "initialize":
			answer = `{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}}`
		case "tools/list":
			answer = `{"jsonrpc":"2.0","id":ID,"result":{"tools":[{"name":"raw","inputSchema":{"type":"object"}}]}}`
		case "tools/call":
			answer = strings.ReplaceAll(m.Params.Arguments.Line, "<E9>", "\xe9")
		}
		fmt.Println(strings.ReplaceAll(answer, "ID", string(m.ID)))
	}
	return 0
}

// oddServer is a Streamable HTTP server whose responses are set by the test. It counts tool calls.
type oddServer struct {
	*httptest.Server

	mu    sync.Mutex
	calls int
}

// startOddServer starts a server that calls the function answer for each POST request that has an id.
func startOddServer(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, method, id string)) *oddServer {
	t.Helper()
	s := new(oddServer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&m) != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if m.Method == "tools/call" {
			s.mu.Lock()
			s.calls++
			s.mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/json")
		if m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		answer(w, r, m.Method, string(m.ID))
	}))
	t.Cleanup(s.Close)
	return s
}

func writeResult(w http.ResponseWriter, id, result string) {
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

const (
	oddInitializeResult = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"odd","version":"1"}}`
	allowAll            = "version: 1\ndefault: allow\nrules: [{name: all, match: {method: \"*\"}, action: allow}]\n"
)

// runAsOperator runs a command as the operator of a mesh.
func runAsOperator(t *testing.T, p *stack.Process, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: args, Dir: t.TempDir(), Env: []string{
		"SLUICE_CONFIG=" + p.Config, "SLUICE_TOKEN=" + stack.OperatorToken, "SLUICE_AGENT_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + p.URL, "SLUICE_ADDR=" + p.GRPC,
	}})
}

// invalidTools lists tool definitions that MCP does not allow. Some of them have a null member and would be valid
// without this member. A client that validates lists rejects a whole list because of one such tool.
var invalidTools = []struct {
	name, tool string
	shown      bool // whether the tool is listed without its null members
}{
	{"no type", `"inputSchema":{}`, false},
	{"properties alone", `"inputSchema":{"properties":{}}`, false},
	{"a list as type", `"inputSchema":{"type":["object"]}`, false},
	{"a boolean property", `"inputSchema":{"type":"object","properties":{"x":true}}`, false},
	{"required as text", `"inputSchema":{"type":"object","required":"a"}`, false},
	{"a null title", `"title":null,"inputSchema":{"type":"object"}`, true},
	{"a null description", `"description":null,"inputSchema":{"type":"object"}`, true},
	{"null annotations", `"annotations":null,"inputSchema":{"type":"object"}`, true},
	{"a null outputSchema", `"outputSchema":null,"inputSchema":{"type":"object"}`, true},
	{"null _meta", `"_meta":null,"inputSchema":{"type":"object"}`, true},
	{"null icons", `"icons":null,"inputSchema":{"type":"object"}`, true},
	{"an outputSchema without type", `"outputSchema":{},"inputSchema":{"type":"object"}`, false},
	{"an outputSchema of an array", `"outputSchema":{"type":"array"},"inputSchema":{"type":"object"}`, false},
	{"a hint as text", `"annotations":{"readOnlyHint":"yes"},"inputSchema":{"type":"object"}`, false},
	{"a description as list", `"description":["x"],"inputSchema":{"type":"object"}`, false},
	{"a title as number", `"title":7,"inputSchema":{"type":"object"}`, false},
}

// Case U4. One of a server's tool definitions is invalid. A client that validates lists still receives the valid tools.
// The list, `catalog servers` and `doctor` report the invalid tool and the reason.
func TestDefinitions_InvalidToolRemovesNoOther(t *testing.T) {
	t.Parallel()
	good := rawmcp.Start(t, `[{"name":"good","inputSchema":{"type":"object"}}]`)
	servers, policy, tokens := fmt.Sprintf("  good: {http: {url: %q}}\n", good.URL), "version: 1\ndefault: deny\nrules:\n", ""
	for i, odd := range invalidTools {
		s := rawmcp.Start(t, `[{"name":"odd",`+odd.tool+`},{"name":"fine","inputSchema":{"type":"object"}}]`)
		servers += fmt.Sprintf("  s%d: {http: {url: %q}}\n", i, s.URL)
		policy += fmt.Sprintf("  - {name: r%d, match: {server: [good, s%d], agent: a%d}, action: allow}\n", i, i, i)
		tokens += fmt.Sprintf("    - {name: a%d, token: %q, agent: a%d, role: agent}\n", i, oddToken(i), i)
	}
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: servers, Policy: policy, Tokens: tokens}))
	var ran, found stack.CommandResult
	eventually.Within(t, 3*time.Minute, "the gateway has listed every server", func() bool {
		ran = runAsOperator(t, p, "catalog", "servers")
		return strings.Count(ran.Stdout, "it is not a valid tool") == len(invalidTools)-6
	})
	found = runAsOperator(t, p, "doctor")
	for i, odd := range invalidTools {
		t.Run(odd.name, func(t *testing.T) {
			list := npmtest.StartClient(t, p.URL+"/mcp", oddToken(i)).ListTools()
			if list.Error != nil {
				t.Fatalf("the client refuses the list: %v", list.Error)
			}
			server := fmt.Sprintf("s%d", i)
			want := []string{"good__good", server + "__fine"}
			if odd.shown {
				want = append(want, server+"__odd")
			}
			if names := list.ToolNames(t); !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want))) {
				t.Errorf("the client lists %q, want %q", names, want)
			}
			raw := string(stack.Connect(t, p.URL+"/mcp", oddToken(i)).Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).Body)
			if named := strings.Contains(raw, `"dev.sluice/leftOut":[{"server":"`+server+`","name":"odd","why":"it is not a valid tool: `); named == odd.shown && odd.name != unlistedInvalidTool {
				t.Errorf("the mesh lists %s", raw)
			}
			for command, out := range map[string]string{"catalog servers": ran.Stdout, "doctor": found.Stdout} {
				if named := strings.Contains(linesWith(out, server+" "), `tools "odd": it is not a valid tool`); named == odd.shown {
					t.Errorf("%s prints %s", command, out)
				}
			}
		})
	}
}

// unlistedInvalidTool is the invalid tool that the catalog can't store. The list does not mention this tool, because
// the policy service can't check whether the caller may see a tool that is not in the catalog.
const unlistedInvalidTool = "a description as list"

func oddToken(i int) string { return fmt.Sprintf("test-odd-agent-token-%02d-A1b2C3d4E5f6", i) }

// linesWith returns the lines of the parameter text that contain the string in the parameter with.
func linesWith(text, with string) (out string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, with) {
			out += line
		}
	}
	return out
}

// Case U4. An invalid prompt, resource or resource template does not remove the other entries from its list.
func TestDefinitions_InvalidPromptOrResourceRemovesNoOther(t *testing.T) {
	t.Parallel()
	lists := map[string]string{
		"prompts/list":             `{"prompts":[{"name":"a","title":null,"arguments":null},{"name":"b","arguments":{}},{"name":"c","arguments":[{}]}]}`,
		"resources/list":           `{"resources":[{"uri":"a:a","name":"a","mimeType":null,"annotations":null},{"uri":"a:b","name":"b","size":"3"},{"uri":"a:c"}]}`,
		"resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"a:a","name":"a","description":null},{"uriTemplate":"a:b","name":"b","title":7},{"name":"c"}]}`,
	}
	odd := startOddServer(t, func(w http.ResponseWriter, _ *http.Request, method, id string) {
		switch method {
		case "initialize":
			writeResult(w, id, oddInitializeResult)
		case "tools/list":
			writeResult(w, id, `{"tools":[]}`)
		default:
			writeResult(w, id, lists[method])
		}
	})
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  odd: {http: {url: %q}}", odd.URL), Policy: allowAll})
	c := stack.Connect(t, s.URL+"/mcp", stack.AgentToken)
	for method := range lists {
		var got struct {
			Result map[string]json.RawMessage
		}
		raw := c.Post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`).Body
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		meta := string(got.Result["_meta"])
		delete(got.Result, "_meta")
		for _, list := range got.Result {
			if text := string(list); !strings.Contains(text, `"odd: a"`) && !strings.Contains(text, `"odd__a"`) || strings.Contains(text, "null") || strings.Count(text, `"name"`) != 1 {
				t.Errorf("%s: %s", method, raw)
			}
		}
		if strings.Count(meta, `"server":"odd"`) != 2 || !strings.Contains(meta, "it is not valid in MCP: ") {
			t.Errorf("%s names the invalid entries as %s", method, meta)
		}
	}
}

// `status`, `doctor` and `catalog servers` report a list that can't be read completely, and tool names that can't be
// listed.
func TestStatus_UnreadableListsAreReported(t *testing.T) {
	t.Parallel()
	list := func(page string) string {
		s := startOddServer(t, func(w http.ResponseWriter, _ *http.Request, method, id string) {
			if method == "initialize" {
				writeResult(w, id, oddInitializeResult)
				return
			}
			writeResult(w, id, page)
		})
		return s.URL
	}
	const one = `{"name":"one","inputSchema":{"type":"object"}}`
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Policy: allowAll, Servers: fmt.Sprintf(
		"  round: {http: {url: %q}}\n  twice: {http: {url: %q}}\n  named: {http: {url: %q}}\n",
		list(`{"tools":[`+one+`],"nextCursor":"again"}`), list(`{"tools":[`+one+`,`+one+`]}`),
		list(`{"tools":[`+one+`,{"name":"a name","inputSchema":{"type":"object"}}]}`))}))
	for server, want := range map[string]string{
		"round": "the list of tools can't be read: page 2 repeats the cursor of an earlier page",
		"twice": `tools "one": its name occurs 2 times`,
		"named": `tools "a name": it can't be called`,
	} {
		for _, command := range [][]string{{"status"}, {"doctor"}, {"catalog", "servers"}} {
			var out string
			eventually.Holds(t, strings.Join(command, " ")+" reports the error of "+server, func() bool {
				out = runAsOperator(t, p, command...).Stdout
				return strings.Contains(linesWith(out, server), want)
			})
		}
	}
	if out := runAsOperator(t, p, "catalog", "list", "named").Stdout; strings.Contains(out, "a name") {
		t.Errorf("a tool that can't be called is in the catalog:\n%s", out)
	}
}

// Case U2. An unusable response over stdio ends its call at once. The result and `status` contain the reason, but
// nothing from the response. Invalid forms that existing servers send are accepted.
func TestStdio_UnusableResponseEndsItsCallAtOnce(t *testing.T) {
	t.Parallel()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  odd: {stdio: {command: [%q], env: {%s: \"1\"}}}", os.Args[0], oddProgram), Policy: allowAll,
	}))
	c := stack.Connect(t, p.MCP("odd"), stack.AgentToken)
	for name, tt := range map[string]struct{ line, want, status string }{
		"half of a pair":        {`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"secret text \ud83d"}]}}`, `secret text \ufffd`, ""},
		"no UTF-8":              {`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"secret text <E9>"}]}}`, "the message is not valid UTF-8", "not valid UTF-8"},
		"error: null":           {`{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":null}`, `"content":[]`, ""},
		"the id as text":        {`{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}`, `"content":[]`, ""},
		"an error with id null": {`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"secret text"}}`, "without the id of a request", "without the id of a request"},
		"a line that was cut":   {`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"secret text`, "the text ends inside the value", "ends inside the value"},
	} {
		t.Run(name, func(t *testing.T) {
			line, err := json.Marshal(tt.line)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			got := string(c.Post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"raw","arguments":{"line":` + string(line) + `}}}`).Body)
			if took := time.Since(begin); took > 30*time.Second || !strings.Contains(got, tt.want) || tt.status != "" && (!strings.Contains(got, "outcome_unknown") || strings.Contains(got, "secret text")) {
				t.Errorf("after %s: %s", took, got)
			}
			if out := runAsOperator(t, p, "status").Stdout; !strings.Contains(out, tt.status) || strings.Contains(out, "secret text") {
				t.Errorf("status prints\n%s", out)
			}
		})
	}
}

// Case U3. The server has lost its session and responds with status 400. The call is sent only once. The client's
// session ends with 404, and the client continues after it opens another session.
func TestSession_LostUpstreamSessionEndsWith404(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 410} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			era, sessions := 1, 0
			odd := startOddServer(t, func(w http.ResponseWriter, r *http.Request, method, id string) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case method == "initialize":
					sessions++
					w.Header().Set("Mcp-Session-Id", fmt.Sprintf("era%d-%d", era, sessions))
					writeResult(w, id, oddInitializeResult)
				case !strings.HasPrefix(r.Header.Get("Mcp-Session-Id"), fmt.Sprintf("era%d-", era)):
					w.WriteHeader(status)
					fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
				case method == "tools/list":
					writeResult(w, id, `{"tools":[{"name":"one","inputSchema":{"type":"object"}}]}`)
				default:
					writeResult(w, id, `{"content":[{"type":"text","text":"ran"}]}`)
				}
			})
			s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  odd: {http: {url: %q}}", odd.URL), Policy: allowAll})
			const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"one"}}`
			joint := strings.Replace(call, `"one"`, `"odd__one"`, 1)
			c, hub := stack.Connect(t, s.MCP("odd"), stack.AgentToken), stack.Connect(t, s.URL+"/mcp", stack.AgentToken)
			for _, got := range []stack.Response{c.Post(call), hub.Post(joint)} {
				if !strings.Contains(string(got.Body), "ran") {
					t.Fatalf("%s", got.Body)
				}
			}
			mu.Lock()
			era++ // simulates a restart of the server
			mu.Unlock()
			before := odd.calls
			for _, got := range []stack.Response{c.Post(call), hub.Post(joint)} {
				if text := string(got.Body); !strings.Contains(text, "outcome_unknown") || !strings.Contains(text, "no longer knows the session") {
					t.Errorf("the response to the first call is %s", text)
				}
			}
			if got := c.Post(call); got.Status != http.StatusNotFound || !strings.Contains(string(got.Body), "session") {
				t.Errorf("the response to the next call is %d, %s", got.Status, got.Body)
			}
			if n := odd.calls - before; n != 2 {
				t.Errorf("the server received %d calls, want each once", n)
			}
			if got := hub.Post(joint); !strings.Contains(string(got.Body), "ran") {
				t.Errorf("the response to the next call at the URL of all servers is %s", got.Body)
			}
			if err := c.Open(); err != nil {
				t.Fatal(err)
			}
			if got := c.Post(call); !strings.Contains(string(got.Body), "ran") {
				t.Errorf("in a new session: %s", got.Body)
			}
		})
	}
}

// A slash after a server's name is ignored. The response for an unknown path lists the valid paths.
func TestPaths_TrailingSlashIsIgnored(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: allowAll})
	c := stack.Connect(t, s.MCP("raw")+"/", stack.AgentToken)
	if got := c.Post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe"}}`); got.Status != http.StatusOK || !strings.Contains(string(got.Body), "ran") {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	for _, path := range []string{"/", "/sse", "/mcp/raw/tools", "/api/mcp"} {
		got, err := http.Post(s.URL+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		_, _ = bufio.NewReader(got.Body).WriteTo(&text)
		_ = got.Body.Close()
		if got.StatusCode != http.StatusNotFound || !strings.Contains(text.String(), "/mcp/NAME") || !strings.Contains(text.String(), "/mcp for all servers") || strings.Contains(text.String(), "raw") {
			t.Errorf("%s: %d %s", path, got.StatusCode, text.String())
		}
	}
}

// The refusal, `status` and `doctor` report that a server accepts only one session in total.
func TestSession_ServerWithASingleSessionIsReported(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	taken := false
	odd := startOddServer(t, func(w http.ResponseWriter, _ *http.Request, method, id string) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case method == "initialize" && taken:
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request: Server already initialized"},"id":null}`)
		case method == "initialize":
			taken = true
			w.Header().Set("Mcp-Session-Id", "only")
			writeResult(w, id, oddInitializeResult)
		default:
			writeResult(w, id, `{"tools":[{"name":"one","inputSchema":{"type":"object"}}]}`)
		}
	})
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  odd: {http: {url: %q}}", odd.URL), Policy: allowAll}))
	eventually.Holds(t, "the gateway has listed the server", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return taken
	})
	const want = "the server accepts only one session in total, and the gateway has used it"
	client := stack.NewClient(t, p.MCP("odd"), stack.AgentToken)
	initialize := func() string {
		return string(client.Post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`).Body)
	}
	if got := initialize(); !strings.Contains(got, want) {
		t.Errorf("the refusal is %s", got)
	}
	for _, command := range []string{"status", "doctor"} {
		// The response to the gateway's own list request may arrive after the refusal. In that case the refusal is no
		// longer the last error, so the test sends initialize again.
		eventually.Holds(t, command+" reports why", func() bool {
			initialize()
			return strings.Contains(runAsOperator(t, p, command).Stdout, want)
		})
	}
}
