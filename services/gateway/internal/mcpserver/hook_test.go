package mcpserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/hosted"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func addHost(t testing.TB, deps *mcpserver.Deps, client string) {
	t.Helper()
	over, err := hosted.New(client)
	if err != nil {
		t.Fatal(err)
	}
	up, err := upstream.New(over, deps.Meters)
	if err != nil {
		t.Fatal(err)
	}
	deps.Servers[hosttools.ServerName(client)] = servers.Config{Upstream: up, Timeout: time.Minute, Identity: "host " + client, Host: client}
}

// newHookGateway starts a gateway that evaluates calls to the built-in tools of Claude Code and Codex.
func newHookGateway(t *testing.T) *testGateway {
	t.Helper()
	w := prepareTestGateway(t, "")
	w.hosts = []string{"claude-code", hosttools.Codex}
	w.build()
	return w
}

type verdict struct{ Verdict, Reason, Code, Decision string }

// hook sends an event as the caller ana and returns the verdict.
func (w *testGateway) hook(client, event string) verdict {
	w.t.Helper()
	got := w.do("POST", "/hook/"+client, event, nil)
	var v verdict
	if err := json.Unmarshal([]byte(got.body), &v); err != nil || got.status != http.StatusOK {
		w.t.Fatalf("status %d: %s", got.status, got.body)
	}
	return v
}

func bash(id, command string) string {
	return fmt.Sprintf(`{"event":"call","tool":"Bash","input":{"command":%q},"id":%q,"session":"s1","turn":"t1"}`, command, id)
}

// A call of a hook that lacks a scope is denied with the reason. The status is 200, because hooks do not sign in.
func TestHook_MissingScopeIsAVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHookGateway(t)
		w.Policy.Decision = &policyv1.Decision{
			Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_SCOPE_MISSING, Message: "the call needs the OAuth scope shell",
			NeededScopes: []string{"shell"}, MissingScopes: []string{"shell"},
		}
		v := w.hook("claude-code", bash("u1", "ls"))
		if v.Verdict != "deny" || v.Code != "scope_missing" || v.Decision == "" || v.Reason != "Denied by policy: the call needs the OAuth scope shell" {
			t.Errorf("%+v", v)
		}
	})
}

// The policy service evaluates an event like a call. The records state that the client itself executes the call.
func TestHook_TakesTheStepsOfACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHookGateway(t)
		if v := w.hook("claude-code", bash("u1", "ls")); v.Verdict != "pass" || v.Decision == "" {
			t.Errorf("allowed: %+v", v)
		}
		intents, outcomes := w.Journal.Records(journal.KindIntent), w.Journal.Records(journal.KindOutcome)
		if len(intents) != 1 || intents[0].Server != "host-claude-code" || intents[0].Tool != "Bash" || intents[0].Subject != "ana" {
			t.Errorf("intents: %+v", intents)
		}
		if len(outcomes) != 1 || outcomes[0].ResultClass != journal.ResultHostExecuted {
			t.Errorf("outcomes: %+v", outcomes)
		}
		w.Policy.Change(func() {
			w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE, Message: "not on Fridays"}
		})
		if v := w.hook("claude-code", bash("u2", "rm x")); v.Verdict != "deny" || v.Code != "denied_by_rule" || !strings.Contains(v.Reason, "not on Fridays") {
			t.Errorf("denied: %+v", v)
		}
	})
}

