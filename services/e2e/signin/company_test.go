package signin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// departments are the groups of the company. share is the number of people for 30 people of the company. If reason is
// not empty, the policy refuses their calls with this reason.
var departments = []struct {
	group  string
	share  int
	reason string
}{
	{"engineering", 15, ""},
	{"support", 10, ""},
	{"finance", 4, "finance uses the ledger instead"},
	{"security", 1, ""},
}

// companySize returns the number of people of the company.
func companySize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SLUICE_PEOPLE")
	if text == "" {
		return 60
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 30 {
		t.Fatalf("SLUICE_PEOPLE is %q instead of a number of at least 30", text)
	}
	return n
}

const companyPolicy = `version: 1
name: company
server: far
default: deny
rules:
  - {name: engineers, match: {tool: safe, groups: [engineering]}, action: allow}
  - {name: support-and-security, match: {tool: safe, groups: [support, security]}, action: allow}
  - {name: finance, match: {tool: safe, groups: [finance]}, action: deny, reason: finance uses the ledger instead}
`

// atOnce is the number of people who begin at the same time.
const atOnce = 8

// company is a mesh of a company whose people sign in at an OpenID provider. Each person has an account at the
// server far, which is another mesh.
type company struct {
	*stack.Process

	back     *stack.Process
	provider provider
	client   oauth2.Config // OAuth client of the people's MCP clients
}

// startCompany starts the mesh. An operator has connected the account that lists the tools of the server.
func startCompany(t *testing.T) *company {
	t.Helper()
	p := provider{url: npmtest.StartOIDCProvider(t, "ACCESS_TOKEN_TTL=900"), loginScope: "groups"}
	back, _ := startMesh(t, p)
	listen := stack.FreeAddr(t) // the mesh needs to know its URL before it starts
	front := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Listen:  listen,
		Servers: fmt.Sprintf("  far: {http: {url: %q}, credentials: {as: person, oauth: {scopes: [openid, offline_access]}}}", back.MCP("raw")),
		Policy:  companyPolicy,
		Tokens:  fmt.Sprintf("  issuers:\n    - {name: idp, issuer: %q, groups: {claim: /groups}, owner: subject,\n       people: {operator: [security], viewer: [developers]}, sign_in: {client_id: %s, scopes: [groups]}}\n", p.url, loginClient),
		Extra:   "public_url: http://" + listen + "\n",
	}))
	eventually.Holds(t, "the mesh has the keys of the provider", func() bool {
		ran := operate(t, front, "identity", "issuers", "-o", "json")
		return ran.Code == 0 && stack.DecodeOutput[[]struct{ Keys int }](t, ran)[0].Keys > 0
	})
	connectAccount(t, front, stack.OperatorToken, "account-of-operator", "--discovery")
	return &company{Process: front, back: back, provider: p, client: oauth2.Config{
		ClientID: registerClient(t, p.url), RedirectURL: unusedCallback, Scopes: []string{"openid"},
		Endpoint: oauth2.Endpoint{AuthURL: p.url + "/auth", TokenURL: p.url + "/token", AuthStyle: oauth2.AuthStyleInParams},
	}}
}

