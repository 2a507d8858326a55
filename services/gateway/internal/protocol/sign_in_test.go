package protocol_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// people are the people who are signed in at a server. It is safe for concurrent use.
type people struct {
	mu       sync.Mutex
	signedIn map[principal.Key]bool
}

func (p *people) signIn(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signedIn[principal.Key{Tenant: gatewaytest.Tenant, Subject: subject}] = true
}

// require makes a server refuse sessions of people who are not signed in. The gateway's own sessions have no person.
func (p *people) require(server *gatewaytest.Server) {
	open, discovery := server.Open, server.Discovery
	server.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "tools/list" {
			return discovery(r)
		}
		return open(r)
	}
	server.Open = func(r upstream.Request) (upstream.Answer, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.signedIn[r.Person] {
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNeverSent, &upstream.CauseError{Text: "run `sluice connect files`", SignIn: true, Err: errors.New("not signed in")})
		}
		return open(r)
	}
}

// agentOf returns an agent that works for a person and uses her accounts.
func agentOf(subject, person string) httpserver.Caller {
	caller := ownedBy(subject, person)
	caller.Principal.Person = person
	return caller
}

// ownedBy returns an agent that works for a person, but may not use her accounts.
func ownedBy(subject, owner string) httpserver.Caller {
	return httpserver.Caller{
		Principal:  &identityv1.Principal{Tenant: gatewaytest.Tenant, Subject: subject, Owner: owner, Agent: "dev", Role: authv1.TokenRole_TOKEN_ROLE_AGENT},
		Credential: authn.InProcess{},
	}
}

func from(caller httpserver.Caller, m gatewaytest.Message) gatewaytest.Message {
	m.Caller = caller
	return m
}

// startForPeople starts a gateway whose server each person calls with her own account.
func startForPeople(t *testing.T, server *gatewaytest.Server) (*gatewaytest.Gateway, *people) {
	t.Helper()
	g, who := gatewaytest.New(t), &people{signedIn: make(map[principal.Key]bool)}
	g.Servers["files"] = server
	who.require(server)
	g.Start()
	return g, who
}