// Two hooks are registered for one call and send the same event. The call counts once, even if the second event arrives
// while the first one is being evaluated.
func TestHook_CountsACallOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHookGateway(t)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if v := w.hook("claude-code", bash("u1", "ls")); v.Verdict != "pass" {
					t.Errorf("%+v", v)
				}
			})
		}
		all.Wait()
		if n := len(w.Journal.Records(journal.KindIntent)); n != 1 {
			t.Errorf("%d intents", n)
		}
		if v := w.hook("claude-code", bash("u1", "rm -rf .")); v.Verdict != "deny" {
			t.Errorf("another call with the same id: %+v", v)
		}
		w.hook("claude-code", bash("", "ls"))
		w.hook("claude-code", bash("", "ls"))
		if n := len(w.Journal.Records(journal.KindIntent)); n != 3 {
			t.Errorf("%d intents after two calls without ids", n)
		}
		time.Sleep(29 * time.Second)
		w.hook("claude-code", bash("u1", "ls"))
		if n := len(w.Journal.Records(journal.KindIntent)); n != 3 {
			t.Errorf("%d intents within the window", n)
		}
		time.Sleep(2 * time.Second)
		w.hook("claude-code", bash("u1", "ls"))
		if n := len(w.Journal.Records(journal.KindIntent)); n != 4 {
			t.Errorf("%d intents after the window", n)
		}
	})
}

// A call to an unknown tool is evaluated as a call to the tool "other", with the unknown tool's name and input as
// arguments.
func TestHook_EvaluatesUnknownToolsAsOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHookGateway(t)
		for _, tool := range []string{"LaunchRocket", "other"} {
			w.hook("codex", `{"event":"call","tool":"`+tool+`","input":{"to":"moon"}}`)
			decided := w.Policy.Decided()
			if call := decided[len(decided)-1].Call; call.GetName() != "other" || !strings.Contains(call.GetParamsJson(), `"arguments":{"tool":"`+tool+`","input":{"to":"moon"}}`) {
				t.Errorf("policy evaluated %v", call)
			}
		}
	})
}

// The gateway treats the built-in tools of a client with hooks as the tools of a server, but only for that client's
// hooks. MCP clients can neither list nor call these tools.
func TestHook_MCPDoesNotReachTheToolsOfClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHookGateway(t)
		if got := w.do("POST", "/mcp/host-codex", initialize, nil); got.code() != "tool_unknown" {
			t.Errorf("opened: %+v", got)
		}
		w.path = "/mcp"
		session := w.connect()
		if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, session); strings.Contains(got.body, "apply_patch") || !strings.Contains(got.body, `"server":"files"`) {
			t.Errorf("listed: %s", got.body)
		}
		if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"host-codex__Bash","arguments":{"command":"ls"}}}`, session); strings.Contains(got.body, "may execute") {
			t.Errorf("called: %s", got.body)
		}
	})
}

func TestHook_RefusesWhatItDoesNotUnderstand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHookGateway(t)
		for body, status := range map[string]int{
			`{`: http.StatusBadRequest, ``: http.StatusBadRequest, `[]`: http.StatusBadRequest,
			`{"event":"call","tool":"Bash"}`:                                     http.StatusBadRequest,
			`{"event":"call","tool":"","input":{}}`:                              http.StatusBadRequest,
			`{"event":"other","tool":"Bash","input":{}}`:                         http.StatusBadRequest,
			`{"event":"call","tool":"Bash","input":{},"more":1}`:                 http.StatusBadRequest,
			`{"event":"call","tool":"Bash","tool":"Read","input":{}}`:            http.StatusBadRequest,
			`{"event":"call","tool":"Bash","input":"ls"}`:                        http.StatusBadRequest,
			`{"event":"call","tool":"` + strings.Repeat("x", 5<<20) + `","i":1}`: http.StatusBadRequest,
		} {
			if got := w.do("POST", "/hook/codex", body, nil); got.status != status {
				t.Errorf("%.60s: status %d, want %d: %s", body, got.status, status, got.body)
			}
		}
		if got := w.do("POST", "/hook/codex", bash("u", "ls"), http.Header{"Authorization": {"Bearer " + operatorToken}}); got.status != http.StatusForbidden {
			t.Errorf("an operator: %+v", got)
		}
		if v := w.hook("gemini", bash("u", "ls")); v.Verdict != "deny" || !strings.Contains(v.Reason, "sluice hook install gemini") {
			t.Errorf("a client that is not configured: %+v", v)
		}
		if n := len(w.Journal.Records(journal.KindIntent)); n != 0 {
			t.Errorf("%d intents", n)
		}
		time.Sleep(time.Second) // after an answer to a body that was not read, the server closes the connection later
	})
}
