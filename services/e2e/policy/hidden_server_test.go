package policy_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// hiddenServer and absentServer have names of equal length, so that responses can be compared byte by byte.
const (
	hiddenServer = "raw"
	absentServer = "zzz"
)

// hidingServerPolicies contains policies that hide the whole server from the agent.
var hidingServerPolicies = map[string]string{
	"every tool is hidden":   "version: 1\nname: p\ndefault: allow\nrules:\n  - {name: unseen, match: {tool: \"*\"}, action: hide}\n",
	"every method is hidden": "version: 1\nname: p\ndefault: allow\nrules:\n  - {name: unseen, match: {method: \"*\", principal: \"*\"}, action: hide}\n",
	"some are hidden, and the others denied": "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: unseen, match: {tool: hidden-*}, action: hide}\n" +
		"  - {name: others, match: {principal: somebody-else}, action: allow}\n",
	"a class is hidden, and all is denied": "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: unseen, match: {category: destructive}, action: hide}\n",
}

// shownPolicies contains policies that allow the agent to see part of the server, or that deny calls without hiding the
// tool.
var shownPolicies = map[string]string{
	"a tool is denied with a reason": "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: unseen, match: {tool: hidden-*}, action: hide}\n" +
		"  - {name: told, match: {tool: safe}, action: deny, reason: ask the owners}\n",
	"all is denied by default": "version: 1\nname: p\ndefault: deny\n",
	"prompts alone are open": "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: unseen, match: {tool: \"*\"}, action: hide}\n" +
		"  - {name: prompts, match: {method: \"prompts/*\"}, action: allow}\n",
	"a tool waits for a person": "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: unseen, match: {tool: hidden-*}, action: hide}\n" +
		"  - {name: asked, match: {tool: safe}, action: require_approval}\n",
}

const bareInitialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

// requestsTo returns functions that build HTTP requests to one server. Each key describes the request that its function
// builds.
func requestsTo(server string) map[string]func(base string) *http.Request {
	out := make(map[string]func(string) *http.Request)
	modern := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}}}}`
	}
	bodies := map[string]string{
		"initialize": bareInitialize, "ping": `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "tools/list": `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
		"tools/call": stack.CallRequest(`{"name":"safe","arguments":{}}`), "notification": `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"answer": `{"jsonrpc":"2.0","id":1,"result":{}}`, "no JSON": `{"jsonrpc":`, "nothing": "", "large": `{"x":"` + strings.Repeat("x", 1<<20) + `"}`,
		"server/discover": modern("server/discover", ""), "modern list": modern("tools/list", ""),
		"modern call": modern("tools/call", `"name":"safe","arguments":{},`), "subscriptions/listen": modern("subscriptions/listen", `"notifications":{},`),
	}
	for name, body := range bodies {
		for _, how := range []string{"", " in a session", " as text", " to the path with a slash"} {
			out[name+how] = func(base string) *http.Request {
				r, _ := http.NewRequest(http.MethodPost, base+"/mcp/"+server, strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				switch how {
				case " in a session":
					r.Header.Set("Mcp-Session-Id", strings.Repeat("A", 43))
				case " as text":
					r.Header.Set("Content-Type", "text/plain")
				case " to the path with a slash":
					r.URL.Path += "/"
				}
				if strings.Contains(body, "2026-07-28") {
					r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
					r.Header.Set("Mcp-Method", map[bool]string{true: "tools/call"}[name == "modern call"])
				}
				return r
			}
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodHead, http.MethodOptions} {
		for _, session := range []string{"", strings.Repeat("A", 43)} {
			out[method+" "+session] = func(base string) *http.Request {
				r, _ := http.NewRequest(method, base+"/mcp/"+server, nil)
				if session != "" {
					r.Header.Set("Mcp-Session-Id", session)
				}
				return r
			}
		}
	}
	return out
}

// responseText returns the whole response, but without the server's name and without the values that differ between the
// responses to two equal requests.
func responseText(t *testing.T, base, server string, r *http.Request) string {
	t.Helper()
	r.Header.Set("Authorization", "Bearer "+stack.AgentToken)
	r.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Header.Del("Date")
	return fmt.Sprintln(resp.StatusCode, resp.Header, maskVariableText(server, string(body)))
}

func maskVariableText(server, text string) string {
	text = policyRevision.ReplaceAllString(decisionID.ReplaceAllString(text, `"id":""`), `"policyRevision":""`)
	return strings.ReplaceAll(text, server, "NAME")
}

// Case X9. A server is hidden if the policy hides at least one of its tools or methods and allows none. A request to a
// hidden server gets the same response as a request to a server that is not configured. The status, headers, body and
// records are equal, and the server receives no request.
func TestHiddenServer_AnswersLikeAnAbsentOne(t *testing.T) {
	t.Parallel()
	for name, policy := range hidingServerPolicies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.StartUnpinned(t, policy, "", hidingTools)
			hidden, absent := requestsTo(hiddenServer), requestsTo(absentServer)
			before := len(f.Upstream.Requests())
			for range 2 { // before and after the gateway has stored any state about the caller
				for what, request := range hidden {
					got, want := responseText(t, f.URL, hiddenServer, request(f.URL)), responseText(t, f.URL, absentServer, absent[what](f.URL))
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s (-absent +hidden):\n%s", what, diff)
					}
				}
			}
			_ = responseText(t, f.URL, absentServer, absent["initialize"](f.URL)) // adds a record of the absent server for the comparison
			if got := responseText(t, f.URL, hiddenServer, hidden["initialize"](f.URL)); !strings.HasPrefix(got, "404 ") || !strings.Contains(got, `\"NAME\" is configured here`) {
				t.Errorf("the response to initialize is %s", got)
			}
			if n := len(f.Upstream.Requests()) - before; n != 0 {
				t.Errorf("%d messages reached the server", n)
			}
			checkEqualRecords(t, f)
		})
	}
}

