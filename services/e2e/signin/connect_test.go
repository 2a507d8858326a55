package signin_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A connection in the JSON output of `sluice connections`.
type connection struct {
	Server, State, Problem string
	HasRefreshToken        bool
	Refreshed, Expires     time.Time
}

// startFront starts a mesh that signs in at a server which requires access tokens of a provider. The server is another
// mesh.
func startFront(t *testing.T, p provider) (front *stack.Process, server *rawmcp.Server) {
	t.Helper()
	back, server := startMesh(t, p)
	client := ""
	if p.connectClientID != "" {
		client = "client_id: " + p.connectClientID + ", "
	}
	front = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  far: {http: {url: %q}, credentials: {as: shared, oauth: {%sscopes: [openid, offline_access]}}}", back.MCP("raw"), client),
		Policy:  "version: 1\nname: front\nserver: \"*\"\ndefault: deny\nrules:\n  - {name: all, match: {tool: safe}, action: allow}\n",
	}))
	return front, server
}

// connectFar signs the mesh in at the server far.
func connectFar(t *testing.T, front *stack.Process) stack.CommandResult {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "connect", "far", "--no-browser", "-o", "json")
	cmd.Env = append(os.Environ(), "SLUICE_CONFIG="+front.Config, "SLUICE_TOKEN="+stack.OperatorToken)
	cmd.Dir = front.Dir
	out, err := runInBrowser(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return stack.CommandResult{Stdout: out}
}

func connectionTo(t *testing.T, front *stack.Process) connection {
	t.Helper()
	all := stack.DecodeOutput[[]connection](t, operate(t, front, "connections", "-o", "json"))
	if len(all) != 1 {
		t.Fatalf("the connections are %v", all)
	}
	return all[0]
}

// An operator connects a server, agents call it, and the mesh refreshes the access token with a new refresh token each
// time. No client and no file of the mesh contains a token. After `disconnect`, calls are refused.
func TestConnect_AgentsCallAServerThatRequiresOAuth(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) provider{
		"oidc-provider": func(t *testing.T) provider {
			t.Helper()
			return provider{url: npmtest.StartOIDCProvider(t, "ACCESS_TOKEN_TTL=8"), subject: personName, loginScope: "groups"}
		},
		"zitadel/oidc": startZitadel,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front, server := startFront(t, start(t))
			call := func() stack.Response { return stack.Connect(t, front.MCP("far"), stack.AgentToken).Call("safe", "{}") }
			if before := connectionTo(t, front); before.State != "login_required" {
				t.Errorf("before the sign-in: %+v", before)
			}
			if got := stack.NewClient(t, front.MCP("far"), stack.AgentToken).Post(stack.InitializeRequest); !strings.Contains(string(got.Body), "sluice connect far") {
				t.Errorf("before the sign-in: %d %s", got.Status, got.Body)
			}
			if ran := operate(t, front, "doctor"); !strings.Contains(ran.Stdout, "connect far") {
				t.Errorf("doctor does not name the command: %+v", ran)
			}
			connected := stack.DecodeOutput[connection](t, connectFar(t, front))
			if connected.State != "connected" || !connected.HasRefreshToken {
				t.Fatalf("the connection is %+v", connected)
			}
			eventually.Holds(t, "an agent can open a session with the server", func() bool {
				return strings.Contains(string(stack.NewClient(t, front.MCP("far"), stack.AgentToken).Post(stack.InitializeRequest).Body), "serverInfo")
			})
			if got := call(); got.Status != http.StatusOK || got.IsError(t) {
				t.Fatalf("a call has failed: %d %s", got.Status, got.Body)
			}
			if name == "oidc-provider" { // its access tokens expire after 8 s
				eventually.Within(t, time.Minute, "the token was refreshed twice", func() bool {
					if got := call(); got.Status != http.StatusOK || got.IsError(t) {
						t.Fatalf("a call has failed: %d %s, %+v", got.Status, got.Body, connectionTo(t, front))
					}
					return connectionTo(t, front).Refreshed.Sub(connected.Refreshed) > 9*time.Second
				})
			}
			if len(server.Calls("safe")) == 0 {
				t.Error("the server has received no call")
			}
			if ran := operate(t, front, "disconnect", "far"); ran.Code != 0 {
				t.Errorf("%+v", ran)
			}
			if after := connectionTo(t, front); after.State != "login_required" {
				t.Errorf("after the deletion: %+v", after)
			}
			wantNoTokens(t, front.Dir)
		})
	}
}

// wantNoTokens checks that no file in a directory contains the beginning of a JWT.
func wantNoTokens(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), "eyJhbGciOi") {
			t.Errorf("%s contains a token", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
