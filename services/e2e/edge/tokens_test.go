package edge_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// tokenMesh is a mesh in a separate process. Its server records when calls arrive.
type tokenMesh struct {
	*stack.Process
	t *testing.T

	mu       sync.Mutex
	arrivals map[string]time.Time // the last arrival, by the tool
}

func startTokenMesh(t *testing.T) *tokenMesh {
	t.Helper()
	m := &tokenMesh{t: t, arrivals: make(map[string]time.Time)}
	up := rawmcp.Start(t, rawmcp.Tools)
	for _, tool := range []string{"safe", "pay"} {
		up.SetAnswer(tool, func(w http.ResponseWriter, r *http.Request, id string) {
			m.mu.Lock()
			m.arrivals[tool] = time.Now()
			m.mu.Unlock()
			rawmcp.Result(`{"content":[{"type":"text","text":"ran"}]}`)(w, r, id)
			up.DropRequests()
		})
	}
	m.Process = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: stack.OpenPolicy, Extra: "groups: {writers: [ana]}",
		Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
	}))
	return m
}

// run runs a command as the operator.
func (m *tokenMesh) run(args ...string) stack.CommandResult {
	m.t.Helper()
	return stack.Run(m.t, stack.Command{Args: args, Dir: m.Dir, Env: []string{"SLUICE_CONFIG=" + m.Config, "SLUICE_TOKEN=" + stack.OperatorToken}})
}

type createdToken struct {
	Token  struct{ ID, Agent, Owner string }
	Secret string
}

func (m *tokenMesh) create(args ...string) createdToken {
	m.t.Helper()
	ran := m.run(append([]string{"token", "create", "-o", "json"}, args...)...)
	if ran.Code != 0 {
		m.t.Fatalf("token create: exit code %d: %s", ran.Code, ran.Stderr)
	}
	return stack.DecodeOutput[createdToken](m.t, ran)
}

// tokenCaller calls a tool with one token until it is stopped.
type tokenCaller struct {
	ran     atomic.Int64
	refused atomic.Pointer[stack.Response]
}

func (m *tokenMesh) startCaller(tool, token string) *tokenCaller {
	m.t.Helper()
	ctx, stop := context.WithCancel(m.t.Context())
	c, client, done := new(tokenCaller), stack.Connect(m.t, m.MCP("raw"), token), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			resp, err := client.TryPost([]byte(stack.CallRequest(`{"name":"` + tool + `"}`)))
			switch {
			case err == nil && bytes.Contains(resp.Body, []byte(`"text":"ran"`)):
				c.ran.Add(1)
			case err == nil:
				c.refused.CompareAndSwap(nil, &resp)
			}
		}
	}()
	m.t.Cleanup(func() { stop(); <-done })
	return c
}

func (c *tokenCaller) awaitRuns(t *testing.T, n int64) {
	t.Helper()
	from := c.ran.Load()
	eventually.Holds(t, "calls run", func() bool { return c.ran.Load() >= from+n || c.refused.Load() != nil })
	if refused := c.refused.Load(); refused != nil {
		t.Fatalf("a call was refused: %d %s", refused.Status, refused.Body)
	}
}

// Case I1. An operator creates a token for each of two clients of one person. The records show which client has called.
// The operator revokes one of the tokens while both clients make calls. When the revoke command has finished, no more
// calls with the revoked token reach the server, the refusal contains the reason, and the other client's calls run. All
// of this is still true after a restart.
func TestTokens_EachClientHasItsOwn(t *testing.T) {
	t.Parallel()
	m := startTokenMesh(t)
	cursor, claude := m.create("cursor", "--owner", "ana", "--group", "writers"), m.create("claude", "--owner", "ana", "--expires", "2d")
	for _, made := range []createdToken{cursor, claude} {
		if !strings.HasPrefix(made.Secret, "slc1_a_") || made.Token.Owner != "ana" || !strings.HasPrefix(made.Token.ID, made.Token.Agent+"-") {
			t.Errorf("created is %+v", made)
		}
	}
	cursorCalls, claudeCalls := m.startCaller("safe", cursor.Secret), m.startCaller("pay", claude.Secret)
	cursorCalls.awaitRuns(t, 10)
	claudeCalls.awaitRuns(t, 10)

	began := time.Now()
	ran := m.run("token", "revoke", cursor.Token.ID)
	stack.CheckCommand(t, ran, 0, ran.Stdout, "revoked: token "+cursor.Token.ID+" of the agent cursor, which can no longer call tools\n")
	acknowledged := time.Now()
	cursorCalls.refused.Store(nil) // a call that was in flight is refused when it is to begin
	eventually.Holds(t, "a call is refused", func() bool { return cursorCalls.refused.Load() != nil })
	claudeCalls.awaitRuns(t, 10)
	refused := cursorCalls.refused.Load()
	if refused.Status != http.StatusUnauthorized || !bytes.Contains(refused.Body, []byte("this bearer token was revoked")) || !strings.Contains(refused.Header.Get("WWW-Authenticate"), "the token was revoked") {
		t.Errorf("%d %q: %s", refused.Status, refused.Header.Get("WWW-Authenticate"), refused.Body)
	}
	m.mu.Lock()
	if last := m.arrivals["safe"]; last.After(acknowledged) || m.arrivals["pay"].Before(acknowledged) {
		t.Errorf("acknowledged %v after the command began; the last call arrived %v after the acknowledgement", acknowledged.Sub(began), last.Sub(acknowledged))
	}
	m.mu.Unlock()
	for _, made := range []createdToken{cursor, claude} {
		ran := m.run("decisions", "tail", "-n", "5", "--subject", made.Token.ID, "-o", "json")
		for _, want := range []string{`"tokenId": "` + made.Token.ID, `"agent": "` + made.Token.Agent, `"owner": "ana"`} {
			stack.CheckCommand(t, ran, 0, ran.Stdout, want)
		}
	}
	if err := m.Stop(t); err != nil {
		t.Fatal(err)
	}
	m.Process = stack.Start(t, m.Stack)
	revoked, live := stack.NewClient(t, m.MCP("raw"), cursor.Secret), stack.Connect(t, m.MCP("raw"), claude.Secret)
	if resp := revoked.Call("safe", "{}"); resp.Status != http.StatusUnauthorized || !bytes.Contains(resp.Body, []byte("this bearer token was revoked")) {
		t.Errorf("after a restart: %d %s", resp.Status, resp.Body)
	}
	if resp := live.Call("safe", "{}"); resp.Status != http.StatusOK || resp.IsError(t) {
		t.Errorf("after a restart: %d %s", resp.Status, resp.Body)
	}
	m.checkList(cursor, claude)
	m.checkRefusals()
}

