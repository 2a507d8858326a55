package signin_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// secretOf returns the secret of a token of the mesh.
func secretOf(name string) string { return "the-secret-of-" + name + "-A1b2C3d4E5f6G7h8J9k0" }

// startFrontForPeople starts a mesh that signs in at a server with the account of each person. The server is another
// mesh, which requires access tokens of a provider. Ana and Ben have a token and an agent each.
func startFrontForPeople(t *testing.T, p provider) (front, back *stack.Process) {
	t.Helper()
	back, _ = startMesh(t, p)
	var tokens strings.Builder
	for _, name := range []string{"ana", "ben"} {
		fmt.Fprintf(&tokens, "    - {name: %s, token: %q, role: viewer}\n    - {name: bot-of-%s, token: %q, agent: dev, role: agent, owner: %s}\n", name, secretOf(name), name, secretOf("bot-of-"+name), name)
	}
	front = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  far: {http: {url: %q}, credentials: {as: person, oauth: {scopes: [openid, offline_access]}}}", back.MCP("raw")),
		Policy:  "version: 1\nname: front\nserver: \"*\"\ndefault: deny\nrules:\n  - {name: all, match: {tool: safe}, action: allow}\n",
		Tokens:  tokens.String(),
	}))
	return front, back
}

// connectAccount runs `sluice connect far` with a token of the mesh. The person signs in with the given name at the
// provider.
func connectAccount(t *testing.T, front *stack.Process, token, account string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), append([]string{"connect", "far", "--no-browser", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICE_CONFIG="+front.Config, "SLUICE_TOKEN="+token)
	cmd.Dir = front.Dir
	if _, err := runInBrowser(asPerson(t.Context(), account), cmd); err != nil {
		t.Fatal(err)
	}
}

// runAs runs a command with a token of the mesh.
func runAs(t *testing.T, front *stack.Process, token string, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: args, Dir: front.Dir, Env: []string{"SLUICE_CONFIG=" + front.Config, "SLUICE_TOKEN=" + token}})
}

// personsOf returns the people in the output of `sluice connections`, sorted.
func personsOf(t *testing.T, ran stack.CommandResult) (people []string) {
	t.Helper()
	for _, one := range stack.DecodeOutput[[]struct{ Person string }](t, ran) {
		if one.Person != "" {
			people = append(people, one.Person)
		}
	}
	slices.Sort(people)
	return people
}

// callers returns the subjects of the calls that have ended in the journal of a mesh, with the number of calls of each.
func callers(t *testing.T, mesh *stack.Process) map[string]int {
	t.Helper()
	out := make(map[string]int)
	ran := operate(t, mesh, "decisions", "tail", "-n", "5000", "-o", "json")
	for _, record := range stack.DecodeOutput[[]struct{ Kind, Subject, Tool string }](t, ran) {
		if record.Kind == "outcome" && record.Tool == "safe" {
			out[record.Subject]++
		}
	}
	return out
}

// Two people connect their own accounts at a server. Their agents call at the same time while the access tokens are
// refreshed, and the server sees the account of the right person for each call. Before that, the results of calls say who
// has to sign in.
func TestConnect_EachPersonUsesHerOwnAccount(t *testing.T) {
	t.Parallel()
	p := provider{url: npmtest.StartOIDCProvider(t, "ACCESS_TOKEN_TTL=8"), subject: personName, loginScope: "groups"}
	front, back := startFrontForPeople(t, p)
	if ran := operate(t, front, "doctor"); !strings.Contains(ran.Stdout, "connect far --discovery") {
		t.Errorf("doctor does not name the command: %+v", ran)
	}
	connectAccount(t, front, stack.OperatorToken, "account-of-operator", "--discovery")
	connectAccount(t, front, secretOf("ana"), "account-of-ana")
	session := func(name string) *stack.Client {
		var c *stack.Client
		eventually.Holds(t, "the agent can open a session", func() bool {
			c = stack.NewClient(t, front.MCP("far"), secretOf("bot-of-"+name))
			return strings.Contains(string(c.Post(stack.InitializeRequest).Body), "serverInfo")
		})
		return stack.Connect(t, front.MCP("far"), secretOf("bot-of-"+name))
	}
	bens := session("ben")
	if got := bens.Call("safe", "{}"); got.Status != http.StatusOK || !got.IsError(t) || !strings.Contains(string(got.Body), "login_required") || !strings.Contains(string(got.Body), "sluice connect far") {
		t.Errorf("before ben's sign-in: %d %s", got.Status, got.Body)
	}
	if got := stack.Connect(t, front.MCP("far"), stack.AgentToken).Call("safe", "{}"); !got.IsError(t) || !strings.Contains(string(got.Body), "login_required") {
		t.Errorf("an agent without an owner: %d %s", got.Status, got.Body)
	}
	connectAccount(t, front, secretOf("ben"), "account-of-ben")
	// For a second after a refusal, the gateway does not ask again whether a person has signed in.
	eventually.Holds(t, "ben's agent can call the server in the same session", func() bool {
		got := bens.Call("safe", "{}")
		return got.Status == http.StatusOK && !got.IsError(t)
	})
	calls := func() {
		var agents sync.WaitGroup
		for _, name := range []string{"ana", "ben"} {
			for range 3 {
				agent := session(name)
				agents.Go(func() {
					for range 10 {
						if got := agent.Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
							t.Errorf("the call of %s: %d %s", name, got.Status, got.Body)
						}
					}
				})
			}
		}
		agents.Wait()
	}
	calls()
	if got := callers(t, back); got["idp/account-of-ana"] != 30 || got["idp/account-of-ben"] != 31 || got["idp/account-of-operator"] != 0 {
		t.Errorf("the server has seen %v", got)
	}
	if got := personsOf(t, runAs(t, front, secretOf("ana"), "connections", "-o", "json")); !slices.Equal(got, []string{"ana"}) {
		t.Errorf("ana sees the connections of %v", got)
	}
	if got := personsOf(t, operate(t, front, "connections", "-o", "json")); !slices.Equal(got, []string{"ana", "ben"}) {
		t.Errorf("the operator sees the connections of %v", got)
	}
	if ran := runAs(t, front, secretOf("ana"), "disconnect", "far", "--person", "ben"); ran.Code == 0 {
		t.Error("ana has disconnected ben")
	}
	if ran := operate(t, front, "identity", "block", "ana"); ran.Code != 0 {
		t.Errorf("%+v", ran)
	}
	if ran := operate(t, front, "disconnect", "far", "--person", "ben"); ran.Code != 0 {
		t.Errorf("%+v", ran)
	}
	if got := personsOf(t, operate(t, front, "connections", "-o", "json")); !slices.Equal(got, []string{"ana"}) {
		t.Errorf("after ben was disconnected: %v", got)
	}
	wantNoTokens(t, front.Dir)
}