// checkEqualRecords checks that the records of the hidden server and the absent server are equal.
func checkEqualRecords(t *testing.T, f *rawmesh.Mesh) {
	t.Helper()
	of := make(map[string][]*gatewayv1.Record)
	for _, r := range f.Records(t) {
		r.Message = maskVariableText(r.GetServer(), r.GetMessage())
		of[r.GetServer()] = append(of[r.GetServer()], r)
	}
	if len(of[hiddenServer]) < 20 {
		t.Fatalf("only %d requests are recorded", len(of[hiddenServer]))
	}
	shape := func(all []*gatewayv1.Record) map[string]int {
		out := make(map[string]int)
		for _, r := range all {
			out[fmt.Sprint(r.GetMethod(), r.GetTool(), r.GetCode(), r.GetMessage(), r.GetHidden(), r.GetRule(), r.GetRequestBytes())]++
		}
		return out
	}
	if diff := cmp.Diff(shape(of[absentServer]), shape(of[hiddenServer])); diff != "" {
		t.Errorf("the records differ (-absent +hidden):\n%s", diff)
	}
	if diff := cmp.Diff(last(of[absentServer]), last(of[hiddenServer]), protocmp.Transform(), protocmp.IgnoreFields(new(gatewayv1.Record),
		"server", "sequence", "time", "previous_hash", "decision_id", "trace_id", "policy_revision", "latency", "method", "tool", "code", "message", "request_bytes")); diff != "" {
		t.Errorf("records differ in another field (-absent +hidden):\n%s", diff)
	}
}

func last[T any](all []T) T { return all[len(all)-1] }