// checkList checks the output of `token list`, with and without revoked tokens. The output must contain no secret.
func (m *tokenMesh) checkList(revoked, valid createdToken) {
	m.t.Helper()
	list, all := m.run("token", "list"), m.run("token", "list", "--all")
	for _, ran := range []stack.CommandResult{list, all} {
		if ran.Code != 0 || !strings.Contains(ran.Stdout, valid.Token.ID) || !strings.Contains(ran.Stdout, "configuration") || strings.Contains(ran.Stdout, "slc1_") {
			m.t.Errorf("exit code %d: %s%s", ran.Code, ran.Stdout, ran.Stderr)
		}
	}
	if strings.Contains(list.Stdout, revoked.Token.ID) || !strings.Contains(all.Stdout, revoked.Token.ID) || !strings.Contains(all.Stdout, "by operator") {
		m.t.Errorf("%s\n%s", list.Stdout, all.Stdout)
	}
	// The token that expires in two days was created for only two days, so `status` does not report yet that it expires
	// soon.
	if ran := m.run("status"); strings.Contains(ran.Stdout, "expires soon") {
		m.t.Errorf("%s", ran.Stdout)
	}
}

// checkRefusals checks the token file that `token create` writes, and the messages of token commands that fail.
func (m *tokenMesh) checkRefusals() {
	m.t.Helper()
	file := filepath.Join(m.Dir, "cursor.token")
	ran := m.run("token", "create", "cursor", "--file", file)
	stack.CheckCommand(m.t, ran, 0, ran.Stderr, "which only you can read", "to revoke it: ")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		m.t.Errorf("%v, %v", info, err)
	}
	secret := strings.TrimSpace(stack.ReadFile(m.t, file))
	if resp := stack.Connect(m.t, m.MCP("raw"), secret).Call("safe", "{}"); resp.IsError(m.t) {
		m.t.Errorf("%s", resp.Body)
	}
	for _, c := range []struct {
		code int
		args []string
		says string
	}{
		{1, []string{"token", "create", "cursor", "--file", file}, "no token was created"},
		{1, []string{"token", "create", "cursor", "--group", "absent"}, "the configuration has no group"},
		{2, []string{"token", "create", "cursor", "--expires", "400d"}, "at most 365d"},
		{1, []string{"token", "revoke", "absent"}, "there is no such token"},
		{1, []string{"token", "revoke", "other"}, "remove it there"},
		{2, []string{"token", "revoke"}, "token list"},
	} {
		if ran := m.run(c.args...); ran.Code != c.code || !strings.Contains(ran.Stderr, c.says) {
			m.t.Errorf("%v: exit code %d: %s", c.args, ran.Code, ran.Stderr)
		}
	}
}

// The configuration changes while clients call: a token is added, another one is removed, and a third one gets a group.
// The changes are in force without a restart, and no other call is refused meanwhile.
func TestTokens_ReloadRefusesNoCall(t *testing.T) {
	t.Parallel()
	m := startTokenMesh(t)
	const added = "test-added-agent-token-K3j2H1g0F9d8"
	agent, other := m.startCaller("safe", stack.AgentToken), m.startCaller("pay", stack.OtherToken)
	agent.awaitRuns(t, 10)
	other.awaitRuns(t, 10)
	entry := fmt.Sprintf("{name: other, token: %q, agent: dev, role: agent}", stack.OtherToken)
	stack.ReplaceInFile(t, m.Config, entry, entry+fmt.Sprintf("\n    - {name: added, token: %q, agent: added, role: agent}", added))
	client := stack.NewClient(t, m.MCP("raw"), added)
	eventually.Holds(t, "the added token is accepted", func() bool { return client.Open() == nil })
	agent.awaitRuns(t, 10)
	other.awaitRuns(t, 10)
	stack.ReplaceInFile(t, m.Config, "groups: [developers]", "groups: [developers, writers]")
	stack.ReplaceInFile(t, m.Config, "    - "+entry+"\n", "")
	eventually.Holds(t, "the removed token is refused", func() bool { return other.refused.Load() != nil })
	other.refused.Store(nil) // a call that was in flight is refused when it is to begin
	eventually.Holds(t, "a later call is refused", func() bool { return other.refused.Load() != nil })
	if refused := other.refused.Load(); refused.Status != http.StatusUnauthorized {
		t.Errorf("%d %s", refused.Status, refused.Body)
	}
	agent.awaitRuns(t, 50)
}
