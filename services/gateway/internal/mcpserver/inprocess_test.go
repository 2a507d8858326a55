package mcpserver_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func internalPrincipal() *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "acme", Subject: "agent:acme/a1", Owner: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}},
	}
}

func internalRequest(message string) mcpserver.Request {
	return mcpserver.Request{Principal: internalPrincipal(), Server: "files", Message: []byte(message)}
}

// The gateway handles a request from a mesh service like a message from an MCP client: the policy service evaluates it,
// and the records contain the principal on whose behalf the service calls. All requests of the principal use one
// session.
func TestServerDo_TakesTheStepsOfAClientsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		for range 2 {
			done, err := w.MCP.Do(t.Context(), internalRequest(toolCall))
			if err != nil || done.Refusal != nil || done.ID == "" || done.Decision.GetEffect() != policyv1.Effect_EFFECT_ALLOW || !strings.Contains(string(done.Answer), `"content":[]`) {
				t.Fatalf("%+v, %v", done, err)
			}
		}
		intents := w.Journal.Records(journal.KindIntent)
		if len(intents) != 2 || intents[0].Subject != "agent:acme/a1" || len(intents[0].Chain) != 1 || intents[0].Chain[0].Subject != "ana" {
			t.Errorf("recorded is %+v", intents)
		}
		if w.Sessions.Len() != 1 || len(w.files.Opened()) != 1 {
			t.Errorf("%d sessions are open, and %d were opened", w.Sessions.Len(), len(w.files.Opened()))
		}
		for _, state := range w.Sessions.List("acme") {
			if err := w.Sessions.End(state.ID, state.Key); err != nil {
				t.Fatal(err)
			}
		}
		if done, err := w.MCP.Do(t.Context(), internalRequest(toolCall)); err != nil || done.Refusal != nil || len(w.files.Opened()) != 2 {
			t.Errorf("behind its session's end: %+v, %v, and %d were opened", done, err, len(w.files.Opened()))
		}
	})
}

func TestServerDo_ReturnsErrorsWhenNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE, Message: "by people alone"}
		done, err := w.MCP.Do(t.Context(), internalRequest(toolCall))
		if err != nil || done.Refusal == nil || done.Refusal.IsProtocolError || done.Refusal.Code != commonv1.Code_CODE_DENIED_BY_RULE || done.Refusal.ID == "" || !strings.Contains(string(done.Answer), "by people alone") {
			t.Errorf("denied: %+v, %v", done, err)
		}
		for text, code := range map[string]commonv1.Code{
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":1,"x":2}}}`: commonv1.Code_CODE_JSON_DUPLICATE_KEY,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"","arguments":{}}}`:             commonv1.Code_CODE_TOOL_NAME_INVALID,
		} {
			done, err := w.MCP.Do(t.Context(), internalRequest(text))
			if err != nil || !done.Refusal.IsProtocolError || done.Refusal.Code != code {
				t.Errorf("%s: %+v, %v, want %v", text, done, err, code)
			}
		}
		away := internalRequest(toolCall)
		away.Server = "nowhere"
		if _, err := w.MCP.Do(t.Context(), away); !errors.Is(err, mcpserver.ErrServer) {
			t.Errorf("a server that is not there: %v", err)
		}
		if n := len(w.Journal.Records(journal.KindIntent)); n != 0 {
			t.Errorf("%d intents are on record", n)
		}
	})
}

// Messages that the server sends before its answer are forwarded to the mesh service in order, before the answer.
func TestServerDo_ForwardsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
			events([]byte("{\"jsonrpc\":\"2.0\",\n\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"a\\n\\nb\"}}"))
			return gatewaytest.Result(r, "{\"content\":[{\"type\":\"text\",\"text\":\"event: message\\ndata: x\"}]}"), nil
		}
		var heard []string
		asked := internalRequest(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":1}}}`)
		asked.Event = func(message []byte) { heard = append(heard, string(message)) }
		done, err := w.MCP.Do(t.Context(), asked)
		if err != nil || len(heard) != 2 || !strings.Contains(heard[0], "notifications/progress") || !strings.Contains(string(done.Answer), `event: message\ndata: x`) {
			t.Errorf("heard %q, answered %s, %v", heard, done.Answer, err)
		}
	})
}

// Drain waits for running requests. New requests are refused.
func TestServerDrain_WaitsForRunningRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		release := make(chan struct{})
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			<-release
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		answered, drained := make(chan error, 1), make(chan struct{})
		go func() {
			_, err := w.MCP.Do(t.Context(), internalRequest(toolCall))
			answered <- err
		}()
		synctest.Wait()
		go func() {
			w.MCP.Drain(t.Context())
			close(drained)
		}()
		synctest.Wait()
		select {
		case <-drained:
			t.Error("the stop does not wait")
		default:
		}
		if _, err := w.MCP.Do(t.Context(), internalRequest(toolCall)); !errors.Is(err, mcpserver.ErrStopping) {
			t.Errorf("another request: %v", err)
		}
		close(release)
		<-drained
		if err := <-answered; err != nil {
			t.Error(err)
		}
	})
}

// Case I6. Server.Do has opened a session for an agent. No MCP client can use this session, not even a client of the
// principal that created the agent.
func TestServerDo_SessionsAreNotSharedBetweenCallers(t *testing.T) {
	t.Parallel()
	w := newTestGateway(t)
	if _, err := w.MCP.Do(t.Context(), internalRequest(toolCall)); err != nil {
		t.Fatal(err)
	}
	for _, state := range w.Sessions.List("acme") {
		header := http.Header{"Authorization": {"Bearer " + anaToken}, "Mcp-Session-Id": {state.ID}}
		if got := w.do("POST", "/mcp/files", toolCall, header); got.status != http.StatusNotFound {
			t.Errorf("its creator uses the session %s: %d", state.Digest, got.status)
		}
	}
}
