package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// accountText is the text of the error for an account that a server refuses.
const accountText = "ana has to run `sluice connect files`"

// refuseAccount makes a server refuse the requests with a method in the sessions of people, like a transport whose server
// answers with the given status and a challenge for bearer tokens.
func refuseAccount(server *gatewaytest.Server, status int, methods ...string) {
	class := map[int]error{http.StatusUnauthorized: upstream.ErrNeverSent, http.StatusForbidden: upstream.ErrNoAnswer}[status]
	refusal := func() (upstream.Answer, error) {
		return upstream.Answer{Status: status}, fmt.Errorf("%w: %w", class, &upstream.CauseError{Text: accountText, SignIn: true, OfPerson: true, Err: errors.New("refused")})
	}
	open, request := server.Open, server.Request
	server.Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Person.Subject != "" && slices.Contains(methods, r.Method()) {
			return refusal()
		}
		return open(r)
	}
	server.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		if slices.Contains(methods, r.Method()) {
			return refusal()
		}
		return request(ctx, r, events)
	}
}

// eras are the combinations of the revisions of a client and of a server.
var eras = map[string]struct {
	server            func(testing.TB) *gatewaytest.Server
	call, list, hello gatewaytest.Message
	hasSession        bool
}{
	"2025-11-25": {
		server: gatewaytest.NewServer, call: gatewaytest.Call("safe", ""), list: gatewaytest.Plain("tools/list", "{}"),
		hello: gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}, hasSession: true,
	},
	"2026-07-28": {
		server: gatewaytest.NewModernServer, call: gatewaytest.ModernCall("safe", ""), list: gatewaytest.Modern("tools/list", "", ""),
		hello: gatewaytest.Modern("server/discover", "", ""),
	},
	"2026-07-28, with a server that has sessions": {
		server: gatewaytest.NewServer, call: gatewaytest.ModernCall("safe", ""), list: gatewaytest.Modern("tools/list", "", ""),
		hello: gatewaytest.Modern("server/discover", "", ""),
	},
	"2025-11-25, with a server that has no sessions": {
		server: gatewaytest.NewModernServer, call: gatewaytest.Call("safe", ""), list: gatewaytest.Plain("tools/list", "{}"),
		hello: gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}, hasSession: true,
	},
}

// If the server refuses the account of a person, her client still gets a session and the tools that the gateway has
// listed, and a call says what to do. A call that the server has refused with 403 may have been executed in part.
func TestRefusedAccount_ClientSeesWhatToDo(t *testing.T) {
	t.Parallel()
	for era, tt := range eras {
		for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
			for _, refused := range [][]string{{"initialize", "server/discover"}, {"tools/list"}, {"tools/call"}} {
				t.Run(fmt.Sprint(era, " ", status, " ", refused[0]), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						server := tt.server(t)
						g, who := startForPeople(t, server)
						who.signIn("ana")
						refuseAccount(server, status, refused...)
						bot := agentOf("bot", "ana")
						hello := g.Do(from(bot, tt.hello))
						do := func(m gatewaytest.Message) gatewaytest.Reply {
							if tt.hasSession {
								m = m.In(http.Header{"Mcp-Session-Id": {hello.Header.Get("Mcp-Session-Id")}})
							}
							return g.Do(from(bot, m))
						}
						if hello.Status != http.StatusOK || hello.Code() != "" {
							t.Fatalf("the session: %d %s", hello.Status, hello.Text)
						}
						if got := do(tt.list); got.Status != http.StatusOK || !strings.Contains(got.Text, `"name":"safe"`) {
							t.Errorf("the list: %d %s", got.Status, got.Text)
						}
						want := "login_required"
						switch {
						case refused[0] == "tools/list":
							want = ""
						case refused[0] == "tools/call" && status == http.StatusForbidden:
							want = "outcome_unknown"
						}
						got := do(tt.call)
						if got.Code() != want || want != "" && (!strings.Contains(got.Text, accountText) || !strings.Contains(got.Text, `"isError":true`)) {
							t.Errorf("the call: %s", got.Text)
						}
						if strings.Contains(got.Text, "is not known") != (want == "outcome_unknown") {
							t.Errorf("the call: %s", got.Text)
						}
					})
				})
			}
		}
	}
}

// At the URL for all servers, too, the call says what to do.
func TestRefusedAccount_AtAllServers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for _, refused := range []string{"initialize", "tools/list", "tools/call"} {
			synctest.Test(t, func(t *testing.T) {
				server := gatewaytest.NewServer(t)
				g, who := startForPeople(t, server)
				who.signIn("ana")
				refuseAccount(server, status, refused)
				bot := agentOf("bot", "ana")
				want := map[string]string{"initialize": "login_required", "tools/call": map[int]string{401: "login_required", 403: "outcome_unknown"}[status]}[refused]
				session := g.ConnectAs(from(bot, gatewaytest.Message{Body: gatewaytest.Initialize}))
				if got := g.Do(from(bot, gatewaytest.Plain("tools/list", "{}").To("").In(session))); !strings.Contains(got.Text, `"name":"files__safe"`) {
					t.Errorf("%d %s, the list: %s", status, refused, got.Text)
				}
				for name, call := range map[string]gatewaytest.Message{"2025-11-25": gatewaytest.Call("files__safe", "").To("").In(session), "2026-07-28": gatewaytest.ModernCall("files__safe", "").To("")} {
					if got := g.Do(from(bot, call)); got.Code() != want || want != "" && !strings.Contains(got.Text, accountText) {
						t.Errorf("%d %s, %s: %s", status, refused, name, got.Text)
					}
				}
			})
		}
	}
}

// approvedCaller is an agent whose approval gatewaytest has, and that works for the person ana.
func approvedCaller() httpserver.Caller { return agentOf("ana", "ana") }

// An approval stays valid if the server refuses the account before it has executed the call. After a status 403, it is
// not known what was executed, so the call counts as made.
func TestRefusedAccount_ApprovalStaysValidIfNothingWasExecuted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status  int
		refused string
		code    string
		claims  int
		class   []journal.ResultClass
	}{
		{401, "tools/list", "login_required", 0, nil}, {403, "tools/list", "login_required", 0, nil}, {401, "tools/call", "login_required", 1, []journal.ResultClass{journal.ResultNeverSent}},
		{403, "tools/call", "outcome_unknown", 1, []journal.ResultClass{journal.ResultUnknown}}, {401, "initialize", "login_required", 0, nil}, {403, "initialize", "login_required", 0, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := gatewaytest.NewServer(t)
			g, who := startForPeople(t, server)
			who.signIn("ana")
			refuseAccount(server, c.status, c.refused)
			ana := approvedCaller()
			session := g.ConnectAs(from(ana, gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}))
			g.RequireApproval("safe")
			g.Approve(`{"name":"safe"}`)
			claims, claim := 0, g.Approvals.Claim
			g.Approvals.Claim = func(r *approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse {
				claims++
				return claim(r)
			}
			if got := g.Do(from(ana, gatewaytest.Call("safe", "").In(session))); got.Code() != c.code || claims != c.claims || !strings.Contains(got.Text, accountText) {
				t.Errorf("%d %s, after %d claims: %s", c.status, c.refused, claims, got.Text)
			}
			var classes []journal.ResultClass
			for _, r := range g.Journal.Records(journal.KindOutcome) {
				classes = append(classes, r.ResultClass)
			}
			if !slices.Equal(classes, c.class) {
				t.Errorf("%d %s: the outcomes are %v", c.status, c.refused, classes)
			}
		})
	}
}