// registerClient registers a public OAuth client (RFC 7591) and returns its identifier.
func registerClient(t *testing.T, providerURL string) string {
	t.Helper()
	body := fmt.Sprintf(`{"application_type":"native","redirect_uris":[%q],"token_endpoint_auth_method":"none","grant_types":["authorization_code"],"response_types":["code"]}`, unusedCallback)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, providerURL+"/reg", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var client struct {
		ID string `json:"client_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&client); err != nil || client.ID == "" {
		t.Fatalf("the client was not registered: %s, %v", resp.Status, err)
	}
	return client.ID
}

// employee is a person of the company.
type employee struct {
	name, reason string
	// session is the token of the session that `sluice login` creates, and accessToken the token of the MCP client.
	session, accessToken string
}

// authorize opens a page as the person, and returns the authorization code.
func (e *employee) authorize(ctx context.Context, page string) (string, error) {
	redirected, err := browse(asPerson(ctx, e.name), page, unusedCallback)
	return redirected.Get("code"), err
}

// signIn creates a session with a role, as `sluice login` does. If too many people sign in, the person tries again.
func (e *employee) signIn(ctx context.Context, c *company, role authv1.TokenRole) error {
	config := oauth2.Config{ClientID: loginClient, RedirectURL: unusedCallback, Scopes: []string{"openid", "groups"}, Endpoint: c.client.Endpoint}
	for {
		verifier, nonce := oauth2.GenerateVerifier(), oauth2.GenerateVerifier()
		code, err := e.authorize(ctx, config.AuthCodeURL("state", oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", nonce)))
		if err != nil {
			return err
		}
		created, err := c.createSession(ctx, &identityv1.CreateSessionRequest{Issuer: "idp", Role: role, Grant: &identityv1.CreateSessionRequest_Code{
			Code: &identityv1.AuthorizationCode{Code: code, RedirectUri: unusedCallback, CodeVerifier: verifier, Nonce: nonce},
		}})
		if status.Code(err) == codes.ResourceExhausted {
			time.Sleep(time.Second)
			continue
		}
		e.session = created.GetSecret()
		return err
	}
}

// createSession calls the RPC with a connection of its own, because the mesh closes the connections of callers without a
// token after some seconds.
func (c *company) createSession(ctx context.Context, req *identityv1.CreateSessionRequest) (*identityv1.CreateSessionResponse, error) {
	conn, err := rpc.DialPerson(c.GRPC, "", nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return identityv1.NewSessionServiceClient(conn).CreateSession(ctx, req)
}

// connect connects the person's account at the server, as `sluice connect` does.
func (e *employee) connect(ctx context.Context, c *company) error {
	conn, err := rpc.DialPerson(c.GRPC, e.session, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	connections := identityv1.NewConnectionServiceClient(conn)
	started, err := connections.StartConnection(ctx, &identityv1.StartConnectionRequest{Server: "far", RedirectUri: unusedCallback})
	if err != nil {
		return err
	}
	code, err := e.authorize(ctx, started.GetAuthorizationUrl())
	if err != nil {
		return err
	}
	_, err = connections.FinishConnection(ctx, &identityv1.FinishConnectionRequest{Attempt: started.GetAttempt(), Code: code})
	return err
}

// authorizeClient gets an access token for the person's MCP client.
func (e *employee) authorizeClient(ctx context.Context, c *company) error {
	verifier, resource := oauth2.GenerateVerifier(), oauth2.SetAuthURLParam("resource", c.MCP("far"))
	code, err := e.authorize(ctx, c.client.AuthCodeURL("state", oauth2.S256ChallengeOption(verifier), resource))
	if err != nil {
		return err
	}
	token, err := c.client.Exchange(ctx, code, oauth2.VerifierOption(verifier), resource)
	if err != nil {
		return err
	}
	e.accessToken = token.AccessToken
	return nil
}

// check calls a tool with the person's MCP client, and checks that the call ends as the policy says.
func (e *employee) check(t *testing.T, c *company) error {
	client := stack.NewClient(t, c.MCP("far"), e.accessToken)
	if err := client.Open(); err != nil {
		return err
	}
	got, err := client.TryPost([]byte(stack.CallRequest(`{"name":"safe","arguments":{}}`)))
	if err != nil {
		return err
	}
	if text := string(got.Body); got.Status != http.StatusOK || strings.Contains(text, `"isError":true`) != (e.reason != "") || !strings.Contains(text, e.reason) {
		return fmt.Errorf("the call: %d %s", got.Status, text)
	}
	return nil
}

// begin does what a person does on the first day.
func (e *employee) begin(t *testing.T, c *company) error {
	ctx := t.Context()
	if err := e.signIn(ctx, c, authv1.TokenRole_TOKEN_ROLE_VIEWER); err != nil {
		return fmt.Errorf("sign in: %w", err)
	}
	if err := e.connect(ctx, c); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if err := e.authorizeClient(ctx, c); err != nil {
		return fmt.Errorf("authorize the client: %w", err)
	}
	return e.check(t, c)
}

// beginAll lets all people of the company begin, some at a time. It returns them by department.
func (c *company) beginAll(t *testing.T) (people []*employee) {
	t.Helper()
	for _, d := range departments {
		for n := range d.share * companySize(t) / 30 {
			people = append(people, &employee{name: fmt.Sprintf("person%d.%s", n, d.group), reason: d.reason})
		}
	}
	var begun errgroup.Group
	begun.SetLimit(atOnce)
	for _, e := range people {
		begun.Go(func() error {
			if err := e.begin(t, c); err != nil {
				t.Errorf("%s: %v", e.name, err)
			}
			return nil
		})
	}
	_ = begun.Wait()
	return people
}

// wantCalls checks that the server has seen one call of each person whom the policy allows to call.
func (c *company) wantCalls(t *testing.T, people []*employee) {
	t.Helper()
	seen := callers(t, c.back)
	for _, e := range people {
		want := 1
		if e.reason != "" {
			want = 0
		}
		if got := seen["idp/"+e.name]; got != want {
			t.Errorf("the server has seen %d calls of %s instead of %d", got, e.name, want)
		}
	}
}

// The first day of a company: people of four groups sign in at an OpenID provider. Each of them connects an account
// at a server, signs in with an MCP client, and calls a tool, which the policy allows or refuses by the person's group.
// The server sees the account of the right person in each call. Then one person leaves, and an operator of the company
// blocks this person with one command. When the command has returned, the tokens of the person are refused, and those of
// all other people are not.
func TestCompany_FirstDayAndPersonWhoLeaves(t *testing.T) {
	t.Parallel()
	c := startCompany(t)
	people := c.beginAll(t)
	if t.Failed() {
		t.FailNow()
	}
	c.wantCalls(t, people)
	leaver, operator := people[0], people[len(people)-1]
	if err := operator.signIn(t.Context(), c, authv1.TokenRole_TOKEN_ROLE_OPERATOR); err != nil {
		t.Fatal(err)
	}
	c.wantBlocked(t, people, operator, leaver)
	for _, e := range people[1:] {
		if err := e.check(t, c); err != nil {
			t.Errorf("after another person has left, %s: %v", e.name, err)
		}
	}
	wantNoTokens(t, c.Dir)
}

// wantBlocked blocks a person as an operator, and checks that this ends what the person and the person's agent can do.
func (c *company) wantBlocked(t *testing.T, people []*employee, operator, leaver *employee) {
	t.Helper()
	agent := stack.DecodeOutput[struct{ Secret string }](t, runAs(t, c.Process, operator.session, "token", "create", "bot", "--owner", "idp/"+leaver.name, "-o", "json"))
	ofAgent := stack.Connect(t, c.MCP("far"), agent.Secret)
	open := stack.Connect(t, c.MCP("far"), leaver.accessToken)
	viewer := identityv1.NewSessionServiceClient(c.DialWithToken(t, leaver.session))
	if _, err := viewer.GetCaller(t.Context(), &identityv1.GetCallerRequest{}); err != nil {
		t.Fatal(err)
	}

	if ran := runAs(t, c.Process, operator.session, "identity", "block", "idp/"+leaver.name, "--reason", "has left the company"); ran.Code != 0 {
		t.Fatalf("%+v", ran)
	}

	for what, client := range map[string]*stack.Client{
		"the person's MCP client": open, "a new session of the person": stack.NewClient(t, c.MCP("far"), leaver.accessToken), "the person's agent": ofAgent,
	} {
		if got := client.Call("safe", "{}"); got.Status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", what, got.Status, got.Body)
		}
	}
	if _, err := viewer.GetCaller(t.Context(), &identityv1.GetCallerRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the session of `sluice login`: %v", err)
	}
	again := employee{name: leaver.name}
	if err := again.signIn(t.Context(), c, authv1.TokenRole_TOKEN_ROLE_VIEWER); rpc.Reason(err) != "CALLER_BLOCKED" {
		t.Errorf("a new sign-in: %v", err)
	}
	if ran := runAs(t, c.Process, operator.session, "disconnect", "far", "--person", "idp/"+leaver.name); ran.Code != 0 {
		t.Errorf("%+v", ran)
	}
	if left := personsOf(t, operate(t, c.Process, "connections", "-o", "json")); slices.Contains(left, "idp/"+leaver.name) || len(left) != len(people)-1 {
		t.Errorf("after the disconnection, there are %d connections of people", len(left))
	}
}