// Before a person has signed in, her client opens a session, sees the tools, and its call says what to do. After the
// sign-in, the same call works in the same session.
func TestSignIn_CallSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server            func(testing.TB) *gatewaytest.Server
		call, list, hello gatewaytest.Message
		hasSession        bool
		answersHello      string
	}{
		"2025-11-25": {
			server: gatewaytest.NewServer, call: gatewaytest.Call("safe", ""), list: gatewaytest.Plain("tools/list", "{}"),
			hello: gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}, hasSession: true, answersHello: `"protocolVersion":"2025-11-25"`,
		},
		"2026-07-28": {
			server: gatewaytest.NewModernServer, call: gatewaytest.ModernCall("safe", ""), list: gatewaytest.Modern("tools/list", "", ""),
			hello: gatewaytest.Modern("server/discover", "", ""), answersHello: `"supportedVersions"`,
		},
		"2026-07-28, with a server that has sessions": {
			server: gatewaytest.NewServer, call: gatewaytest.ModernCall("safe", ""), list: gatewaytest.Modern("tools/list", "", ""),
			hello: gatewaytest.Modern("server/discover", "", ""), answersHello: `"supportedVersions"`,
		},
		"2025-11-25, with a server that has no sessions": {
			server: gatewaytest.NewModernServer, call: gatewaytest.Call("safe", ""), list: gatewaytest.Plain("tools/list", "{}"),
			hello: gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}, hasSession: true, answersHello: `"protocolVersion":"2025-11-25"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, who := startForPeople(t, tt.server(t))
				bot := agentOf("bot", "ana")
				hello := g.Do(from(bot, tt.hello))
				if hello.Status != http.StatusOK || !strings.Contains(hello.Text, tt.answersHello) {
					t.Fatalf("the session: %d %s", hello.Status, hello.Text)
				}
				do := func(m gatewaytest.Message) gatewaytest.Reply {
					if tt.hasSession {
						m = m.In(http.Header{"Mcp-Session-Id": {hello.Header.Get("Mcp-Session-Id")}})
					}
					return g.Do(from(bot, m))
				}
				if got := do(tt.list); got.Status != http.StatusOK || !strings.Contains(got.Text, `"name":"safe"`) {
					t.Errorf("the list: %d %s", got.Status, got.Text)
				}
				for range 2 {
					if got := do(tt.call); got.Code() != "login_required" || !strings.Contains(got.Text, `"isError":true`) || !strings.Contains(got.Text, "sluice connect files") {
						t.Errorf("before the sign-in: %s", got.Text)
					}
				}
				if n := len(g.Files().Requests()); n != 0 {
					t.Errorf("the server has received %d requests", n)
				}
				who.signIn("ben")
				if got := do(tt.call); got.Code() != "login_required" {
					t.Errorf("after the sign-in of another person: %s", got.Text)
				}
				who.signIn("ana")
				if got := do(tt.call); got.Code() != "" || !strings.Contains(got.Text, `"content":[]`) {
					t.Errorf("after the sign-in: %s", got.Text)
				}
			})
		})
	}
}

// At the URL for all servers, too, the call says what to do.
func TestSignIn_AtAllServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, who := startForPeople(t, gatewaytest.NewServer(t))
		bot := agentOf("bot", "ana")
		session := g.ConnectAs(from(bot, gatewaytest.Message{Body: gatewaytest.Initialize}))
		call := from(bot, gatewaytest.Call("files__safe", "").To("").In(session))
		if got := g.Do(call); got.Code() != "login_required" {
			t.Errorf("before the sign-in: %s", got.Text)
		}
		who.signIn("ana")
		if got := g.Do(call); got.Code() != "" {
			t.Errorf("after the sign-in: %s", got.Text)
		}
	})
}

// An approval is not used by a call without a sign-in.
func TestSignIn_ApprovalStaysValid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, who := startForPeople(t, gatewaytest.NewServer(t))
		ana := agentOf("ana", "owner") // the fake approval belongs to the caller ana
		session := g.ConnectAs(from(ana, gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}))
		g.RequireApproval("safe")
		g.Approve(`{"name":"safe"}`)
		claims, claim := 0, g.Approvals.Claim
		g.Approvals.Claim = func(r *approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse {
			claims++
			return claim(r)
		}
		call := from(ana, gatewaytest.Call("safe", "").In(session))
		if got := g.Do(call); got.Code() != "login_required" || claims != 0 {
			t.Errorf("before the sign-in, after %d claims: %s", claims, got.Text)
		}
		who.signIn("owner")
		if got := g.Do(call); got.Code() != "" || claims != 1 {
			t.Errorf("after the sign-in, after %d claims: %s", claims, got.Text)
		}
	})
}

// An agent whose owner has a sign-in does not use her account if only its owner is known, as with a token that an operator
// has created with her name. No request is sent on her behalf. The session of such an agent and that of an agent that uses
// her account are separate, even if both have the same subject.
func TestSignIn_OwnerGivesNoAccount(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(testing.TB) *gatewaytest.Server
		call   gatewaytest.Message
	}{
		"2025-11-25": {gatewaytest.NewServer, gatewaytest.Call("safe", "")},
		"2026-07-28": {gatewaytest.NewModernServer, gatewaytest.ModernCall("safe", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, who := startForPeople(t, tt.server(t))
				who.signIn("ana")
				do := func(caller httpserver.Caller) gatewaytest.Reply {
					m := from(caller, tt.call)
					if name == "2025-11-25" {
						m = m.In(g.ConnectAs(from(caller, gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize})))
					}
					return g.Do(m)
				}
				if got := do(agentOf("bot", "ana")); got.Code() != "" {
					t.Errorf("the call of her agent: %s", got.Text)
				}
				ownedAgent := ownedBy("agent:acme/1", "ana")
				ownedAgent.Principal.Chain = []*identityv1.Principal{ownedBy("bot", "ana").Principal}
				opened := len(g.Files().Opened())
				for name, caller := range map[string]httpserver.Caller{"her token": ownedBy("bot", "ana"), "an agent of it": ownedAgent} {
					if got := do(caller); got.Code() != "login_required" {
						t.Errorf("%s: %s", name, got.Text)
					}
				}
				for _, r := range g.Files().Opened()[opened:] {
					if r.Person.Subject != "" {
						t.Errorf("a session was opened on behalf of %v", r.Person)
					}
				}
			})
		})
	}
}

// A session belongs to the person for whom its caller works. Another token with the same subject and another person can't
// use it.
func TestSignIn_SessionBelongsToThePerson(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, who := startForPeople(t, gatewaytest.NewServer(t))
		who.signIn("ana")
		who.signIn("ben")
		anas, bens := agentOf("bot", "ana"), agentOf("bot", "ben")
		session := g.ConnectAs(from(anas, gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}))
		if got := g.Do(from(bens, gatewaytest.Call("safe", "").In(session))); got.Code() != "session_unknown" {
			t.Errorf("the call of another person's agent: %s", got.Text)
		}
		if got := g.Do(from(anas, gatewaytest.Call("safe", "").In(session))); got.Code() != "" {
			t.Errorf("the call of her agent: %s", got.Text)
		}
	})
}

// In revision 2026-07-28, which has no sessions, interleaved calls of two tokens with one subject use the accounts of
// their persons.
func TestSignIn_StatesBelongToThePerson(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) *gatewaytest.Server{"with sessions": gatewaytest.NewServer, "without sessions": gatewaytest.NewModernServer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, who := startForPeople(t, server(t))
				who.signIn("ana")
				for range 3 {
					if got := g.Do(from(agentOf("bot", "ana"), gatewaytest.ModernCall("safe", ""))); got.Code() != "" {
						t.Errorf("the call of ana's agent: %s", got.Text)
					}
					if got := g.Do(from(agentOf("bot", "ben"), gatewaytest.ModernCall("safe", ""))); got.Code() != "login_required" {
						t.Errorf("the call of ben's agent: %s", got.Text)
					}
				}
				opened := make(map[string]int)
				for _, r := range g.Files().Opened() {
					opened[r.Person.Subject]++
				}
				if opened["ana"] != 1 || opened["ben"] != 3 || opened[""] > 1 {
					t.Errorf("sessions were opened on behalf of %v", opened)
				}
			})
		})
	}
}

// An agent of the mesh uses the account of the person behind the principals that have created it.
func TestSignIn_AgentOfTheMeshUsesThePersonsAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, who := startForPeople(t, gatewaytest.NewServer(t))
		who.signIn("ana")
		sandboxed := agentOf("agent:acme/2", "ana")
		sandboxed.Principal.Chain = []*identityv1.Principal{agentOf("agent:acme/1", "ana").Principal, agentOf("bot", "ana").Principal}
		session := g.ConnectAs(from(sandboxed, gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}))
		if got := g.Do(from(sandboxed, gatewaytest.Call("safe", "").In(session))); got.Code() != "" {
			t.Errorf("%s", got.Text)
		}
		workload := agentOf("agent:acme/3", "ana")
		workload.Principal.Chain = []*identityv1.Principal{agentOf("ana", "").Principal} // a workload with the subject of a person
		session = g.ConnectAs(from(workload, gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}))
		if got := g.Do(from(workload, gatewaytest.Call("safe", "").In(session))); got.Code() != "login_required" {
			t.Errorf("%s", got.Text)
		}
	})
}
