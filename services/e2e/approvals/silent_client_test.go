package approvals_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// callAndIgnoreForm opens a session that declares elicitation and calls a tool whose call makes the gateway send a
// form. It never answers the form. It reports whether a form was sent, and returns the code of the response to the
// call.
func callAndIgnoreForm(t *testing.T, s *stack.Stack, version, arguments string) (form bool, code string) {
	t.Helper()
	c := stack.NewClient(t, s.MCP("raw"), stack.AgentToken)
	opened := c.Post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"mute","version":"` + version + `"}}}`)
	c.Header, c.Version = http.Header{"Mcp-Session-Id": {opened.Header.Get("Mcp-Session-Id")}}, "2025-11-25"
	c.Post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	resp := c.Call("note", arguments)
	for _, event := range resp.Events {
		form = form || bytes.Contains(event, []byte(`"elicitation/create"`))
	}
	return form, resp.Decision(t).Code
}

// A client declares elicitation but never answers a form. At its first call it receives a form and, when the hold time
// ends, a refusal with the approval's id. After a restart of the mesh, the same client receives no form, but another
// version of the client does. `sluice status` and `sluice doctor` report the client.
func TestApprovals_ClientThatNeverAnswersAFormIsRemembered(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rulesPolicy, Tokens: financePeople,
		Extra: "groups: {finance: [ana, ben]}\napprovals: {hold: 3s}", // a form that is open for less than 1 s does not count
	}))
	if form, code := callAndIgnoreForm(t, p.Stack, "1", `{}`); !form || code != "approval_pending" {
		t.Fatalf("the first call: form %v, %s", form, code)
	}
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	p = stack.Start(t, p.Stack)
	if form, code := callAndIgnoreForm(t, p.Stack, "1", `{}`); form || code != "approval_pending" {
		t.Errorf("after the restart: form %v, %s", form, code)
	}
	if form, _ := callAndIgnoreForm(t, p.Stack, "2", `{"n":2}`); !form {
		t.Error("another version got no form")
	}
	for _, command := range []string{"status", "doctor"} {
		ran := stack.Run(t, stack.Command{Args: []string{command, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
		for _, version := range []string{"1", "2"} {
			if !strings.Contains(ran.Stdout, "mute "+version+" of agent did not answer a form") {
				t.Errorf("%s: %+v", command, ran)
			}
		}
	}
}