// Case X9. The responses for a hidden server and an absent server are also equal at the URL for all servers.
func TestHiddenServer_AnswersLikeAnAbsentOneAtTheSharedURL(t *testing.T) {
	t.Parallel()
	for name, policy := range hidingServerPolicies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.StartUnpinned(t, policy, "", hidingTools)
			c := stack.Connect(t, f.URL+"/mcp", stack.AgentToken)
			for _, params := range []string{
				`"tools/call","params":{"name":"%s__safe","arguments":{}}`, `"tools/call","params":{"name":"%s__","arguments":{}}`, `"prompts/get","params":{"name":"%s__p"}`,
				`"resources/read","params":{"uri":"mcp.%s+file:///a"}`, `"resources/subscribe","params":{"uri":"mcp.%s+file:///a"}`,
				`"completion/complete","params":{"ref":{"type":"ref/prompt","name":"%s__p"},"argument":{"name":"a","value":""}}`,
			} {
				told := func(server string) string {
					resp := c.Post(`{"jsonrpc":"2.0","id":1,"method":` + fmt.Sprintf(params, server) + `}`)
					resp.Header.Del("Date")
					return fmt.Sprintln(resp.Status, resp.Header, maskVariableText(server, string(resp.Body)))
				}
				if diff := cmp.Diff(told(absentServer), told(hiddenServer)); diff != "" {
					t.Errorf("%s (-absent +hidden):\n%s", params, diff)
				}
			}
			for _, method := range []string{"tools/list", "prompts/list", "resources/list"} {
				if resp := c.Post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`); strings.Contains(string(resp.Body), hiddenServer) {
					t.Errorf("%s lists the hidden server: %s", method, resp.Body)
				}
			}
		})
	}
}

// Case X9. A server is visible if calls to it are denied but not hidden, or if the policy shows a part of the server.
func TestHiddenServer_PartlyShownServerIsVisible(t *testing.T) {
	t.Parallel()
	for name, policy := range shownPolicies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.StartUnpinned(t, policy, "", hidingTools)
			c := f.Connect(t)
			list := string(c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).Body)
			if shows := strings.HasPrefix(name, "a tool"); strings.Contains(list, `"safe"`) != shows || strings.Contains(list, "hidden") {
				t.Errorf("the listed tools are %s", list)
			}
			if code := c.Call("safe", "{}").Decision(t).Code; strings.HasPrefix(name, "all is denied") && code != "denied_by_default" {
				t.Errorf("a call has the code %s", code)
			}
		})
	}
}

// Case X9. A policy change applies to the next request. A server that the new policy allows is visible. A server that
// the new policy hides is also hidden from existing sessions.
func TestHiddenServer_PolicyChangeAppliesToTheNextRequest(t *testing.T) {
	t.Parallel()
	const opened = "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: unseen, match: {tool: hidden-*}, action: hide}\n  - {name: safe, match: {tool: safe}, action: allow}\n"
	hides := hidingServerPolicies["every tool is hidden"]
	f := rawmesh.StartUnpinned(t, hides, "", hidingTools)
	initialize := func() string {
		return responseText(t, f.URL, hiddenServer, requestsTo(hiddenServer)["initialize"](f.URL))
	}
	if got := initialize(); !strings.HasPrefix(got, "404 ") {
		t.Fatalf("before the change: %s", got)
	}
	stack.WriteFile(t, f.Policy, opened)
	eventually.Holds(t, "the server is visible", func() bool { return strings.HasPrefix(initialize(), "200 ") })
	c := f.Connect(t)
	if resp := c.Call("safe", "{}"); resp.IsError(t) || resp.Text(t) != "ran" {
		t.Fatalf("%s", resp.Body)
	}
	stack.WriteFile(t, f.Policy, hides)
	// The client c does not open another session, so its call can get a 404 only because of the new policy.
	eventually.Holds(t, "the server is hidden from an existing session", func() bool { return c.Call("safe", "{}").Status == http.StatusNotFound })
	if got := initialize(); !strings.HasPrefix(got, "404 ") {
		t.Errorf("after the server was hidden again: %s", got)
	}
	stack.WriteFile(t, f.Policy, opened)
	eventually.Holds(t, "the server is visible again", func() bool { return strings.HasPrefix(initialize(), "200 ") })
	if resp := c.Call("safe", "{}"); resp.Status != http.StatusOK || resp.IsError(t) {
		t.Errorf("in an earlier session, after the server was opened again: %d %s", resp.Status, resp.Body)
	}
}

// Case X9. The command line prints the same output for the hidden server and the absent server. Listing the tools of
// all servers does not fail because of a hidden server.
func TestHiddenServer_CommandLinePrintsTheSame(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, hidingTools)
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: hidingServerPolicies["every tool is hidden"], GRPC: stack.FreeAddr(t)})
	tokens := filepath.Join(s.Dir, "data", "tokens")
	if err := os.MkdirAll(tokens, 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(tokens, "agent"), stack.AgentToken)
	stack.WriteFile(t, filepath.Join(tokens, "operator"), stack.OperatorToken)
	stack.WriteFile(t, filepath.Join(tokens, "viewer"), stack.ViewerToken)
	sluice := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: args, Dir: s.Dir, Env: []string{"SLUICE_URL=" + s.URL, "SLUICE_CONFIG=" + s.Config}})
	}
	for _, args := range [][]string{{"tools", "NAME"}, {"call", "NAME", "safe"}} {
		told := func(server string) string {
			with := strings.Split(strings.ReplaceAll(strings.Join(args, " "), "NAME", server), " ")
			ran := sluice(with...)
			return fmt.Sprintln(ran.Code, maskVariableText(server, ran.Stdout+ran.Stderr))
		}
		if diff := cmp.Diff(told(absentServer), told(hiddenServer)); diff != "" || !strings.Contains(told(hiddenServer), "is configured here") {
			t.Errorf("%v: %s (-absent +hidden):\n%s", args, told(hiddenServer), diff)
		}
	}
	all := sluice("tools")
	stack.CheckCommand(t, all, 0, all.Stderr, `no server "raw" is configured here, or policy hides it from this caller`)
	doctor := sluice("doctor")
	if said := doctor.Stdout + doctor.Stderr; !strings.Contains(said, "the agent sees no tool of this server") {
		t.Errorf("doctor reports %s", said)
	}
}
